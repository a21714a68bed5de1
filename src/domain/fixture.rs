//! Small fleets, requests and predictions for tests.

use crate::domain::destination::{
    Capabilities, Destination, DestinationId, EndpointOrd, Network, NodeClass, Power, Price, Throughput,
    TransferEnergy,
};
use crate::domain::prefix::CachedPrefix;
use crate::domain::request::{Constraints, ModelTarget, Prediction, QualitySource, RoutingRequest};
use crate::units::{Bytes, BytesPerSec, Joules, Quality, Seconds, Tokens, TokensPerSec, Watts};

/// Destination number `n`, named `node-n/model-n`, on endpoint `n`: 100 tokens a second, no prefill or network
/// time to speak of, `slots` requests at once and `max_inflight` outstanding.
pub(crate) fn destination(n: u32, slots: u32, max_inflight: u32) -> Destination {
    let (node, model) = (format!("node-{n}"), format!("model-{n}"));
    Destination {
        id: DestinationId::new(&node, None, &model),
        node: node.into(),
        class: NodeClass::Edge,
        endpoint: EndpointOrd(n),
        model: model.clone().into(),
        upstream_model: model.into(),
        context: Some(Tokens(8192.0)),
        capabilities: Capabilities::CHAT,
        price: Price { prompt_usd_per_mtok: 1.0, completion_usd_per_mtok: 1.0, ..Price::default() },
        throughput: Throughput {
            prefill: TokensPerSec(1e9),
            decode: TokensPerSec(100.0),
            batch_speedup: f64::from(slots),
            max_concurrency: slots,
            cached_prompt: Tokens::ZERO,
        },
        network: Network {
            rtt: Seconds::ZERO,
            uplink: BytesPerSec(1e9),
            downlink: BytesPerSec(1e9),
            transfer_energy: TransferEnergy::PerMegabyte(Joules(0.1)),
            usd_per_gb: 0.0,
        },
        power: Power { board: Watts(100.0), idle: Watts(20.0), utilisation: 0.8 },
        quality_prior: Quality(0.5),
        max_inflight,
    }
}

/// A short chat request that any destination may serve.
pub(crate) fn request(id: &str) -> RoutingRequest {
    RoutingRequest {
        id: id.into(),
        target: ModelTarget::Any,
        needs: Capabilities::CHAT,
        prompt_tokens: Tokens(10.0),
        longest_prompt: Tokens(10.0),
        cached: CachedPrefix::NOWHERE,
        max_completion_tokens: None,
        choices: 1,
        upload: Bytes(100.0),
        constraints: Constraints::default(),
        weights: None,
        time: None,
    }
}

/// A looked-up prediction: one quality per destination, and the same length everywhere.
pub(crate) fn prediction(quality: &[f64], completion_tokens: f64) -> Prediction {
    Prediction {
        quality: quality.iter().copied().map(Quality).collect(),
        completion_tokens: vec![Tokens(completion_tokens); quality.len()],
        cluster_error: Vec::new(),
        source: QualitySource::Store,
    }
}

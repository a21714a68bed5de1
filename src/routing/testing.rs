//! Problems, contexts and requests for the tests of this module.

use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::domain::{
    CachedPrefix, Capabilities, Constraints, Destination, DestinationId, DestinationState, EndpointOrd,
    ModelTarget, Network, NodeClass, ObjectiveScales, Power, Prediction, Price, QualitySource,
    RoutingContext, RoutingRequest, Throughput, TransferEnergy, Weights, Work,
};
use crate::routing::completion::timeline::Timeline;
use crate::routing::problem::SumTables;
use crate::routing::{CompletionModel, DestinationLoad, Problem, ProblemTables};
use crate::units::{Bytes, BytesPerSec, Joules, Quality, Seconds, Tokens, TokensPerSec, Usd, Watts};

/// A random problem: fast and dear columns first, about one pair in five illegal if `is_restricted`.
pub(super) fn random_problem(seed: u64, n: usize, m: usize, is_restricted: bool) -> Problem {
    Problem::new(random_tables(seed, n, m, is_restricted)).unwrap()
}

pub(super) fn random_tables(seed: u64, n: usize, m: usize, is_restricted: bool) -> ProblemTables {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let destinations: Vec<DestinationLoad> = (0..m)
        .map(|d| DestinationLoad {
            id: DestinationId::from_text(&format!("d{d}")),
            class: Some(if d % 2 == 0 { NodeClass::Cloud } else { NodeClass::Edge }),
            backlog_s: if rng.random_bool(0.5) { rng.random::<f64>() } else { 0.0 },
            batch_speedup: if rng.random_bool(0.5) { 1.0 + 7.0 * rng.random::<f64>() } else { 1.0 },
            network_s: 0.1 * rng.random::<f64>(),
            inflight: rng.random_range(0..4),
            max_concurrency: 4,
            cap: None,
        })
        .collect();
    let mut tables = ProblemTables {
        quality_loss: Vec::new(),
        cost_usd: Vec::new(),
        energy_j: Vec::new(),
        service_s: Vec::new(),
        transfer_s: vec![0.0; n * m],
        legal: Vec::new(),
        length_tokens: Vec::new(),
        destinations,
        weights: Vec::new(),
        first_request_number: rng.random_range(0..100),
        clusters: None,
        sum: None,
    };
    for _ in 0..n {
        let length = 20.0 + 400.0 * rng.random::<f64>();
        let always = rng.random_range(0..m);
        for d in 0..m {
            let speed = 1.0 + d as f64;
            tables.quality_loss.push(rng.random::<f64>() * (0.3 + 0.7 * d as f64 / m as f64));
            tables.cost_usd.push(1e-5 * length / speed);
            tables.energy_j.push(length * (0.5 + rng.random::<f64>()));
            tables.service_s.push(length * speed * (0.8 + 0.4 * rng.random::<f64>()) / 1_000.0);
            tables.legal.push(!is_restricted || d == always || rng.random_bool(0.8));
        }
        tables.length_tokens.push(length);
        tables.weights.push(Weights::EQUAL);
    }
    tables
}

/// A random problem with time term `sum` and model `slots`, destinations of 1 to 4 slots that are partly taken.
pub(crate) fn random_sum_problem(seed: u64, n: usize, m: usize) -> Problem {
    let mut tables = random_tables(seed, n, m, false);
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 1);
    let mut sum = SumTables {
        work: Vec::new(),
        timelines: Vec::new(),
        rtt_s: vec![0.02; m],
        price_per_s: Vec::new(),
        others_time_weight: 0.25,
    };
    for _ in 0..m {
        let slots = rng.random_range(1..=4);
        let mut destination = destination("a", "m");
        destination.throughput.max_concurrency = slots;
        destination.throughput.batch_speedup = 1.0 + rng.random::<f64>() * f64::from(slots - 1);
        let idle = DestinationState::idle();
        let mut timeline = Timeline::new(CompletionModel::Slots, &destination, &idle);
        for _ in 0..rng.random_range(0..6) {
            timeline.push(Work { prefill: Seconds(0.1), decode: Seconds(rng.random()) });
        }
        sum.timelines.push(timeline);
        sum.price_per_s.push(if rng.random_bool(0.5) { rng.random() } else { 0.0 });
    }
    for service_s in &tables.service_s {
        let prefill = Seconds(service_s * rng.random::<f64>());
        sum.work.push(Work { prefill, decode: Seconds(*service_s) - prefill });
    }
    tables.sum = Some(sum);
    Problem::new(tables).unwrap()
}

/// A cloud destination `n/m`: 1,000 and 100 tokens/s, 1 and 2 USD per million tokens, 200 W of 300 W,
/// 100 W idle, 8,000,000 bit/s each way, 20 ms.
pub(super) fn destination(node: &str, model: &str) -> Destination {
    Destination {
        id: DestinationId::new(node, None, model),
        node: node.into(),
        class: NodeClass::Cloud,
        endpoint: EndpointOrd(0),
        model: model.into(),
        upstream_model: model.into(),
        context: Some(Tokens(4_096.0)),
        capabilities: Capabilities::CHAT,
        price: Price { prompt_usd_per_mtok: 1.0, completion_usd_per_mtok: 2.0, request: Usd(1e-4) },
        throughput: Throughput {
            prefill: TokensPerSec(1_000.0),
            decode: TokensPerSec(100.0),
            batch_speedup: 4.0,
            max_concurrency: 4,
            cached_prompt: Tokens::ZERO,
        },
        network: Network {
            rtt: Seconds(0.02),
            uplink: BytesPerSec(1e6),
            downlink: BytesPerSec(1e6),
            transfer_energy: TransferEnergy::PerMegabyte(Joules(10.0)),
            usd_per_gb: 1.0,
        },
        power: Power { board: Watts(300.0), idle: Watts(100.0), utilisation: 2.0 / 3.0 },
        quality_prior: Quality(0.5),
        max_inflight: 8,
    }
}

/// A context in which every destination is ready and idle.
pub(crate) fn context(destinations: Vec<Destination>) -> RoutingContext {
    let idle = DestinationState::idle();
    RoutingContext {
        states: vec![idle; destinations.len()],
        destinations: destinations.into(),
        weights: Weights::EQUAL,
        scales: ObjectiveScales { quality: 0.5, cost: Usd(0.001), energy: Joules(100.0), time: Seconds(4.0) },
        finish_target: None,
    }
}

/// A chat request for any model: 500 prompt tokens, 10 kB.
pub(super) fn request() -> RoutingRequest {
    RoutingRequest {
        id: "req-1".into(),
        target: ModelTarget::Any,
        needs: Capabilities::CHAT,
        prompt_tokens: Tokens(500.0),
        longest_prompt: Tokens(500.0),
        cached: CachedPrefix::NOWHERE,
        max_completion_tokens: None,
        choices: 1,
        upload: Bytes(10_000.0),
        constraints: Constraints::default(),
        weights: None,
        time: None,
    }
}

/// Quality and completion tokens per destination.
pub(super) fn prediction(quality: &[f64], completion_tokens: &[f64]) -> Prediction {
    Prediction {
        quality: quality.iter().copied().map(Quality).collect(),
        completion_tokens: completion_tokens.iter().copied().map(Tokens).collect(),
        cluster_error: Vec::new(),
        source: QualitySource::Store,
    }
}

/// A name as requests carry it.
pub(super) fn named(model: &str) -> ModelTarget {
    ModelTarget::Named(Arc::from(model))
}

//! One model at an endpoint (`nodes[].endpoints[].models[]`).

use std::sync::Arc;

use super::name::model_name;
use super::reader::{Field, Section, not_one_of};
use crate::domain::destination::{Capabilities, NodeClass, Price, Throughput};
use crate::endpoint::EndpointKind;
use crate::profiler::speed::Given;
use crate::units::{Quality, Tokens, TokensPerSec, Usd};

/// A model as its endpoint offers it, before it becomes a destination.
pub(super) struct Model {
    pub(super) name: Arc<str>,
    pub(super) upstream: Arc<str>,
    pub(super) context: Option<Tokens>,
    pub(super) capabilities: Capabilities,
    pub(super) price: Price,
    pub(super) throughput: Throughput,
    /// Which of its throughput figures were given; `max_inflight` is its endpoint's.
    pub(super) given: Given,
    pub(super) quality_prior: Quality,
}

/// What vLLM, Ollama and llama.cpp serve by themselves. Vision and embedding depend on the model.
const DEFAULT_CAPABILITIES: Capabilities =
    Capabilities::CHAT.with(Capabilities::TOOLS).with(Capabilities::JSON);

/// Reads a model: `name` (required), `upstream` (default the name), `parameters_b` 0.001 to 100000 (used for
/// default throughput), `context_tokens` 1 to 100000000 (not known), `capabilities` (`[chat, tools, json]`),
/// `price` (0), `throughput`, `quality_prior` 0 to 1 (0.5). `None` without a usable name.
pub(super) fn read_model(s: &mut Section<'_>, kind: EndpointKind, class: NodeClass) -> Option<Model> {
    let name = s.require("name", "the name clients ask for").and_then(|field| model_name(&field));
    let upstream = s.get("upstream").and_then(|field| field.text("the name the endpoint knows the model by"));
    let billions = s.get("parameters_b").and_then(|field| field.float(&(1e-3..=1e5), ""));
    let (throughput, given) = s.section("throughput", |s| {
        let given = Given {
            prefill: s.has("prefill_tps"),
            decode: s.has("decode_tps"),
            batch_speedup: s.has("batch_speedup"),
            max_concurrency: s.has("max_concurrency"),
            max_inflight: false,
        };
        (read_throughput(s, kind, class, billions), given)
    });
    let model = Model {
        name: name.clone().unwrap_or_default(),
        upstream: upstream.map(Into::into).or_else(|| name.clone()).unwrap_or_default(),
        context: read_context(s),
        capabilities: s.get("capabilities").map_or(DEFAULT_CAPABILITIES, |field| read_capabilities(&field)),
        price: s.section("price", read_price),
        throughput,
        given,
        quality_prior: Quality(s.float("quality_prior", 0.0..=1.0, 0.5)),
    };
    name.map(|_| model)
}

/// Reads `context_tokens`, 1 to 100000000; `None` = not known.
pub(super) fn read_context(s: &mut Section<'_>) -> Option<Tokens> {
    let tokens = s.get("context_tokens").and_then(|field| field.count(1..=100_000_000));
    tokens.map(|tokens| Tokens(f64::from(tokens)))
}

fn read_capabilities(field: &Field<'_>) -> Capabilities {
    let allowed = Capabilities::NAMED.map(|(name, _)| name).join(", ");
    let mut capabilities = Capabilities::default();
    for item in field.filled_list(&allowed) {
        let Some(text) = item.text(&allowed) else { continue };
        match Capabilities::NAMED.iter().find(|(name, _)| *name == text) {
            Some((_, capability)) => capabilities = capabilities.with(*capability),
            None => item.fault(
                not_one_of("capability", text, Capabilities::NAMED.iter().map(|(name, _)| *name)),
                &allowed,
            ),
        }
    }
    capabilities
}

/// Reads `price`, every part 0 to 1000000 USD and 0 by default.
pub(super) fn read_price(s: &mut Section<'_>) -> Price {
    let usd = 0.0..=1e6;
    Price {
        prompt_usd_per_mtok: s.float("prompt_usd_per_mtok", usd.clone(), 0.0),
        completion_usd_per_mtok: s.float("completion_usd_per_mtok", usd.clone(), 0.0),
        request: Usd(s.float("request_usd", usd, 0.0)),
    }
}

/// Model size assumed where `parameters_b` is not given, in billions.
const DEFAULT_PARAMETERS_B: f64 = 8.0;
/// How much slower each running request gets per further one: the `a` of `rate(n) = r1 / (1 + a(n − 1))`.
const DEFAULT_SLOWDOWN: f64 = 0.025;

/// Reads `throughput`: `prefill_tps` and `decode_tps` 0.001 to 10000000, `max_concurrency` 1 to 65536,
/// `batch_speedup` 1 to 65536.
///
/// Where they are not given (measure them with `profile throughput`):
/// - speeds fall with model size. One request alone decodes 660 (cloud) or 300 (edge) tokens per second and
///   billion parameters and prefills 59,000 or 19,000, but at most 300 and 20,000 tokens per second;
/// - `max_concurrency` is what the server runs at once by default: 64 vllm, 32 openai, 4 llamacpp and ollama;
/// - `batch_speedup` is `S / (1 + 0.025 (S − 1))` with `S = max_concurrency`.
pub(super) fn read_throughput(
    s: &mut Section<'_>,
    kind: EndpointKind,
    class: NodeClass,
    parameters_b: Option<f64>,
) -> Throughput {
    let parameters_b = parameters_b.unwrap_or(DEFAULT_PARAMETERS_B);
    let (decode_b, prefill_b) = match class {
        NodeClass::Cloud => (660.0, 59_000.0),
        NodeClass::Edge => (300.0, 19_000.0),
    };
    let tps = 1e-3..=1e7;
    let max_concurrency = s.count("max_concurrency", 1..=65_536, kind.default_concurrency());
    let running = f64::from(max_concurrency);
    let speedup = running / (1.0 + DEFAULT_SLOWDOWN * (running - 1.0));
    Throughput {
        prefill: TokensPerSec(s.float("prefill_tps", tps.clone(), (prefill_b / parameters_b).min(20_000.0))),
        decode: TokensPerSec(s.float("decode_tps", tps, (decode_b / parameters_b).min(300.0))),
        batch_speedup: s.float("batch_speedup", 1.0..=65_536.0, speedup),
        max_concurrency,
        cached_prompt: Tokens::ZERO,
    }
}

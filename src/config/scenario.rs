//! Scenario files of `simulate`: a fleet without addresses, and what is assumed of it.
//!
//! The sections `routing`, `window`, `quality` and a node's `power` and `network` are those of the
//! configuration. A model is described by measured `throughput`, or by `parameters_b` and `tflops` as in the
//! paper's Tables II and III. `engine` says how the simulated engines behave, `lengths` how long answers are where a
//! trace does not say.

use std::path::Path;
use std::sync::Arc;

use super::model::{read_context, read_price, read_throughput};
use super::name::{model_name, plain_name};
use super::node::{read_network, read_power};
use super::reader::{Field, Section};
use super::report::Report;
use super::routing::{QualityConfig, RoutingConfig, read_window};
use super::{Config, ConfigError, not_utf8, read_bounded, tree};
use crate::config::fault::Fault;
use crate::domain::destination::{
    Capabilities, Destination, DestinationId, EndpointOrd, Network, NodeClass, Power, Throughput,
};
use crate::domain::named::named_enum;
use crate::endpoint::EndpointKind;
use crate::planning::params::WindowParams;
use crate::simulate::engine::EngineKind;
use crate::simulate::lengths::{LengthModel, PredictedLengths};
use crate::units::{Quality, Tokens, TokensPerSec};

named_enum! {
    /// `trace`: rows that come with the program.
    pub enum ShippedTrace {
        /// RouterBench 0-shot, 11 models.
        Routerbench = "routerbench",
        /// Nine open models of 7 to 70 billion parameters; scores only.
        Open9 = "open9",
    }
}

named_enum! {
    /// `uniroute`: where the error rates of UniRoute come from.
    pub enum UnirouteErrors {
        /// Error rates per prompt cluster (k-means over the profile's embeddings).
        Clusters = "clusters",
        /// The same predictions as every other policy has.
        Predicted = "predicted",
    }
}

/// A fleet to simulate. One that exists is valid.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// `title`: one line.
    pub title: String,
    /// `assumptions`: what is not measured, for every result.
    pub assumptions: Vec<String>,
    /// `trace`: rows to use where none are given.
    pub trace: Option<ShippedTrace>,
    /// `routing`: models of time and energy, weights.
    pub routing: RoutingConfig,
    /// `window` of joint policies.
    pub window: WindowParams,
    /// `quality`: how predictions are made.
    pub quality: QualityConfig,
    /// `engine`: what serves requests that arrive over time; default the one `routing.completion` is about.
    pub engine: EngineKind,
    /// `lengths`: how long answers are where the trace does not say.
    pub lengths: LengthModel,
    /// `uniroute`; default `clusters`.
    pub uniroute: UnirouteErrors,
    /// Node–model pairs, ids unique, in order of the file.
    pub destinations: Vec<Destination>,
    /// The models of a trace that stand for each destination's model, in the same order.
    pub trace_models: Vec<Arc<str>>,
}

impl Scenario {
    /// Reads a scenario file, or takes the fleet of a router configuration (one with `listen`).
    ///
    /// # Errors
    /// Where the file cannot be read, is oversized, or has faults: then all of them.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let invalid = |faults| ConfigError::Invalid { path: path.into(), faults };
        let bytes = read_bounded(path)?;
        let text =
            std::str::from_utf8(&bytes).map_err(|e| invalid(vec![not_utf8(&bytes, e.valid_up_to())]))?;
        let root = tree::parse(text).map_err(|fault| invalid(vec![fault]))?;
        let no_env = |_: &str| None;
        let is_configuration =
            Field::root(&root, &Report::new(&no_env, Path::new(""))).peek("listen").is_some();
        if is_configuration {
            return Ok(Self::of_configuration(path, Config::load(path)?));
        }
        parse_in(path.parent().unwrap_or(Path::new("")), text).map_err(invalid)
    }

    /// Reads a scenario from its text.
    ///
    /// # Errors
    /// Everything wrong with the text, in order of lines; never empty.
    pub fn parse(text: &str) -> Result<Self, Vec<Fault>> {
        parse_in(Path::new(""), text)
    }

    fn of_configuration(path: &Path, config: Config) -> Self {
        let destinations = config.fleet.destinations;
        Self {
            title: format!("the fleet of {}", path.display()),
            assumptions: Vec::new(),
            trace: None,
            engine: EngineKind::of_model(config.routing.completion),
            routing: config.routing,
            window: config.window,
            quality: config.quality,
            lengths: LengthModel::default(),
            uniroute: UnirouteErrors::Clusters,
            trace_models: destinations.iter().map(|d| Arc::clone(&d.model)).collect(),
            destinations,
        }
    }
}

fn parse_in(folder: &Path, text: &str) -> Result<Scenario, Vec<Fault>> {
    let root = tree::parse(text).map_err(|fault| vec![fault])?;
    let no_env = |_: &str| None;
    let report = Report::new(&no_env, folder);
    let scenario = Field::root(&root, &report).section(read_scenario);
    let faults = report.into_faults();
    match scenario.flatten() {
        Some(scenario) if faults.is_empty() => Ok(scenario),
        _ => Err(faults),
    }
}

const ALLOWED_NODES: &str = "a list of at least one node with `models`";
const ALLOWED_MODELS: &str = "a list of at least one model with `name`";

fn read_scenario(s: &mut Section<'_>) -> Option<Scenario> {
    let title = s.get("title").and_then(|field| field.text("one line"));
    let assumptions = s.get("assumptions").map_or_else(Vec::new, |field| {
        field.items("a list of lines").iter().filter_map(|item| item.text("one line")).collect()
    });
    let trace = s.get("trace").and_then(|field| field.choice(ShippedTrace::ALL));
    let routing = s.section("routing", RoutingConfig::read);
    let window = s.section("window", read_window);
    let quality = s.section("quality", QualityConfig::read);
    let engine = s.choice("engine", EngineKind::ALL, EngineKind::of_model(routing.completion));
    let lengths = s.section("lengths", read_lengths);
    let uniroute = s.choice("uniroute", UnirouteErrors::ALL, UnirouteErrors::Clusters);
    let mut fleet = Fleet::default();
    for node in s.require("nodes", ALLOWED_NODES)?.filled_list(ALLOWED_NODES) {
        node.section(|s| fleet.read_node(s));
    }
    Some(Scenario {
        title: title.unwrap_or("a fleet of one's own").to_owned(),
        assumptions: assumptions.into_iter().map(str::to_owned).collect(),
        trace,
        routing,
        window,
        quality,
        engine,
        lengths,
        uniroute,
        destinations: fleet.destinations,
        trace_models: fleet.trace_models,
    })
}

/// Reads `lengths`: `task_mean` tokens by benchmark, 1 to 100000, and `verbosity` by model of the trace, 0.01 to 100,
/// both beside those built in; `request_sd` (0.45) and `pair_sd` (0.25), 0 to 2; `predicted` with its own
/// `request_sd` and `noise_sd` (0.25 each), without which lengths are predicted from the profile.
fn read_lengths(s: &mut Section<'_>) -> LengthModel {
    let mut lengths = LengthModel::default();
    let tables = [
        ("task_mean", &mut lengths.task_mean, 1.0..=1e5),
        ("verbosity", &mut lengths.verbosity, 0.01..=100.0),
    ];
    for (key, table, range) in tables {
        let given = s.get(key).map_or_else(Vec::new, |field| field.free_keys());
        table.extend(
            given.into_iter().filter_map(|(name, field)| Some((name.into(), field.float(&range, "")?))),
        );
    }
    let sd = 0.0..=2.0;
    lengths.request_sd = s.float("request_sd", sd.clone(), lengths.request_sd);
    lengths.pair_sd = s.float("pair_sd", sd.clone(), lengths.pair_sd);
    lengths.predicted = s.get("predicted").and_then(|field| {
        field.section(|s| {
            let PredictedLengths { request_sd, noise_sd } = PredictedLengths::default();
            PredictedLengths {
                request_sd: s.float("request_sd", sd.clone(), request_sd),
                noise_sd: s.float("noise_sd", sd.clone(), noise_sd),
            }
        })
    });
    lengths
}

#[derive(Default)]
struct Fleet {
    destinations: Vec<Destination>,
    trace_models: Vec<Arc<str>>,
}

/// What a node says of itself, handed down to its models.
struct Machine {
    name: Arc<str>,
    class: NodeClass,
    power: Power,
    network: Network,
}

impl Fleet {
    fn read_node(&mut self, s: &mut Section<'_>) {
        let class = s.choice("class", NodeClass::ALL, NodeClass::Edge);
        let machine = Machine {
            name: s.require("name", "a name").and_then(|field| plain_name(&field)).unwrap_or_default(),
            class,
            power: s.section("power", |s| read_power(s, class)).0,
            network: s.section("network", |s| read_network(s, class)).0,
        };
        let models = s.require("models", ALLOWED_MODELS).map(|field| field.filled_list(ALLOWED_MODELS));
        for model in models.unwrap_or_default() {
            model.section(|s| self.read_model(s, &machine));
        }
    }

    /// Reads a model: `name`, `trace_model` (default the name), `parameters_b`, `tflops` or `throughput`,
    /// `price`, `context_tokens` (no limit), `quality_prior` 0 to 1 (0.5).
    fn read_model(&mut self, s: &mut Section<'_>, machine: &Machine) {
        let name = s.require("name", "the model's name").and_then(|field| model_name(&field));
        let trace_model = s.get("trace_model").and_then(|field| model_name(&field));
        let billions = s.get("parameters_b").and_then(|field| field.float(&(1e-3..=1e5), ""));
        let throughput = match s.get("tflops") {
            Some(field) => read_tflops(s, &field, billions),
            None => {
                s.section("throughput", |s| read_throughput(s, EndpointKind::OpenAi, machine.class, billions))
            }
        };
        let price = s.section("price", read_price);
        let context = read_context(s);
        let quality_prior = Quality(s.float("quality_prior", 0.0..=1.0, 0.5));
        let Some(name) = name else { return };
        let id = DestinationId::new(&machine.name, None, &name);
        if self.destinations.iter().any(|other| other.id == id) {
            s.fault(
                "name",
                format!("a second destination `{id}`"),
                "each model once per node, node names unique",
            );
        }
        self.trace_models.push(trace_model.unwrap_or_else(|| Arc::clone(&name)));
        self.destinations.push(Destination {
            id,
            node: Arc::clone(&machine.name),
            class: machine.class,
            // There are no endpoints: the simulation has an engine for each destination.
            endpoint: EndpointOrd(u32::try_from(self.destinations.len()).unwrap_or(u32::MAX)),
            upstream_model: Arc::clone(&name),
            model: name,
            context,
            capabilities: Capabilities::CHAT,
            price,
            throughput,
            network: machine.network,
            power: machine.power,
            quality_prior,
            max_inflight: throughput.max_concurrency.saturating_mul(2),
        });
    }
}

/// Requests that run at once where `tflops` are given without `max_concurrency`: the limit is arithmetic.
const TFLOPS_CONCURRENCY: u32 = 1024;

/// `tflops`: effective `single` (F1) and `batch` (FB, default the same), 0.001 to 1000000. A token of prompt
/// or completion takes `2 × parameters / F1`; the batch speed-up is `FB / F1`.
fn read_tflops(s: &mut Section<'_>, field: &Field<'_>, billions: Option<f64>) -> Throughput {
    let range = 1e-3..=1e6;
    let (single, batch) = field
        .section(|s| {
            let single = s.require("single", "F1 in effective TFLOPS").and_then(|f| f.float(&range, ""));
            let single = single.unwrap_or(1.0);
            let batch = s.float("batch", range.clone(), single);
            if batch < single {
                s.fault("batch", "below `single`", "at least `single`");
            }
            (single, batch)
        })
        .unwrap_or((1.0, 1.0));
    if billions.is_none() {
        s.fault("parameters_b", "required with `tflops`", "0.001 to 100000");
    }
    let tokens_per_s = TokensPerSec(single * 1e12 / (2.0 * billions.unwrap_or(1.0) * 1e9));
    Throughput {
        prefill: tokens_per_s,
        decode: tokens_per_s,
        batch_speedup: (batch / single).max(1.0),
        max_concurrency: s.count("max_concurrency", 1..=65_536, TFLOPS_CONCURRENCY),
        cached_prompt: Tokens::ZERO,
    }
}

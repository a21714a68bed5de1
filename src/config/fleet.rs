//! The fleet (`nodes`): machines, the HTTP servers on them and the models those offer.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::address::{ALLOWED_URL, BaseUrl, base_url, parse_base_url};
use super::model::{Model, read_model};
use super::name::plain_name;
use super::node::{NodeConfig, read_network, read_power};
use super::reader::{Field, Section};
use super::secret::Secret;
use crate::domain::destination::{Destination, DestinationId, EndpointOrd, Network, NodeClass};
use crate::endpoint::EndpointKind;
use crate::profiler::speed::Given;

/// Everything requests can be sent to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FleetConfig {
    /// HTTP servers; index = [`EndpointOrd`].
    pub endpoints: Vec<EndpointConfig>,
    /// Node–model pairs, ids unique, in order of the file; index = ordinal of the destination.
    pub destinations: Vec<Destination>,
    /// Which throughput figures of each destination were given; the others are defaults.
    pub given: Vec<Given>,
    /// Machines, names unique.
    pub nodes: Vec<NodeConfig>,
}

/// `nodes[].endpoints[]`: one HTTP server.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointConfig {
    /// Name of its node.
    pub node: Arc<str>,
    /// `name`: part of the ids of its destinations where given; needed where two endpoints of a node offer
    /// the same model.
    pub name: Option<Arc<str>>,
    /// `url` (required).
    pub url: BaseUrl,
    /// `kind` (required).
    pub kind: EndpointKind,
    /// The value of the variable named by `api_key_env`, sent as a bearer token.
    pub api_key: Option<Secret>,
    /// `inject_usage`: whether streams are asked for token counts that their clients did not ask for (and do
    /// not see); default true, but false for llama.cpp, which counts by itself.
    pub inject_usage: bool,
    /// `max_inflight`: requests the router may have outstanding here, at least every model's
    /// `max_concurrency`, up to 1000000; default twice the `max_concurrency` of its models, added up.
    pub max_inflight: u32,
}

/// What the rest of the configuration may refer to.
#[derive(Debug, Default)]
pub(super) struct FleetNames {
    /// Public model names.
    pub(super) models: BTreeSet<Arc<str>>,
    /// Classes some node is of.
    pub(super) classes: BTreeSet<NodeClass>,
    /// Whether a model or node could not be read, so that a name not found here is no fault of its own.
    pub(super) incomplete: bool,
}

/// What a node says of itself, handed down to its destinations.
struct Machine {
    config: NodeConfig,
    network: Network,
}

/// An endpoint while its models are read.
struct Server<'m> {
    machine: &'m Machine,
    name: Option<Arc<str>>,
    kind: EndpointKind,
    /// `max_inflight`, where given.
    max_inflight: Option<u32>,
}

impl Server<'_> {
    fn max_inflight_of(&self, model: &Model) -> u32 {
        self.max_inflight.unwrap_or_else(|| model.throughput.max_concurrency.saturating_mul(2))
    }
}

/// Reads `nodes`, which must hold at least one machine.
pub(super) fn read_fleet(root: &mut Section<'_>) -> (FleetConfig, FleetNames) {
    let mut reader = FleetReader::default();
    let nodes = root.require("nodes", ALLOWED_NODES).map(|field| field.filled_list(ALLOWED_NODES));
    for node in nodes.unwrap_or_default() {
        reader.names.incomplete |= node.section(|s| reader.read_node(s)).is_none();
    }
    reader.names.incomplete |= reader.fleet.nodes.is_empty();
    (reader.fleet, reader.names)
}

const ALLOWED_NODES: &str = "a list of at least one node with `endpoints`";
const ALLOWED_ENDPOINTS: &str = "a list of at least one endpoint with `url`, `kind` and `models`";
const ALLOWED_MODELS: &str = "a list of at least one model with `name`";

#[derive(Default)]
struct FleetReader {
    fleet: FleetConfig,
    names: FleetNames,
    ids: BTreeSet<DestinationId>,
}

impl FleetReader {
    fn read_node(&mut self, s: &mut Section<'_>) {
        let class = s.get("class").map(|field| field.choice(NodeClass::ALL));
        self.names.incomplete |= class == Some(None);
        let class = class.flatten().unwrap_or(NodeClass::Edge);
        let given = s.get("name").map(|field| plain_name(&field));
        let (power, power_sources) = s.section("power", |s| read_power(s, class));
        let (network, measure) = s.section("network", |s| read_network(s, class));
        let endpoints =
            s.require("endpoints", ALLOWED_ENDPOINTS).map(|field| field.filled_list(ALLOWED_ENDPOINTS));
        let endpoints = endpoints.unwrap_or_default();
        let name = given.unwrap_or_else(|| endpoints.first().and_then(name_from_url)).unwrap_or_default();
        if !name.is_empty() && self.fleet.nodes.iter().any(|node| node.name == name) {
            s.fault("name", format!("another node is called `{name}`"), "a name of its own for each node");
        }
        let config = NodeConfig { name, class, power_sources, power, measure };
        let machine = Machine { config, network };
        self.names.classes.insert(class);
        self.names.incomplete |= endpoints.is_empty();
        for endpoint in endpoints {
            self.names.incomplete |= endpoint.section(|s| self.read_endpoint(s, &machine)).is_none();
        }
        self.fleet.nodes.push(machine.config);
    }

    fn read_endpoint(&mut self, s: &mut Section<'_>, machine: &Machine) {
        let faults_before = s.fault_count();
        let name = s.get("name").and_then(|field| plain_name(&field));
        let url = s.require("url", ALLOWED_URL).and_then(|field| base_url(&field));
        let kinds = EndpointKind::ALL.iter().map(EndpointKind::to_string).collect::<Vec<_>>().join(", ");
        let kind = s.require("kind", &kinds).and_then(|field| field.choice(EndpointKind::ALL));
        let api_key = s.get("api_key_env").and_then(|field| field.env()).map(Secret::new);
        let max_inflight = s.get("max_inflight").and_then(|field| field.count(1..=1_000_000));
        let kind_or_any = kind.unwrap_or(EndpointKind::OpenAi);
        let inject_usage = s.flag("inject_usage", kind_or_any.default_inject_usage());
        let models = s.require("models", ALLOWED_MODELS).map(|field| field.filled_list(ALLOWED_MODELS));
        let models = models.unwrap_or_default();
        self.names.incomplete |= models.is_empty();
        let server = Server { machine, name, kind: kind_or_any, max_inflight };
        let (mut inflight_sum, mut slots_max) = (0_u32, 0);
        for item in models {
            let model = item.section(|s| self.read_destination(s, &server)).flatten();
            self.names.incomplete |= model.is_none();
            if let Some(model) = model {
                inflight_sum = inflight_sum.saturating_add(server.max_inflight_of(&model));
                slots_max = slots_max.max(model.throughput.max_concurrency);
            }
        }
        if s.fault_count() == faults_before && max_inflight.is_some_and(|inflight| inflight < slots_max) {
            let problem = format!("below the {slots_max} requests of `max_concurrency` that run at once");
            s.fault("max_inflight", problem, &format!("{slots_max} to 1000000"));
        }
        if let (Some(url), Some(_)) = (url, kind) {
            let Server { name, kind, .. } = server;
            let node = Arc::clone(&machine.config.name);
            let max_inflight = max_inflight.unwrap_or(inflight_sum);
            self.fleet.endpoints.push(EndpointConfig {
                node,
                name,
                url,
                kind,
                api_key,
                inject_usage,
                max_inflight,
            });
        }
    }

    fn read_destination(&mut self, s: &mut Section<'_>, server: &Server<'_>) -> Option<Model> {
        let Machine { config, network } = server.machine;
        let model = read_model(s, server.kind, config.class)?;
        self.names.models.insert(Arc::clone(&model.name));
        let id = DestinationId::new(&config.name, server.name.as_deref(), &model.name);
        if !config.name.is_empty() && !self.ids.insert(id.clone()) {
            let mend =
                "each model once per endpoint, and a `name` for endpoints of one node that share a model";
            s.fault("name", format!("a second destination `{id}`"), mend);
        }
        self.fleet.given.push(Given { max_inflight: server.max_inflight.is_some(), ..model.given });
        self.fleet.destinations.push(Destination {
            id,
            node: Arc::clone(&config.name),
            class: config.class,
            // The endpoint is pushed after its models; there are fewer than 2^32 in a file of 1 MiB.
            endpoint: EndpointOrd(u32::try_from(self.fleet.endpoints.len()).unwrap_or(u32::MAX)),
            model: Arc::clone(&model.name),
            upstream_model: Arc::clone(&model.upstream),
            context: model.context,
            capabilities: model.capabilities,
            price: model.price,
            throughput: model.throughput,
            network: *network,
            power: config.power,
            quality_prior: model.quality_prior,
            max_inflight: server.max_inflight_of(&model),
        });
        Some(model)
    }
}

/// Host and port of an endpoint's URL, the name of a node that has none.
fn name_from_url(endpoint: &Field<'_>) -> Option<Arc<str>> {
    let url = parse_base_url(endpoint.peek("url")?).ok()?;
    Some(url.authority.as_str().into())
}

//! What watches the endpoints and the paths to them.

use std::sync::Arc;

use prometheus::Registry;

use crate::config::{Config, NetworkMeasure, NodeConfig};
use crate::domain::{Destination, DestinationOrd, EndpointOrd};
use crate::endpoint::EndpointPool;
use crate::profiler::engine::EngineProfiler;
use crate::profiler::network::{NetworkProfiler, NodePath};
use crate::profiler::node::{FleetHealth, HealthParams};
use crate::profiler::power::PowerProfiler;
use crate::profiler::prefix::PrefixProfiler;
use crate::profiler::quality::feedback::Feedback;
use crate::profiler::speed::SpeedProfiler;
use crate::profiler::view::{Sources, Viewer};
use crate::request_manager::World;

/// What was learnt with the configuration before.
pub(super) struct Before {
    pub(super) speeds: SpeedProfiler,
    pub(super) destinations: Arc<[Destination]>,
}

/// The profilers of a fleet; none does anything yet. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Profilers {
    pub(super) health: FleetHealth,
    pub(super) engines: EngineProfiler,
    pub(super) paths: NetworkProfiler,
    pub(super) speeds: SpeedProfiler,
    pub(super) prefixes: PrefixProfiler,
    n_nodes: usize,
}

impl Profilers {
    pub(super) fn new(
        config: &Config,
        pool: &Arc<EndpointPool>,
        destinations: &Arc<[Destination]>,
        (registry, before): (&Registry, Option<&Before>),
    ) -> prometheus::Result<Self> {
        let seed = config.routing.seed;
        let health = FleetHealth::new(Arc::clone(pool), health_params(config), registry)?;
        let known = (destinations, &*config.fleet.given);
        let engines = EngineProfiler::new(Arc::clone(pool), health.clone(), known, seed, registry)?;
        let paths: Vec<_> = config.fleet.nodes.iter().map(|node| node_path(config, node)).collect();
        let n_nodes = paths.len();
        let paths = NetworkProfiler::new(Arc::clone(pool), paths, seed, registry)?;
        let fleet = (&**destinations, &*config.fleet.given);
        let speeds = match before {
            Some(Before { speeds, destinations: earlier }) => {
                let position = |d: &Destination| earlier.iter().position(|other| other.id == d.id);
                let was = |d| u32::try_from(position(d)?).ok().map(DestinationOrd);
                let was: Vec<_> = destinations.iter().map(was).collect();
                SpeedProfiler::after(speeds, &was, fleet, registry)?
            }
            None => SpeedProfiler::new(fleet.0, fleet.1, registry)?,
        };
        let prefixes = PrefixProfiler::new(config.routing.prefix_cache, destinations, registry)?;
        Ok(Self { health, engines, paths, speeds, prefixes, n_nodes })
    }

    /// The endpoints with what is known of them, for those who send requests there.
    pub(super) fn world(
        &self,
        pool: &Arc<EndpointPool>,
        power: &PowerProfiler,
        feedback: &Feedback,
    ) -> World {
        World {
            feedback: feedback.clone(),
            pool: Arc::clone(pool),
            health: self.health.clone(),
            speeds: self.speeds.clone(),
            prefixes: self.prefixes.clone(),
            power: power.clone(),
            loads: self.engines.loads().clone(),
            paths: self.paths.clone(),
        }
    }

    /// Composes of what all of them measure the view that plans are made with.
    pub(super) fn viewer(&self, config: &Config, destinations: &Arc<[Destination]>) -> Viewer {
        let nodes: Vec<_> = config.fleet.nodes.iter().map(|node| Arc::clone(&node.name)).collect();
        let sources = Sources {
            speeds: self.speeds.clone(),
            prefixes: self.prefixes.clone(),
            engines: self.engines.subscribe(),
            loads: self.engines.loads().subscribe(),
            caps: self.engines.caps().subscribe(),
            paths: self.paths.subscribe(),
            health: self.health.clone(),
        };
        Viewer::new(Arc::clone(destinations), &nodes, sources)
    }

    /// Watches `endpoint`, for ever.
    pub(super) async fn watch_endpoint(self, endpoint: EndpointOrd) {
        tokio::join!(self.health.watch_endpoint(endpoint), self.engines.watch_endpoint(endpoint));
    }

    /// Watches the paths to the nodes, for ever.
    pub(super) async fn watch_paths(self) {
        let watches = (0..self.n_nodes).map(|node| self.paths.clone().watch_node(node));
        futures_util::future::join_all(watches).await;
    }
}

fn health_params(config: &Config) -> HealthParams {
    HealthParams { breaker: config.breaker, cooling: config.cooling, seed: config.routing.seed }
}

fn node_path(config: &Config, node: &NodeConfig) -> NodePath {
    let endpoints = (0..).map(EndpointOrd).zip(&config.fleet.endpoints);
    NodePath {
        name: Arc::clone(&node.name),
        endpoints: endpoints.filter(|(_, e)| e.node == node.name).map(|(ord, _)| ord).collect(),
        is_measured: node.measure == NetworkMeasure::Auto,
    }
}

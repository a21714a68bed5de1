//! The network profiler: how far away nodes are and how fast bytes move to and from them, as measured.
//!
//! Round trips are the time a TCP connection takes to stand: every 15 s the least of three, so that a router that
//! was slow to look costs nothing, averaged ([`Measured`]). Goodput is that of real transfers of 256 KiB and more;
//! smaller ones mostly measure buffers. Until something is measured the configured figure stands, and with
//! `network.measure: off` it stands for ever.

mod measured;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::{GaugeVec, Opts, Registry};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::debug;

use crate::domain::EndpointOrd;
use crate::domain::destination::Network;
use crate::domain::named::named_enum;
use crate::endpoint::EndpointPool;
use crate::units::{Bytes, BytesPerSec, Seconds};

pub use measured::{Measured, Quantity};

/// Time between two measurements of a node's round trip; each is up to a tenth longer or shorter.
const PROBE_EVERY: Duration = Duration::from_secs(15);
const JITTER: f64 = 0.1;
/// Connections of which the fastest counts.
const CONNECTS: usize = 3;
/// Least size of a transfer whose goodput counts.
pub const TRANSFER_MIN: Bytes = Bytes(262_144.0);

named_enum! {
    /// Which way bytes move, seen from the router.
    pub enum Direction {
        /// Towards the node.
        Up = "up",
        /// From the node.
        Down = "down",
    }
}

/// The measured path to one node; `None` = not measured (yet), the configured figure stands.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PathReading {
    /// Round-trip time.
    pub rtt: Option<Measured<Seconds>>,
    /// Goodput towards the node.
    pub uplink: Option<Measured<BytesPerSec>>,
    /// Goodput from the node.
    pub downlink: Option<Measured<BytesPerSec>>,
}

impl PathReading {
    /// `configured` with what was measured in its place.
    #[must_use]
    pub fn applied_to(&self, configured: &Network) -> Network {
        Network {
            rtt: self.rtt.map_or(configured.rtt, |rtt| rtt.value),
            uplink: self.uplink.map_or(configured.uplink, |uplink| uplink.value),
            downlink: self.downlink.map_or(configured.downlink, |downlink| downlink.value),
            ..*configured
        }
    }
}

/// A node as far as the path to it goes.
#[derive(Debug, Clone)]
pub struct NodePath {
    /// Its name.
    pub name: Arc<str>,
    /// Its endpoints; the first one is connected to.
    pub endpoints: Vec<EndpointOrd>,
    /// Whether it is measured (`network.measure`).
    pub is_measured: bool,
}

/// Measures the paths to the nodes. Clones share what was measured.
#[derive(Debug, Clone)]
pub struct NetworkProfiler {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pool: Arc<EndpointPool>,
    nodes: Vec<NodePath>,
    /// The node of each endpoint.
    node_of: Vec<Option<usize>>,
    /// Never held across an await.
    readings: Mutex<Vec<PathReading>>,
    published: watch::Sender<Arc<[PathReading]>>,
    rtt: GaugeVec,
    tls_handshake: GaugeVec,
    goodput: GaugeVec,
    seed: u64,
}

impl NetworkProfiler {
    /// A profiler of the paths to `nodes`, with nothing measured yet. `seed` is that of the jitter.
    ///
    /// # Errors
    /// When the metrics are registered already.
    pub fn new(
        pool: Arc<EndpointPool>,
        nodes: Vec<NodePath>,
        seed: u64,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<GaugeVec> {
            let gauge = GaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let node_of = |endpoint| nodes.iter().position(|node| node.endpoints.contains(&endpoint));
        let shared = Shared {
            node_of: pool.iter().map(|(endpoint, _)| node_of(endpoint)).collect(),
            readings: Mutex::new(vec![PathReading::default(); nodes.len()]),
            published: watch::Sender::new(vec![PathReading::default(); nodes.len()].into()),
            rtt: gauge(
                "cema_node_rtt_seconds",
                "Round trip to the node, as TCP connections to its first endpoint take to stand.",
                &["node"],
            )?,
            tls_handshake: gauge(
                "cema_node_tls_handshake_seconds",
                "Time of the last TLS handshake with the node's first endpoint, after the connection stood.",
                &["node"],
            )?,
            goodput: gauge(
                "cema_node_goodput_bytes_per_second",
                "Goodput of real transfers to (up) and from (down) the node, of 256 KiB and more.",
                &["node", "direction"],
            )?,
            pool,
            nodes,
            seed,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Follows the readings, in the order of the nodes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<[PathReading]>> {
        self.shared.published.subscribe()
    }

    /// Measures the round trip to `node` over and over; ends at once where it is not to be measured.
    pub async fn watch_node(self, node: usize) {
        let Some(path) = self.shared.nodes.get(node).filter(|path| path.is_measured) else { return };
        let Some(endpoint) = path.endpoints.first() else { return };
        let mut jitter = ChaCha8Rng::seed_from_u64(self.shared.seed.wrapping_add(node as u64));
        loop {
            self.probe(node, *endpoint).await;
            sleep(PROBE_EVERY.mul_f64(jitter.random_range(1.0 - JITTER..=1.0 + JITTER))).await;
        }
    }

    async fn probe(&self, node: usize, endpoint: EndpointOrd) {
        let mut least: Option<Duration> = None;
        for n in 0..CONNECTS {
            match self.shared.pool.connect_time(endpoint, n == 0).await {
                Ok(time) => {
                    least = Some(least.map_or(time.tcp, |least| least.min(time.tcp)));
                    if let Some(tls) = time.tls {
                        let name = &self.shared.nodes[node].name;
                        self.shared.tls_handshake.with_label_values(&[name]).set(tls.as_secs_f64());
                    }
                }
                Err(error) => {
                    // That an endpoint cannot be reached is for its health to say.
                    debug!(node = &*self.shared.nodes[node].name, %error, "round trip not measured");
                    break;
                }
            }
        }
        let Some(least) = least else { return };
        let sample = Seconds(least.as_secs_f64());
        let reading = self.update(node, |path, now| path.rtt = Some(Measured::with(path.rtt, sample, now)));
        if let Some(rtt) = reading.rtt {
            self.shared.rtt.with_label_values(&[&self.shared.nodes[node].name]).set(rtt.value.0);
        }
    }

    /// So many bytes moved to or from `endpoint` in so much time. Transfers below [`TRANSFER_MIN`] do not count.
    pub fn transferred(&self, endpoint: EndpointOrd, direction: Direction, bytes: Bytes, time: Seconds) {
        let node = self.shared.node_of.get(endpoint.idx()).copied().flatten();
        let Some(node) = node.filter(|node| self.shared.nodes[*node].is_measured) else { return };
        if bytes < TRANSFER_MIN || time <= Seconds::ZERO {
            return;
        }
        let sample = BytesPerSec(bytes.0 / time.0);
        let reading = self.update(node, |path, now| {
            let figure = match direction {
                Direction::Up => &mut path.uplink,
                Direction::Down => &mut path.downlink,
            };
            *figure = Some(Measured::with(*figure, sample, now));
        });
        let figure = match direction {
            Direction::Up => reading.uplink,
            Direction::Down => reading.downlink,
        };
        if let Some(goodput) = figure {
            let labels = [&*self.shared.nodes[node].name, direction.as_str()];
            self.shared.goodput.with_label_values(&labels).set(goodput.value.0);
        }
    }

    /// Changes the reading of `node`, publishes it and returns it.
    fn update(&self, node: usize, change: impl FnOnce(&mut PathReading, Instant)) -> PathReading {
        // Whoever panicked with the lock left readings that are as good as any.
        let mut readings = self.shared.readings.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut readings[node], Instant::now());
        // Under the lock, so that what is published last is what is true.
        self.shared.published.send_replace(readings.clone().into());
        readings[node]
    }
}

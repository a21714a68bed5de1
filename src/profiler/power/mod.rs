//! Power of the nodes, and what requests really drew.
//!
//! Every node is sampled about once a second. Its configured sources are asked in order (`chain`): NVML of the router's
//! host (`nvml`), metrics exporters (`scrape`), energy counters of either before sampled power; with none of them,
//! the configured watts, which are modelled. Readings become the energy of intervals (`series`), which is shared among
//! the requests that were in flight (`energy`). A request is settled with the first reading after its end, so its
//! joules come a moment after its answer; [`PowerProfiler::settled`] tells them.
//!
//! [`agent`] is the other end: it exports what a node can measure of itself.

pub mod agent;
mod chain;
mod energy;
mod hwmon;
mod meter;
mod metrics;
mod nvml;
mod params;
mod rapl;
mod scrape;
mod series;
mod source;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::Registry;
use tokio::sync::broadcast;
use tokio::time::Instant;
use tracing::debug;

use crate::domain::destination::Power;
use crate::domain::named::named_enum;
use crate::domain::{Destination, DestinationOrd};
use crate::endpoint::page::PageClient;
use crate::units::{Joules, Seconds, Tokens, Watts};

use energy::{EnergyLedger, WorkId};
use metrics::PowerMetrics;
use nvml::NvmlThreads;
use source::Source;

pub use energy::ExpectedWork;
pub use meter::NodeMeter;
pub use params::{NodePower, PowerSource, ScrapedMetric};

/// What is settled is kept this far back for whoever reads it slowly.
const SETTLED_KEPT: usize = 4_096;
/// Requests of a node that may wait for a reading; beyond, they are settled without.
const ENDED_MAX: usize = 65_536;
/// Label of the configured watts.
const STATIC: &str = "static";

named_enum! {
    /// Where a figure of energy comes from.
    pub enum EnergySource {
        /// A meter of the node.
        Measured = "measured",
        /// Configured watts over the time of service (Eq. 3).
        Modelled = "modelled",
    }
}

/// Why power cannot be profiled.
#[derive(Debug, thiserror::Error)]
pub enum PowerError {
    /// An exporter needs TLS.
    #[error("cannot read the system's certificates for an https power source")]
    Certificates(#[source] io::Error),
    /// NVML needs a thread.
    #[error("cannot start a thread for power readings")]
    Thread(#[source] io::Error),
    /// Its metrics are there already.
    #[error(transparent)]
    Metrics(#[from] prometheus::Error),
}

/// What one request drew at one destination; one that failed over has several.
#[derive(Debug, Clone, PartialEq)]
pub struct Settled {
    /// The request.
    pub request_id: Arc<str>,
    /// Where it was sent.
    pub destination: DestinationOrd,
    /// What it drew.
    pub joules: Joules,
    /// How that is known.
    pub source: EnergySource,
}

/// Power of a node now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeWatts {
    /// Mean since the reading before, or at the last reading.
    pub watts: Watts,
    /// `nvml`, `scrape`, or `static` where it is modelled.
    pub source: &'static str,
}

/// Power and energy of the fleet. Clones share it.
#[derive(Debug, Clone)]
pub struct PowerProfiler {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    started: Instant,
    nodes: Vec<Node>,
    /// Position of each destination's node.
    node_of: Vec<Option<usize>>,
    metrics: PowerMetrics,
    settled: broadcast::Sender<Settled>,
}

#[derive(Debug)]
struct Node {
    name: Arc<str>,
    configured: Power,
    /// Held for microseconds, never across an await.
    books: Mutex<Books>,
}

#[derive(Debug)]
struct Books {
    ledger: EnergyLedger<Ticket>,
    /// Whether a meter answers.
    is_metered: bool,
    now: Option<NodeWatts>,
}

/// What a request is told by when it is settled.
#[derive(Debug)]
struct Ticket {
    request_id: Arc<str>,
    destination: DestinationOrd,
    modelled: Option<Joules>,
}

impl PowerProfiler {
    /// Profiles `nodes`, on which `destinations` are. Nothing is read until each of the meters is [run](NodeMeter::run).
    ///
    /// # Errors
    /// When the metrics are registered already, a thread for NVML cannot be started, or an exporter needs TLS and the
    /// system's certificates cannot be read.
    pub fn new(
        nodes: Vec<NodePower>,
        destinations: &[Destination],
        registry: &Registry,
    ) -> Result<(Self, Vec<NodeMeter>), PowerError> {
        let urls = nodes.iter().flat_map(|node| &node.sources).filter_map(|source| match source {
            PowerSource::Scrape { url, .. } => Some(url),
            PowerSource::Nvml { .. } => None,
        });
        let pages = PageClient::new(urls).map_err(PowerError::Certificates)?;
        let mut nvml = NvmlThreads::default();
        let mut sources = Vec::new();
        for node in &nodes {
            let of_node = node.sources.iter().map(|configured| Source::all(configured, &pages, &mut nvml));
            let of_node = of_node.collect::<Result<Vec<_>, _>>().map_err(PowerError::Thread)?;
            sources.push(of_node.into_iter().flatten().collect());
        }
        let position = |d: &Destination| nodes.iter().position(|node| node.name == d.node);
        let node_of = destinations.iter().map(position).collect();
        let shared = Arc::new(Shared {
            started: Instant::now(),
            node_of,
            nodes: nodes.into_iter().map(Node::new).collect(),
            metrics: PowerMetrics::register(registry, destinations)?,
            settled: broadcast::Sender::new(SETTLED_KEPT),
        });
        let meters = sources.into_iter().enumerate();
        let meters =
            meters.map(|(node, sources)| NodeMeter::new(Arc::clone(&shared), node, sources)).collect();
        Ok((Self { shared }, meters))
    }

    /// Follows what requests drew, from now on. A reader that falls too far behind is told how much it missed.
    #[must_use]
    pub fn settled(&self) -> broadcast::Receiver<Settled> {
        self.shared.settled.subscribe()
    }

    /// Power of the node called `name`; `None` before its first reading and for a node that is not known.
    #[must_use]
    pub fn watts(&self, name: &str) -> Option<NodeWatts> {
        let node = self.shared.nodes.iter().find(|node| &*node.name == name)?;
        node.books().now
    }

    /// The request `request_id` is sent to `destination` at `now`.
    #[must_use]
    pub fn begin(
        &self,
        now: Instant,
        request_id: Arc<str>,
        destination: DestinationOrd,
        expected: ExpectedWork,
    ) -> EnergyShare {
        let now = self.shared.since_start(now);
        let work = self.shared.node_of.get(destination.idx()).copied().flatten().map(|node| {
            let id = self.shared.nodes[node].books().ledger.begin(now, expected);
            (node, id)
        });
        let ticket = Ticket { request_id, destination, modelled: None };
        EnergyShare { shared: Arc::clone(&self.shared), work, ticket: Some(ticket) }
    }

    /// Settles what is over without waiting for a reading, as at the end of the router.
    pub fn settle_all(&self) {
        for node in &self.shared.nodes {
            let settled = node.books().ledger.settle(self.shared.now());
            self.shared.emit(settled);
        }
    }
}

/// A request's claim to a share of its node's energy. Dropped without an end, it was cut short.
#[derive(Debug)]
pub struct EnergyShare {
    shared: Arc<Shared>,
    work: Option<(usize, WorkId)>,
    /// Taken at the end.
    ticket: Option<Ticket>,
}

impl EnergyShare {
    /// The request is over at its destination by `now`. `tokens` (prompt and completion) are those that were counted; `modelled`
    /// is what it drew by the model, for where no meter tells.
    pub fn end(mut self, now: Instant, tokens: Option<Tokens>, modelled: Option<Joules>) {
        self.over(now, tokens, modelled);
    }

    fn over(&mut self, now: Instant, tokens: Option<Tokens>, modelled: Option<Joules>) {
        let Some(mut ticket) = self.ticket.take() else { return };
        ticket.modelled = modelled;
        let Some((node, id)) = self.work else { return self.shared.emit([(ticket, None)]) };
        let now = self.shared.since_start(now);
        let mut books = self.shared.nodes[node].books();
        if !books.is_metered && books.ledger.n_ended() == 0 {
            let drawn = books.ledger.end_unread(id, now);
            drop(books);
            return self.shared.emit([(ticket, drawn)]);
        }
        books.ledger.end(id, now, tokens, ticket);
        if books.is_metered && books.ledger.n_ended() <= ENDED_MAX {
            return;
        }
        let settled = books.ledger.settle(now);
        drop(books);
        self.shared.emit(settled);
    }
}

impl Drop for EnergyShare {
    fn drop(&mut self) {
        self.over(Instant::now(), None, None);
    }
}

impl Shared {
    fn now(&self) -> Seconds {
        self.since_start(Instant::now())
    }

    fn since_start(&self, at: Instant) -> Seconds {
        Seconds(at.duration_since(self.started).as_secs_f64())
    }

    /// Counts what requests drew, and tells whoever follows.
    fn emit(&self, settled: impl IntoIterator<Item = (Ticket, Option<Joules>)>) {
        for (Ticket { request_id, destination, modelled }, measured) in settled {
            let (joules, source) = match (measured, modelled) {
                (Some(joules), _) => (joules, EnergySource::Measured),
                (None, Some(joules)) => (joules, EnergySource::Modelled),
                // Nothing came of it and nothing measured it.
                (None, None) => continue,
            };
            self.metrics.settled(destination.idx(), joules, source);
            debug!(request_id = &*request_id, joules = joules.0, source = source.as_str(), "energy settled");
            // An error says that nobody follows.
            let _ = self.settled.send(Settled { request_id, destination, joules, source });
        }
    }
}

impl Node {
    fn new(node: NodePower) -> Self {
        let ledger = EnergyLedger::new(node.configured.idle);
        let books = Mutex::new(Books { ledger, is_metered: false, now: None });
        Self { name: node.name, configured: node.configured, books }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Whoever panicked with the lock left books that are as good as any.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! The assignment problem of one batch: dense R × M tables, row-major, and the state of every destination.
//!
//! Rows are requests in arrival order, columns destinations in fleet order. A [`Problem`] that exists is
//! valid: every number is finite and not negative, every request has a legal destination, and the caps leave
//! a place for every request.

mod build;
mod deadline;
mod sum;

pub use build::{BatchItem, CostModels};
pub use deadline::EarliestFinish;
pub use sum::SumTables;

use thiserror::Error;

use crate::domain::{DestinationId, DestinationOrd, NodeClass, Weights};
use crate::routing::places::{Caps, Places, Shortage};
use crate::units::{Joules, Quality, Seconds, Usd};

/// Largest R × M a problem may have, 4,096 requests × 1,024 destinations. Five tables of eight bytes a cell
/// and the solver's copies bound memory at about 1 GB.
pub const CELLS_MAX: usize = 1 << 22;

/// A quality loss this little below zero is the rounding of `1 − q̂` and taken for zero.
const LOSS_ROUNDING: f64 = 1e-12;

/// Destinations a message names one by one.
const IDS_NAMED: usize = 4;

/// What the tables need to know of one destination.
#[derive(Debug, Clone, PartialEq)]
pub struct DestinationLoad {
    /// Unique name.
    pub id: DestinationId,
    /// Where the node stands, if known.
    pub class: Option<NodeClass>,
    /// B_d, wall-clock seconds of unfinished work.
    pub backlog_s: f64,
    /// k_d = F_B / F_1, positive.
    pub batch_speedup: f64,
    /// ν_d: round trip plus mean transfer of the batch, seconds.
    pub network_s: f64,
    /// Requests outstanding there.
    pub inflight: u32,
    /// Requests the engine runs at once.
    pub max_concurrency: u32,
    /// The most requests of this batch that may go there; `None` for any number.
    pub cap: Option<u32>,
}

/// The prompt clusters of UniRoute and how often each destination errs on them.
#[derive(Debug, Clone, PartialEq)]
pub struct Clusters {
    /// The cluster of each request, R entries.
    pub of_request: Vec<usize>,
    /// Mean quality loss per cluster and destination, K × M, row-major.
    pub error: Vec<f64>,
}

/// The parts of a problem, before validation. Tables are R × M, row-major.
#[derive(Debug, Clone)]
pub struct ProblemTables {
    /// `1 − q̂(r, d)`.
    pub quality_loss: Vec<f64>,
    /// C_rd, US dollars (Eq. 2).
    pub cost_usd: Vec<f64>,
    /// E_rd, joules (Eq. 3).
    pub energy_j: Vec<f64>,
    /// s_rd, seconds alone on the endpoint.
    pub service_s: Vec<f64>,
    /// Time on the wire of the request itself, seconds.
    pub transfer_s: Vec<f64>,
    /// Whether r may go to d.
    pub legal: Vec<bool>,
    /// Predicted length of each request in tokens, R entries; orders the requests in Algorithm 2.
    pub length_tokens: Vec<f64>,
    /// The M columns.
    pub destinations: Vec<DestinationLoad>,
    /// ω of each request, R entries.
    pub weights: Vec<Weights>,
    /// Requests routed before this batch: where `round_robin` goes on.
    pub first_request_number: u64,
    /// Clusters for `uniroute`.
    pub clusters: Option<Clusters>,
    /// For time term `sum`; without it time is the makespan.
    pub sum: Option<SumTables>,
}

/// A validated assignment problem.
#[derive(Debug, Clone)]
pub struct Problem {
    tables: ProblemTables,
    /// Only where a cap can bind.
    caps: Option<Caps>,
}

/// Why tables do not make a problem.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ProblemError {
    /// R or M is zero.
    #[error("the problem has no {0}")]
    Empty(&'static str),
    /// R × M is beyond [`CELLS_MAX`].
    #[error(
        "{requests} requests x {destinations} destinations is more than {CELLS_MAX} cells; split the batch"
    )]
    TooLarge {
        /// R.
        requests: usize,
        /// M.
        destinations: usize,
    },
    /// A table has the wrong number of entries.
    #[error("{table} has {got} entries where {want} are needed")]
    Size {
        /// Name of the table.
        table: &'static str,
        /// Entries found.
        got: usize,
        /// Entries needed.
        want: usize,
    },
    /// A cell is negative, infinite or not a number.
    #[error("{table} of request {request} at {destination} is {value}; it must be finite and not negative")]
    Cell {
        /// Name of the table.
        table: &'static str,
        /// Row.
        request: usize,
        /// Column.
        destination: DestinationId,
        /// What was found.
        value: f64,
    },
    /// A destination's figure is out of range.
    #[error("{field} of destination {destination} is {value}; it must be finite and {range}")]
    Destination {
        /// Column.
        destination: DestinationId,
        /// Name of the figure.
        field: &'static str,
        /// What was found.
        value: f64,
        /// What is allowed.
        range: &'static str,
    },
    /// Two destinations share an id.
    #[error("destination id {0} occurs twice; ids must be unique")]
    DuplicateId(DestinationId),
    /// A request may go nowhere.
    #[error("request {0} has no legal destination")]
    NoLegalDestination(usize),
    /// The caps leave too few places for some requests.
    #[error(
        "{requests} requests, request {request} among them, may only go to {destinations}, where the caps \
         leave {places} places; raise a cap or split the batch"
    )]
    CapsTooTight {
        /// The first request without a place.
        request: usize,
        /// Requests that compete for the places.
        requests: usize,
        /// The destinations they may go to: the first few, and how many more.
        destinations: String,
        /// Places there.
        places: usize,
    },
    /// Weights are negative, not finite, or sum to zero.
    #[error("the weights of request {0} must be finite, not negative, and at least one of them positive")]
    Weights(usize),
    /// ω_T of those outside the batch is negative or not finite.
    #[error("sum.others_time_weight is {0}; it must be finite and not negative")]
    OthersTimeWeight(f64),
    /// A request names a cluster without errors, or the error table is ragged.
    #[error("request {request} is of cluster {cluster}, but there are {clusters} clusters")]
    Cluster {
        /// Row.
        request: usize,
        /// The cluster it names.
        cluster: usize,
        /// Clusters with an error row.
        clusters: usize,
    },
}

impl Problem {
    /// Validates tables into a problem.
    ///
    /// # Errors
    /// The first fault found, naming the table, row and column.
    pub fn new(mut tables: ProblemTables) -> Result<Self, ProblemError> {
        check_sizes(&tables)?;
        for loss in tables.quality_loss.iter_mut().filter(|loss| **loss < 0.0 && **loss > -LOSS_ROUNDING) {
            *loss = 0.0;
        }
        check_destinations(&tables)?;
        check_cells(&tables)?;
        check_rows(&tables)?;
        let caps = caps(&tables, |_| true).map_err(|shortage| caps_too_tight(&tables, &shortage))?;
        Ok(Self { tables, caps })
    }

    /// R, the number of requests; at least 1.
    #[must_use]
    pub fn n_requests(&self) -> usize {
        self.tables.weights.len()
    }

    /// M, the number of destinations; at least 1.
    #[must_use]
    pub fn n_destinations(&self) -> usize {
        self.tables.destinations.len()
    }

    /// The M columns.
    #[must_use]
    pub fn destinations(&self) -> &[DestinationLoad] {
        &self.tables.destinations
    }

    /// Column `d`.
    #[must_use]
    pub fn destination(&self, d: DestinationOrd) -> &DestinationLoad {
        &self.tables.destinations[d.idx()]
    }

    /// Whether request `r` may go to `d`.
    #[must_use]
    pub fn is_legal(&self, r: usize, d: DestinationOrd) -> bool {
        self.tables.legal[self.cell(r, d)]
    }

    /// Predicted quality of request `r` at `d`.
    #[must_use]
    pub fn quality(&self, r: usize, d: DestinationOrd) -> Quality {
        Quality(1.0 - self.tables.quality_loss[self.cell(r, d)])
    }

    /// Money of request `r` at `d` (Eq. 2).
    #[must_use]
    pub fn cost(&self, r: usize, d: DestinationOrd) -> Usd {
        Usd(self.tables.cost_usd[self.cell(r, d)])
    }

    /// Energy of request `r` at `d` (Eq. 3).
    #[must_use]
    pub fn energy(&self, r: usize, d: DestinationOrd) -> Joules {
        Joules(self.tables.energy_j[self.cell(r, d)])
    }

    /// Service time of request `r` alone at `d`.
    #[must_use]
    pub fn service(&self, r: usize, d: DestinationOrd) -> Seconds {
        Seconds(self.tables.service_s[self.cell(r, d)])
    }

    /// Time on the wire of request `r` at `d`, without the round trip.
    #[must_use]
    pub fn transfer(&self, r: usize, d: DestinationOrd) -> Seconds {
        Seconds(self.tables.transfer_s[self.cell(r, d)])
    }

    /// The tables of time term `sum`; `None` where time is the makespan.
    #[must_use]
    pub fn sum(&self) -> Option<&SumTables> {
        self.tables.sum.as_ref()
    }

    /// ω of request `r`.
    #[must_use]
    pub fn weights(&self, r: usize) -> Weights {
        self.tables.weights[r]
    }

    /// Every table, for loops over whole rows and for export.
    #[must_use]
    pub fn tables(&self) -> &ProblemTables {
        &self.tables
    }

    /// The caps, if any can bind.
    pub(in crate::routing) fn caps(&self) -> Option<&Caps> {
        self.caps.as_ref()
    }

    /// Places within the caps, all free.
    pub(in crate::routing) fn places(&self) -> Places<'_> {
        Places::new(self.caps())
    }

    /// The caps, if any can bind, of a batch that may only go to the destinations that `keep` accepts.
    ///
    /// # Errors
    /// Some requests have too few places there.
    pub(in crate::routing) fn caps_within(
        &self,
        keep: impl Fn(&DestinationLoad) -> bool,
    ) -> Result<Option<Caps>, Shortage> {
        caps(&self.tables, keep)
    }

    /// The legal destinations of request `r`, in fleet order.
    pub fn legal_destinations(&self, r: usize) -> impl Iterator<Item = DestinationOrd> + '_ {
        let m = self.n_destinations();
        let row = &self.tables.legal[r * m..(r + 1) * m];
        (0u32..).map(DestinationOrd).zip(row).filter(|(_, legal)| **legal).map(|(d, _)| d)
    }

    fn cell(&self, r: usize, d: DestinationOrd) -> usize {
        debug_assert!(d.idx() < self.n_destinations(), "destination out of range");
        r * self.n_destinations() + d.idx()
    }
}

fn check_sizes(tables: &ProblemTables) -> Result<(), ProblemError> {
    let (n, m) = (tables.weights.len(), tables.destinations.len());
    if n == 0 {
        return Err(ProblemError::Empty("requests"));
    }
    if m == 0 {
        return Err(ProblemError::Empty("destinations"));
    }
    let want = n.checked_mul(m).filter(|cells| *cells <= CELLS_MAX);
    let want = want.ok_or(ProblemError::TooLarge { requests: n, destinations: m })?;
    check_each_size(&[
        ("quality_loss", tables.quality_loss.len(), want),
        ("cost_usd", tables.cost_usd.len(), want),
        ("energy_j", tables.energy_j.len(), want),
        ("service_s", tables.service_s.len(), want),
        ("transfer_s", tables.transfer_s.len(), want),
        ("legal", tables.legal.len(), want),
        ("length_tokens", tables.length_tokens.len(), n),
    ])?;
    tables.sum.as_ref().map_or(Ok(()), |sum| check_each_size(&sum.sizes(n, m)))
}

/// Name, entries found and entries needed of some tables.
fn check_each_size(sizes: &[(&'static str, usize, usize)]) -> Result<(), ProblemError> {
    match sizes.iter().find(|(_, got, want)| got != want) {
        Some(&(table, got, want)) => Err(ProblemError::Size { table, got, want }),
        None => Ok(()),
    }
}

fn check_destinations(tables: &ProblemTables) -> Result<(), ProblemError> {
    for d in &tables.destinations {
        let not_negative = [("backlog_s", d.backlog_s), ("network_s", d.network_s)];
        if let Some((field, value)) = not_negative.into_iter().find(|(_, v)| !is_quantity(*v)) {
            let range = "not negative";
            return Err(ProblemError::Destination { destination: d.id.clone(), field, value, range });
        }
        if !(d.batch_speedup.is_finite() && d.batch_speedup > 0.0) {
            return Err(ProblemError::Destination {
                destination: d.id.clone(),
                field: "batch_speedup",
                value: d.batch_speedup,
                range: "positive",
            });
        }
    }
    let ids = tables.destinations.iter().map(|d| &d.id);
    // Fleets are often in the order of their names.
    if ids.clone().is_sorted_by(|a, b| a < b) {
        return Ok(());
    }
    let mut ids: Vec<&DestinationId> = ids.collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(ProblemError::DuplicateId(pair[0].clone())),
        None => Ok(()),
    }
}

fn check_cells(tables: &ProblemTables) -> Result<(), ProblemError> {
    let m = tables.destinations.len();
    let named = [
        ("quality_loss", &tables.quality_loss),
        ("cost_usd", &tables.cost_usd),
        ("energy_j", &tables.energy_j),
        ("service_s", &tables.service_s),
        ("transfer_s", &tables.transfer_s),
    ];
    for (table, cells) in named {
        if let Some(i) = cells.iter().position(|value| !is_quantity(*value)) {
            let destination = tables.destinations[i % m].id.clone();
            return Err(ProblemError::Cell { table, request: i / m, destination, value: cells[i] });
        }
    }
    tables.sum.as_ref().map_or(Ok(()), |sum| sum.check(&tables.destinations))
}

fn check_rows(tables: &ProblemTables) -> Result<(), ProblemError> {
    let m = tables.destinations.len();
    if let Some(r) = tables.legal.chunks(m).position(|row| !row.contains(&true)) {
        return Err(ProblemError::NoLegalDestination(r));
    }
    let unusable = |w: &Weights| {
        let parts = [w.quality, w.cost, w.energy, w.time];
        let sum: f64 = parts.iter().sum();
        !(parts.iter().all(|w| is_quantity(*w)) && sum.is_finite() && sum > 0.0)
    };
    if let Some(r) = tables.weights.iter().position(unusable) {
        return Err(ProblemError::Weights(r));
    }
    let Some(clusters) = &tables.clusters else { return Ok(()) };
    check_clusters(clusters, tables.weights.len(), m)
}

fn caps(tables: &ProblemTables, keep: impl Fn(&DestinationLoad) -> bool) -> Result<Option<Caps>, Shortage> {
    let n = tables.weights.len();
    let most = |load: &DestinationLoad| load.cap.map_or(n, |cap| n.min(cap as usize));
    if tables.destinations.iter().all(|load| most(load) == n) {
        return Ok(None);
    }
    let most: Vec<usize> = tables.destinations.iter().map(most).collect();
    let kept: Vec<bool> = tables.destinations.iter().map(keep).collect();
    let cells = tables.legal.iter().zip(kept.iter().cycle());
    Caps::new(cells.map(|(legal, kept)| *legal && *kept).collect(), most).map(Some)
}

fn caps_too_tight(tables: &ProblemTables, shortage: &Shortage) -> ProblemError {
    let ids = shortage.destinations.iter().map(|d| tables.destinations[*d].id.as_str());
    let mut destinations = ids.take(IDS_NAMED).collect::<Vec<_>>().join(", ");
    if let Some(more @ 1..) = shortage.destinations.len().checked_sub(IDS_NAMED) {
        destinations.push_str(&format!(" and {more} more"));
    }
    let (request, requests) = (shortage.request, shortage.requests);
    ProblemError::CapsTooTight { request, requests, destinations, places: requests - 1 }
}

fn check_clusters(clusters: &Clusters, n: usize, m: usize) -> Result<(), ProblemError> {
    if clusters.of_request.len() != n {
        let got = clusters.of_request.len();
        return Err(ProblemError::Size { table: "clusters.request", got, want: n });
    }
    let count = clusters.error.len() / m;
    if clusters.error.len() != count * m || !clusters.error.iter().all(|e| is_quantity(*e)) {
        let got = clusters.error.len();
        return Err(ProblemError::Size { table: "clusters.error", got, want: count * m });
    }
    match clusters.of_request.iter().position(|cluster| *cluster >= count) {
        Some(request) => {
            let cluster = clusters.of_request[request];
            Err(ProblemError::Cluster { request, cluster, clusters: count })
        }
        None => Ok(()),
    }
}

fn is_quantity(value: f64) -> bool {
    (0.0..=f64::MAX).contains(&value)
}

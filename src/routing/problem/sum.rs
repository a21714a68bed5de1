//! What the time term `sum` needs beside the tables: each request's work in its two parts, and what is at each
//! destination before the batch.

use crate::domain::{DestinationOrd, Work};
use crate::routing::completion::timeline::Timeline;

/// The tables of the time term `sum`. Rows are in the order in which a destination serves them.
#[derive(Debug, Clone)]
pub struct SumTables {
    /// Work of request r at d, loading of the model included; R × M, row-major.
    pub work: Vec<Work>,
    /// What is at each destination, M entries.
    pub timelines: Vec<Timeline>,
    /// Round-trip time, seconds, M entries.
    pub rtt_s: Vec<f64>,
    /// Congestion price of each destination: J per second that a request takes of it when it is saturated, for those
    /// to whom time is all that counts (ω_T = 1). Not negative, M entries.
    pub price_per_s: Vec<f64>,
    /// ω_T of those who are delayed without being part of the batch.
    pub others_time_weight: f64,
}

impl SumTables {
    pub(super) fn with_capacity(n_cells: usize, n_destinations: usize) -> Self {
        Self {
            work: Vec::with_capacity(n_cells),
            timelines: Vec::with_capacity(n_destinations),
            rtt_s: Vec::with_capacity(n_destinations),
            price_per_s: Vec::with_capacity(n_destinations),
            others_time_weight: 0.0,
        }
    }

    /// Work of request `r` at `d`.
    #[must_use]
    pub fn work(&self, r: usize, d: DestinationOrd) -> Work {
        self.work[r * self.timelines.len() + d.idx()]
    }

    /// What request `r` takes of the time of `d` when that is saturated, seconds.
    #[must_use]
    pub fn saturated_work_s(&self, r: usize, d: DestinationOrd) -> f64 {
        self.timelines[d.idx()].saturated_work(self.work(r, d)).0
    }
}

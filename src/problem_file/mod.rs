//! Problem files, `cema-problem/1`: one batch as JSON, for `solve`, tests and export from a live router.
//!
//! Required: `schema`, `objective` (`weights` and `bounds` [min, max] per term), `destinations` (`id`,
//! `backlog_s`, `batch_speedup`, `network_s`) and the R × M tables `quality_loss`, `cost_usd`, `energy_j`,
//! `service_s`. Optional: `name`, `reference` (ignored), `legal` (R × M), `destinations[].class`, `clusters`
//! (`request`: R cluster numbers, `error`: K × M), and what only a live batch has: `objective.backlog_term`,
//! `request_weights`, `length_tokens`, `first_request_number`, `destinations[].inflight` and
//! `max_concurrency`. `destinations[].cap` is the most requests of the batch that may go there. Unknown fields are refused.

mod read;
mod write;

#[cfg(test)]
mod tests;

pub use read::{FILE_BYTES_MAX, ProblemFileError, from_reader};
pub use write::to_json;

use serde::{Deserialize, Serialize};

use crate::domain::Weights;
use crate::routing::{Bounds, Objective, Problem, TermRange};

/// The only format there is.
pub const SCHEMA: &str = "cema-problem/1";

/// A problem with the objective its file states.
#[derive(Debug, Clone)]
pub struct ProblemFile {
    /// The tables.
    pub problem: Problem,
    /// J with the file's weights and bounds.
    pub objective: Objective,
}

/// One number per term of the objective.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PerTerm<T> {
    quality: T,
    cost: T,
    energy: T,
    time: T,
}

impl From<Weights> for PerTerm<f64> {
    fn from(w: Weights) -> Self {
        Self { quality: w.quality, cost: w.cost, energy: w.energy, time: w.time }
    }
}

impl From<PerTerm<f64>> for Weights {
    fn from(w: PerTerm<f64>) -> Self {
        Self { quality: w.quality, cost: w.cost, energy: w.energy, time: w.time }
    }
}

impl From<&Bounds> for PerTerm<[f64; 2]> {
    fn from(bounds: &Bounds) -> Self {
        let pair = |range: TermRange| [range.min, range.max];
        Self {
            quality: pair(bounds.quality),
            cost: pair(bounds.cost),
            energy: pair(bounds.energy),
            time: pair(bounds.time),
        }
    }
}

//! Problem files, `cema-problem/1`: one batch as JSON, for `solve`, tests and export from a live router.
//!
//! Required: `schema`, `objective` (`weights` and `bounds` [min, max] per term), `destinations` (`id`,
//! `backlog_s`, `batch_speedup`, `network_s`) and the R × M tables `quality_loss`, `cost_usd`, `energy_j`,
//! `service_s`. Optional: `name`, `reference` (ignored), `legal` (R × M), `destinations[].class`, `clusters`
//! (`request`: R cluster numbers, `error`: K × M), and what only a live batch has: `objective.backlog_term`,
//! `request_weights`, `length_tokens`, `first_request_number`, `destinations[].inflight` and
//! `max_concurrency`. `destinations[].cap` is the most requests of the batch that may go there. Unknown fields are refused.
//!
//! With an object `sum` time is not the makespan but the time term `sum` ([`SumTables`](crate::routing::SumTables)),
//! `objective.bounds.time` the range of the sum of completion times, and `service_s`, `destinations[].backlog_s`,
//! `batch_speedup` and `network_s` only matter to policies that do not go by the objective:
//!
//! - `prefill_s`, `decode_s` (R × M): what of a request is reading its prompt and what is generating, seconds alone;
//! - `others_time_weight`: ω_T of those who are delayed without being part of the batch;
//! - `destinations` (M, in order): `rtt_s`, `price_per_s` (congestion price, J per second of saturated work at ω_T = 1;
//!   0 if left out) and `timeline`, what is there before the batch:
//!   - `{"model": "fifo", "backlog_s", "batch_speedup", "pace"}`, or
//!   - `{"model": "slots", "slots", "batch_speedup", "pace"}` with `running` requests that have to read `prefill_s` and to
//!     generate `decode_s`, the first of them `soonest_s`, and `queued` ones with `queued_prefill_s` and
//!     `queued_decode_s`; each 0 if left out.
//!
//!   `pace` is progress per second relative to the figures, 1 if left out; a speed-up is at least 1.

mod read;
mod sum;
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

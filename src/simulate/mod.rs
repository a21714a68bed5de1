//! The simulator: what the router's own policies, evaluator and planner would do with recorded prompts.
//!
//! Nothing here reads a file or a clock. The command line prepares a [`Workload`]: every request twice, as
//! the router would predict it and as it really was, so that what is decided upon and what is judged by
//! are never mixed. Reading order: [`workload`]; [`methods`] says what is compared; [`batches`] assigns
//! independent batches (the paper's Tables V–VII); [`live`] runs arrivals over many windows in virtual time
//! against the [`engine`]s; [`matched`] compares such runs at equal score; [`report`] and [`plot`] show the results.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod lengths;
pub mod workload;

pub mod methods;

pub mod batches;

pub mod arrivals;
pub mod engine;
pub mod live;
pub mod live_outcome;
pub mod matched;

pub mod plot;
pub mod report;

pub use methods::{Method, MethodNameError};
pub use workload::{SimulatedRequest, Workload, WorkloadError};

use crate::planning::SolveError;
use crate::routing::{PolicyError, ProblemError};

/// Why a simulation cannot go on.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimulateError {
    /// The workload does not fit the fleet.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The batch and the fleet do not make a problem.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// A method cannot assign a batch.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A plan of the live simulation could not be made.
    #[error(transparent)]
    Solve(#[from] SolveError),
    /// A request may go nowhere.
    #[error("request {id} has no legal destination: {reason}")]
    NoDestination {
        /// Id of the row.
        id: String,
        /// The constraint that left none.
        reason: String,
    },
}

//! The live planner, sans-IO: events and `now` in, actions out (paper III-A, routing windows).
//!
//! It owns the waiting set, the ledger of what is in flight where, and the rule that says when a window
//! closes. It never reads a clock or sends anything, so the async scheduler, the tests and the simulator
//! run the very same code.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod held;
pub mod messages;
pub mod params;
pub mod plan;
pub mod planner;
mod predicting;
pub mod price;
pub mod scales;
mod situation;
pub mod switchback;

pub use messages::{Action, Arrival, Rejection, Step, Ticket};
pub use params::{WindowClose, WindowOrder, WindowParams};
pub use plan::{Plan, PlanJob, PlanParams, Planned, SolveError, Solved, Waiting};
pub use planner::{Planner, PlannerParams};
pub use price::PriceParams;
pub use scales::ScalesAverage;
pub use switchback::{Alternation, Slice};

#[cfg(test)]
mod tests;

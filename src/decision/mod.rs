//! Decisions as they are written down: recorded, read back, explained and made again.
//!
//! A plan is a function of its [`PlanJob`](crate::planning::PlanJob), the policy with its parameters, and the number of
//! times the search was told to go on. [`SolvedPlan`] keeps all of them, [`record::PlanRecord`] is its form in the
//! decision log, [`explanation::Explanation`] says of one request why it went where it went, and [`replay`] decides
//! again: exactly as it was, or with other weights, another policy or another fleet.

mod blob;
pub mod explanation;
pub mod log_file;
pub mod record;
pub mod replay;
mod solved;

pub use solved::{Effort, SolvedPlan};

#[cfg(test)]
pub(crate) mod testing;

//! The policies the paper compares with, and the load-aware greedy rival of batching.

mod earliest;
mod greedy;
mod least_loaded;
mod placement;
mod round_robin;
mod uniroute;

#[cfg(test)]
mod tests;

pub(crate) use earliest::{Division, earliest_finish, earliest_finish_with};
pub use greedy::{Greedy, greedy_finish};
pub use least_loaded::LeastLoaded;
pub use placement::PlacementOnly;
pub use round_robin::RoundRobin;
pub use uniroute::{Uniroute, UnirouteParams};

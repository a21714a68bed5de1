//! What a decision predicts of one request at the destination it chose.

use crate::units::{Joules, Quality, Seconds, Usd};

/// What a decision predicts for one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestEstimate {
    /// q̂ at the chosen destination.
    pub quality: Quality,
    /// Money (Eq. 2).
    pub usd: Usd,
    /// Energy (Eq. 3).
    pub joules: Joules,
    /// Service time alone on the endpoint.
    pub service: Seconds,
    /// Completion time with queueing, in arrival order (Eq. 4).
    pub completion: Seconds,
}

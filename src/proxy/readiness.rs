//! Whether the router can take work: the readiness page of both listeners.
//!
//! The main listener takes no connections any more while the router drains; whoever watches the admin one
//! sees why.

use http::{Response, StatusCode};
use tokio_util::sync::CancellationToken;

use super::respond::{ResponseBody, text};
use crate::profiler::node::FleetHealth;

/// What readiness depends on.
#[derive(Debug, Clone)]
pub struct Readiness {
    /// State of the endpoints.
    pub health: FleetHealth,
    /// Set once the router is going away.
    pub draining: CancellationToken,
}

impl Readiness {
    /// 200 while some endpoint can take work and the router is not going away, 503 otherwise.
    pub(super) fn answer(&self) -> Response<ResponseBody> {
        if self.draining.is_cancelled() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "draining\n");
        }
        let states = self.health.states();
        let n_ready = states.iter().filter(|state| state.takes_work()).count();
        let status = if n_ready > 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        text(status, format!("{n_ready} of {} endpoints ready\n", states.len()))
    }
}

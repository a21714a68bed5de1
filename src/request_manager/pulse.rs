//! Who looks on as long as there are requests, without being in the way of their end.

use std::sync::{Arc, Weak};

use tokio::sync::broadcast;

use super::metrics::RequestMetrics;
use crate::profiler::quality::feedback::Given;

/// Tells whether requests are still served by a manager, or by one that went on from it.
#[derive(Debug, Clone)]
pub struct Pulse(Weak<RequestMetrics>);

impl Pulse {
    pub(super) fn of(metrics: &Arc<RequestMetrics>) -> Self {
        Self(Arc::downgrade(metrics))
    }

    /// Whether every manager is gone, and every request over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// Does not keep the metrics: requests do, and whoever waits for the last of them must not wait for this.
pub(super) async fn follow_feedback(metrics: Weak<RequestMetrics>, mut given: broadcast::Receiver<Given>) {
    loop {
        match given.recv().await {
            Ok(given) => match metrics.upgrade() {
                Some(metrics) => metrics.scored(&given),
                None => return,
            },
            // Some were missed; those that follow are not.
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

//! The scheduler's clock: the task that sees to what falls due without an event, and to news of the fleet.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::live_planner::LivePlanner;
use crate::domain::{Availability, FleetView};
use crate::units::Seconds;

/// The task's state. It does not keep the scheduler alive.
pub(super) struct Clock {
    planner: Weak<LivePlanner>,
    nudge: Arc<Notify>,
    epoch: Instant,
    health: watch::Receiver<Arc<[Availability]>>,
    view: watch::Receiver<Arc<FleetView>>,
}

impl Clock {
    pub(super) fn new(
        planner: &Arc<LivePlanner>,
        epoch: Instant,
        (health, view): (watch::Receiver<Arc<[Availability]>>, watch::Receiver<Arc<FleetView>>),
    ) -> Self {
        Self { planner: Arc::downgrade(planner), nudge: Arc::clone(planner.nudge()), epoch, health, view }
    }

    /// Runs until every handle to the scheduler is gone. Dropped before, it closes the scheduler.
    pub(super) async fn run(mut self) {
        while let Some(next) = self.planner.upgrade().map(|planner| planner.tick()) {
            let next = next.map(|at| self.instant(at));
            tokio::select! {
                // Cancel-safe: none loses a signal when another arm wins.
                () = self.nudge.notified() => {}
                changed = self.health.changed() => if changed.is_err() {
                    return;
                },
                changed = self.view.changed() => if changed.is_err() {
                    return;
                },
                () = sleep_or_never(next) => {}
            }
        }
    }

    /// The first instant at which the scheduler's time is not before `at`.
    fn instant(&self, at: Seconds) -> Instant {
        const ROUNDING: Duration = Duration::from_nanos(1);
        self.epoch + Duration::from_secs_f64(at.0.max(0.0)) + ROUNDING
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        if let Some(planner) = self.planner.upgrade() {
            planner.close();
        }
    }
}

async fn sleep_or_never(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

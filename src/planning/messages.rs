//! What goes into the planner and what comes out of it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::plan::{PlanJob, Planned};
use crate::domain::{DestinationOrd, Prediction, RoutingRequest};
use crate::routing::NoDestination;
use crate::units::Seconds;

/// Identity of a request inside the planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ticket(pub u64);

/// A request that joins the waiting set.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Its identity.
    pub ticket: Ticket,
    /// What routing knows of it.
    pub request: Arc<RoutingRequest>,
    /// The prediction to plan with unless a better one comes in time.
    pub prediction: Arc<Prediction>,
    /// Until when a better prediction may come; `None` = `prediction` is final.
    pub awaiting_until: Option<Seconds>,
    /// When it came in.
    pub arrived: Seconds,
    /// When it is answered with an error if nothing could take it.
    pub expires: Seconds,
    /// Destinations that failed it already. Not empty = it is failing over and has done its waiting.
    pub excluded: Vec<DestinationOrd>,
}

impl Arrival {
    pub(super) fn is_failing_over(&self) -> bool {
        !self.excluded.is_empty()
    }

    /// Whether it has waited for `span`, a failing-over one for any; the exact sum a wakeup is set to.
    pub(super) fn has_waited(&self, now: Seconds, span: Seconds) -> bool {
        self.is_failing_over() || (self.arrived + span).0 <= now.0
    }
}

/// Why a request leaves without a destination.
#[derive(Debug, Clone, PartialEq)]
pub enum Rejection {
    /// No legal destination.
    Impossible(NoDestination),
    /// The policy could not decide; its own words.
    Undecided(String),
    /// Its deadline passed while every destination was full.
    Expired {
        /// How long it waited.
        waited: Seconds,
    },
}

/// What the planner wants done.
#[derive(Debug, Clone)]
pub enum Action {
    /// Send a request to its destination now.
    Send {
        /// The placement.
        planned: Planned,
        /// Number of the plan.
        plan: u64,
        /// Time from arrival to now.
        waited: Seconds,
        /// Time from arrival until its first plan could let it go; `None` = it is failing over.
        gathered: Option<Seconds>,
        /// Time since a plan first could not let it go: its places were taken.
        held: Seconds,
        /// Requests planned together.
        batch_size: usize,
        /// When a greedy choice at its first plan would have had it done, from now; known with time term `sum`.
        greedy_left: Option<Seconds>,
    },
    /// Answer a request with an error.
    Reject {
        /// The request.
        ticket: Ticket,
        /// Why.
        reason: Rejection,
    },
}

/// What to do next.
#[derive(Debug)]
pub enum Step {
    /// Solve this and hand the plan to [`Planner::commit`](super::Planner::commit).
    Solve(Box<PlanJob>),
    /// Nothing before this time, or before the next event if `None`.
    Wait(Option<Seconds>),
}

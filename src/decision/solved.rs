//! A plan with everything that led to it.

use std::time::Duration;

use crate::domain::{DestinationOrd, RoutingRequest};
use crate::planning::{Plan, PlanJob, PlanParams, SolveError, Waiting};
use crate::routing::{Evaluator, RoutingPolicy};

/// A plan, what it was made from, and how long that took, tables included.
#[derive(Debug, Clone)]
pub struct SolvedPlan {
    /// The plan.
    pub plan: Plan,
    /// What was decided on.
    pub job: Box<PlanJob>,
    /// Name of the policy that decided.
    pub policy: &'static str,
    /// Its models and seed.
    pub params: PlanParams,
    /// What the search did until it ended.
    pub effort: Effort,
    /// Wall time of solving.
    pub took: Duration,
}

/// How far a search went: with the same number it goes as far again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Effort {
    /// Times it asked whether to stop and was told to go on.
    pub polls: u64,
}

impl SolvedPlan {
    /// Has `policy` decide on `job` until it is done or `stop` says so.
    ///
    /// # Errors
    /// See [`SolveError`].
    pub fn solve(
        job: Box<PlanJob>,
        policy: &dyn RoutingPolicy,
        params: PlanParams,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Self, SolveError> {
        let (mut polls, mut is_over) = (0, false);
        let plan = job.solve(policy, &params, &mut || {
            is_over = is_over || stop();
            polls += u64::from(!is_over);
            is_over
        })?;
        let (policy, effort, took) = (policy.name(), Effort { polls }, Duration::ZERO);
        Ok(Self { plan, job, policy, params, effort, took })
    }

    /// The destination with the next best J for a request with all others as planned, if it has another, and by how
    /// much J is larger with it.
    #[must_use]
    pub fn runner_up(&self, request_id: &str) -> Option<(DestinationOrd, f64)> {
        let solved = self.plan.solved.as_ref()?;
        let row = self.row(request_id)?;
        let mut evaluator = Evaluator::new(&solved.problem, &solved.objective);
        let mut assignment = solved.decision.assignment.clone();
        let chosen = assignment[row];
        let planned = solved.decision.objective;
        let others = solved.problem.legal_destinations(row).filter(|d| *d != chosen);
        let mut value_at = |d| {
            assignment[row] = d;
            evaluator.objective(&assignment)
        };
        let best = others.map(|d| (d, value_at(d))).min_by(|a, b| a.1.total_cmp(&b.1));
        best.map(|(d, value)| (d, value - planned))
    }

    /// The row of a placed request.
    #[must_use]
    pub fn row(&self, request_id: &str) -> Option<usize> {
        self.plan.planned.iter().position(|planned| &*planned.request_id == request_id)
    }

    /// A request of the set that was decided on.
    pub(super) fn waiting(&self, request_id: &str) -> Option<&Waiting> {
        self.job.waiting.iter().find(|waiting| &*waiting.request.id == request_id)
    }

    /// The request of one row.
    pub(super) fn request(&self, request_id: &str) -> Option<&RoutingRequest> {
        self.waiting(request_id).map(|waiting| &*waiting.request)
    }
}

impl Effort {
    /// What stops a search where one of this effort was stopped.
    pub fn again(self) -> impl FnMut() -> bool {
        let mut left = self.polls;
        move || {
            let is_over = left == 0;
            left = left.saturating_sub(1);
            is_over
        }
    }
}

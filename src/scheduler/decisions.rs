//! Recent plans, for the admin API to show and re-solve.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

pub use super::solver::SolvedPlan;
use crate::domain::DestinationOrd;
use crate::routing::Evaluator;

/// Plans kept.
const PLANS_MAX: usize = 256;
/// Table cells (R × M) kept over all plans: about 40 bytes each.
const CELLS_MAX: usize = 100_000;

/// The last plans, newest first to go last. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct DecisionRing {
    plans: Arc<Mutex<VecDeque<Arc<SolvedPlan>>>>,
}

impl DecisionRing {
    pub(super) fn push(&self, solved: SolvedPlan) {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.push_back(Arc::new(solved));
        let mut n_cells: usize = plans.iter().map(|solved| n_cells(solved)).sum();
        while plans.len() > PLANS_MAX || (n_cells > CELLS_MAX && plans.len() > 1) {
            n_cells -= plans.pop_front().map_or(0, |oldest| self::n_cells(&oldest));
        }
    }

    /// The newest plan that placed the request.
    #[must_use]
    pub fn find(&self, request_id: &str) -> Option<Arc<SolvedPlan>> {
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let places =
            |solved: &Arc<SolvedPlan>| solved.plan.planned.iter().any(|p| &*p.request_id == request_id);
        plans.iter().rev().find(|solved| places(solved)).cloned()
    }
}

impl SolvedPlan {
    /// The destination with the next best J for a request with all others as planned, if it has another.
    #[must_use]
    pub fn runner_up(&self, request_id: &str) -> Option<DestinationOrd> {
        let solved = self.plan.solved.as_ref()?;
        let row = self.plan.planned.iter().position(|p| &*p.request_id == request_id)?;
        let mut evaluator = Evaluator::new(&solved.problem, &solved.objective);
        let mut assignment = solved.decision.assignment.clone();
        let chosen = assignment[row];
        let others = solved.problem.legal_destinations(row).filter(|d| *d != chosen);
        let mut value_at = |d| {
            assignment[row] = d;
            evaluator.objective(&assignment)
        };
        others.map(|d| (value_at(d), d)).min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, d)| d)
    }
}

fn n_cells(solved: &SolvedPlan) -> usize {
    solved.plan.solved.as_ref().map_or(0, |s| s.problem.n_requests() * s.problem.n_destinations())
}

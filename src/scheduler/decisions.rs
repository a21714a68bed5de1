//! Recent plans, for the admin API to show and re-solve.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use super::solver::SolvedPlan;
use crate::domain::DestinationOrd;
use crate::routing::Evaluator;

/// Plans kept.
const PLANS_MAX: usize = 256;
/// Table cells (R × M) kept over all plans: 40 to 60 bytes each.
const CELLS_MAX: usize = 100_000;

/// The last plans, newest first to go last. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct DecisionRing {
    recent: Arc<Mutex<Recent>>,
}

#[derive(Debug, Default)]
struct Recent {
    plans: VecDeque<Arc<SolvedPlan>>,
    n_cells: usize,
}

impl DecisionRing {
    pub(super) fn push(&self, solved: Arc<SolvedPlan>) {
        let mut recent = self.lock();
        recent.n_cells += n_cells(&solved);
        recent.plans.push_back(solved);
        while recent.plans.len() > PLANS_MAX || (recent.n_cells > CELLS_MAX && recent.plans.len() > 1) {
            let n_cells = recent.plans.pop_front().map_or(0, |oldest| n_cells(&oldest));
            recent.n_cells -= n_cells;
        }
    }

    /// The newest plan that placed the request.
    #[must_use]
    pub fn find(&self, request_id: &str) -> Option<Arc<SolvedPlan>> {
        let places =
            |solved: &Arc<SolvedPlan>| solved.plan.planned.iter().any(|p| &*p.request_id == request_id);
        self.lock().plans.iter().rev().find(|solved| places(solved)).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
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

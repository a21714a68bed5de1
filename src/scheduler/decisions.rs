//! Recent plans, for the admin API to show and re-solve.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::decision::SolvedPlan;

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

    /// The newest plans, newest first; at most `n`.
    #[must_use]
    pub fn latest(&self, n: usize) -> Vec<Arc<SolvedPlan>> {
        self.lock().plans.iter().rev().take(n).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn n_cells(solved: &SolvedPlan) -> usize {
    solved.plan.solved.as_ref().map_or(0, |s| s.problem.n_requests() * s.problem.n_destinations())
}

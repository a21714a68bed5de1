//! Recent plans, for the admin API to show and re-solve.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::decision::SolvedPlan;
use crate::units::Seconds;

/// Plans kept.
const PLANS_MAX: usize = 256;
/// Plans a second that are kept in the long run. Where more are made, those that are kept then reach back for a while,
/// and the rest is not paid for: to forget a plan costs more than to make one, since its memory is cold by then.
const PLANS_PER_S: f64 = 200.0;
/// Table cells (R × M) kept over all plans: 40 to 60 bytes each.
const CELLS_MAX: usize = 100_000;

/// The last plans, of very many some of them. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct DecisionRing {
    recent: Arc<Mutex<Recent>>,
}

#[derive(Debug, Default)]
struct Recent {
    plans: VecDeque<Arc<SolvedPlan>>,
    n_cells: usize,
    /// Plans kept beyond the rate, as of `at`.
    n_ahead: f64,
    at: Seconds,
}

impl Recent {
    /// Whether one of the plans made `now` may be kept.
    fn takes_one(&mut self, now: Seconds) -> bool {
        self.n_ahead = (self.n_ahead - (now - self.at).0.max(0.0) * PLANS_PER_S).max(0.0);
        self.at = now;
        let takes_one = self.n_ahead + 1.0 <= PLANS_MAX as f64;
        self.n_ahead += f64::from(u8::from(takes_one));
        takes_one
    }
}

impl DecisionRing {
    /// A plan was made at `now`, the scheduler's time.
    pub(super) fn push(&self, now: Seconds, solved: Arc<SolvedPlan>) {
        let mut recent = self.lock();
        if !recent.takes_one(now) {
            return;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::testing::{job, solved};
    use crate::routing::PolicyKind;

    /// Numbers of the kept plans after `n` more were made at `every` second from `from` on.
    fn numbers_after(ring: &DecisionRing, n: u64, from: Seconds, every: f64) -> Vec<u64> {
        for i in 0..n {
            let mut job = job(1);
            job.number = i + 1;
            ring.push(from + Seconds(i as f64 * every), Arc::new(solved(job, PolicyKind::GreedyPlain, 0)));
        }
        ring.latest(PLANS_MAX).iter().map(|solved| solved.plan.number).collect()
    }

    #[test]
    fn of_plans_that_come_slowly_the_last_ones_are_kept() {
        let kept = numbers_after(&DecisionRing::default(), 300, Seconds(5.0), 0.01);
        assert_eq!(kept, (45..=300).rev().collect::<Vec<u64>>());
    }

    #[test]
    fn of_plans_that_come_fast_a_share_is_kept_which_reaches_back() {
        let ring = DecisionRing::default();
        // A burst of 256 at once is kept whole, nothing of what comes in the same instant.
        assert_eq!(numbers_after(&ring, 300, Seconds(5.0), 0.0), (1..=256).rev().collect::<Vec<u64>>());
        // 2,000 a second for two seconds: every tenth.
        let kept = numbers_after(&ring, 4000, Seconds(5.0), 0.0005);
        assert_eq!(kept.len(), PLANS_MAX);
        assert!(kept.windows(2).all(|pair| (9..=11).contains(&(pair[0] - pair[1]))), "{kept:?}");
    }
}

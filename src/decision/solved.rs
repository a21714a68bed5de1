//! A plan with everything that led to it.

use std::time::Duration;

use crate::domain::{DestinationOrd, RoutingRequest};
use crate::planning::{Plan, PlanJob, PlanParams, SolveError, Solved, Waiting};
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
        Alternatives::of(self.plan.solved.as_ref()?).runner_up(self.row(request_id)?)
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

/// What J would be with one request elsewhere and all others as planned.
pub(super) struct Alternatives<'a> {
    solved: &'a Solved,
    evaluator: Evaluator<'a>,
    /// Rows at each destination, ascending.
    members: Vec<Vec<usize>>,
    /// What they add to J by being served together.
    coupled: Vec<f64>,
}

impl<'a> Alternatives<'a> {
    pub(super) fn of(solved: &'a Solved) -> Self {
        let evaluator = Evaluator::new(&solved.problem, &solved.objective);
        let mut members = vec![Vec::new(); solved.problem.n_destinations()];
        for (row, d) in solved.decision.assignment.iter().enumerate() {
            members[d.idx()].push(row);
        }
        let at = |(d, rows): (DestinationOrd, &Vec<usize>)| evaluator.coupled_at(d, rows.iter().copied());
        let coupled = (0..).map(DestinationOrd).zip(&members).map(at).collect();
        Self { solved, evaluator, members, coupled }
    }

    /// The next best destination of the request in `row`, and by how much J is larger with it.
    pub(super) fn runner_up(&mut self, row: usize) -> Option<(DestinationOrd, f64)> {
        let solved = self.solved;
        let chosen = *solved.decision.assignment.get(row)?;
        let others = solved.problem.legal_destinations(row).filter(|d| *d != chosen);
        others.map(|d| (d, self.more(row, chosen, d))).min_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn more(&mut self, row: usize, from: DestinationOrd, to: DestinationOrd) -> f64 {
        let Solved { problem, objective, decision } = self.solved;
        if problem.sum().is_none() {
            let mut assignment = decision.assignment.clone();
            assignment[row] = to;
            return self.evaluator.objective(&assignment) - decision.objective;
        }
        let m = problem.n_destinations();
        let separable = |d: DestinationOrd| objective.separable()[row * m + d.idx()];
        let left = self.members[from.idx()].iter().copied().filter(|other| *other != row);
        let before = |other: &&usize| **other < row;
        let joined = &self.members[to.idx()];
        let n_before = joined.iter().take_while(before).count();
        let joined =
            joined[..n_before].iter().copied().chain([row]).chain(joined[n_before..].iter().copied());
        separable(to) - separable(from) + self.evaluator.coupled_at(from, left) - self.coupled[from.idx()]
            + self.evaluator.coupled_at(to, joined)
            - self.coupled[to.idx()]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::testing::{job, solved};
    use crate::domain::TimeTerm;
    use crate::routing::PolicyKind;

    #[test]
    fn runners_up_are_those_of_the_whole_evaluation() {
        for (kind, time) in [
            (PolicyKind::Memetic, TimeTerm::Sum),
            (PolicyKind::RoundRobin, TimeTerm::Sum),
            (PolicyKind::Memetic, TimeTerm::Makespan),
        ] {
            let mut job = job(17);
            job.time = Some(time);
            let plan = solved(job, kind, 30);
            let of = plan.plan.solved.as_ref().unwrap();
            let mut evaluator = Evaluator::new(&of.problem, &of.objective);
            let mut alternatives = Alternatives::of(of);
            for row in 0..17 {
                let chosen = of.decision.assignment[row];
                let mut value_at = |d| {
                    let mut assignment = of.decision.assignment.clone();
                    assignment[row] = d;
                    evaluator.objective(&assignment) - of.decision.objective
                };
                let others = of.problem.legal_destinations(row).filter(|d| *d != chosen);
                let best = others.map(|d| (d, value_at(d))).min_by(|a, b| a.1.total_cmp(&b.1));
                let (found, best) = (alternatives.runner_up(row), best);
                assert_eq!(found.map(|(d, _)| d), best.map(|(d, _)| d), "{kind} {time} row {row}");
                if let (Some((_, found)), Some((_, best))) = (found, best) {
                    assert!((found - best).abs() < 1e-9, "{kind} {time} row {row}: {found} {best}");
                }
            }
        }
    }
}

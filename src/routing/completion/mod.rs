//! Completion time. Here model `fifo` (Eq. 4): first in, first out, cumulative work divided by the batch
//! speed-up, never below a request's own service time. Model `slots`: [`slots`]. One destination under either:
//! [`timeline`].

pub mod slots;
pub mod timeline;

use crate::domain::DestinationOrd;
use crate::routing::objective::network_s;
use crate::routing::problem::{DestinationLoad, Problem};
use crate::units::Seconds;

/// Maximum of numbers known not to be NaN.
pub(crate) trait FiniteMax {
    /// The larger of both. One instruction, where `f64::max` has to look for NaN; the inner loops of the
    /// policies do little else.
    fn finite_max(self, other: Self) -> Self;
}

impl FiniteMax for f64 {
    #[inline]
    fn finite_max(self, other: Self) -> Self {
        if self > other { self } else { other }
    }
}

/// T_d of a used destination: `ν + max(longest service, B + Σ service / k)`, seconds.
#[must_use]
pub fn destination_finish_s(load: &DestinationLoad, longest_s: f64, total_s: f64) -> f64 {
    load.network_s + longest_s.finite_max(load.backlog_s + total_s / load.batch_speedup)
}

/// T_r of every request under an assignment (R entries), served in the order of the rows at its destination:
/// `T_r = ν + max(s_r, B + (Σ service up to r) / k)`, or by its timeline with time term `sum`.
#[must_use]
pub fn completions(problem: &Problem, assignment: &[DestinationOrd]) -> Vec<Seconds> {
    if let Some(sum) = problem.sum() {
        let mut timelines = sum.timelines.clone();
        let serve = |(r, d): (usize, &DestinationOrd)| {
            let (timeline, work) = (&mut timelines[d.idx()], sum.work(r, *d));
            let finish = timeline.predict(work).finish;
            timeline.push(work);
            Seconds(network_s(problem, sum, r, *d)) + finish
        };
        return assignment.iter().enumerate().map(serve).collect();
    }
    let mut total_s = vec![0.0; problem.n_destinations()];
    let serve = |(r, d): (usize, &DestinationOrd)| {
        let service_s = problem.service(r, *d).get();
        total_s[d.idx()] += service_s;
        Seconds(destination_finish_s(problem.destination(*d), service_s, total_s[d.idx()]))
    };
    assignment.iter().enumerate().map(serve).collect()
}

/// Reusable sums for the makespan of many assignments of one problem.
#[derive(Debug, Clone, Default)]
pub struct Makespan {
    longest_s: Vec<f64>,
    total_s: Vec<f64>,
}

impl Makespan {
    /// Batch T: the largest T_d over used destinations, seconds.
    pub fn of(&mut self, problem: &Problem, assignment: &[DestinationOrd]) -> f64 {
        let m = problem.n_destinations();
        self.longest_s.clear();
        self.longest_s.resize(m, -1.0);
        self.total_s.clear();
        self.total_s.resize(m, 0.0);
        for (r, d) in assignment.iter().enumerate() {
            let service_s = problem.service(r, *d).get();
            self.total_s[d.idx()] += service_s;
            self.longest_s[d.idx()] = self.longest_s[d.idx()].finite_max(service_s);
        }
        let sums = self.longest_s.iter().zip(&self.total_s);
        let used = problem.destinations().iter().zip(sums).filter(|(_, (longest_s, _))| **longest_s >= 0.0);
        used.map(|(load, (longest_s, total_s))| destination_finish_s(load, *longest_s, *total_s))
            .fold(0.0, f64::max)
    }
}

//! The destination with the least tracked outstanding work.

use rand_chacha::ChaCha8Rng;

use crate::domain::DestinationOrd;
use crate::routing::decision::{RoutingDecision, SearchRecord};
use crate::routing::objective::Objective;
use crate::routing::params::PolicyKind;
use crate::routing::places::{Caps, Places};
use crate::routing::policy::{PolicyError, RoutingPolicy};
use crate::routing::problem::Problem;

/// Each request in arrival order to the legal destination with the least outstanding work: B_d plus the
/// batched work this batch has sent there already. Ties go to the fewest requests outstanding, then to
/// the first destination.
#[derive(Debug, Clone, Copy)]
pub struct LeastLoaded;

impl RoutingPolicy for LeastLoaded {
    fn name(&self) -> &'static str {
        PolicyKind::LeastLoaded.as_str()
    }

    fn route(
        &self,
        problem: &Problem,
        objective: &Objective,
        _rng: &mut ChaCha8Rng,
        _stop: &mut dyn FnMut() -> bool,
    ) -> Result<RoutingDecision, PolicyError> {
        let mut outstanding = OutstandingWork::new(problem, problem.caps());
        let choose =
            |r| outstanding.send_to_least(r, problem.legal_destinations(r)).unwrap_or(DestinationOrd(0));
        let assignment = (0..problem.n_requests()).map(choose).collect();
        Ok(RoutingDecision::new(problem, objective, assignment, SearchRecord::default()))
    }
}

/// Outstanding work per destination while a batch is assigned request by request.
pub(super) struct OutstandingWork<'a> {
    problem: &'a Problem,
    load_s: Vec<f64>,
    requests: Vec<u32>,
    places: Places<'a>,
}

impl<'a> OutstandingWork<'a> {
    /// The work outstanding before the batch, and the caps on what it adds.
    pub(super) fn new(problem: &'a Problem, caps: Option<&'a Caps>) -> Self {
        Self {
            problem,
            load_s: problem.destinations().iter().map(|d| d.backlog_s).collect(),
            requests: problem.destinations().iter().map(|d| d.inflight).collect(),
            places: Places::new(caps),
        }
    }

    /// Adds request `r` to the least loaded of `candidates` that are open, or nothing if there are none.
    pub(super) fn send_to_least(
        &mut self,
        r: usize,
        candidates: impl Iterator<Item = DestinationOrd>,
    ) -> Option<DestinationOrd> {
        let by_load = |a: &DestinationOrd, b: &DestinationOrd| {
            let by_work = self.load_s[a.idx()].total_cmp(&self.load_s[b.idx()]);
            by_work.then(self.requests[a.idx()].cmp(&self.requests[b.idx()]))
        };
        self.places.look(r);
        let d = candidates.filter(|d| self.places.is_open(d.idx())).min_by(by_load)?;
        self.places.take(r, d.idx());
        let work_s = self.problem.service(r, d).get() / self.problem.destination(d).batch_speedup;
        self.load_s[d.idx()] += work_s;
        self.requests[d.idx()] += 1;
        Some(d)
    }
}

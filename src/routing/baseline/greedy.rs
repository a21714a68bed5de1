//! Load-aware greedy: what a good per-request router does, and the honest rival of batching.

use rand_chacha::ChaCha8Rng;

use crate::domain::DestinationOrd;
use crate::routing::completion::destination_finish_s;
use crate::routing::decision::{RoutingDecision, SearchRecord};
use crate::routing::objective::{Objective, SumTerm, network_s};
use crate::routing::params::PolicyKind;
use crate::routing::policy::{PolicyError, RoutingPolicy};
use crate::routing::problem::{Problem, SumTables};
use crate::units::Seconds;

/// Each request in the order of the rows to the legal destination that adds least to J, loads updated after each.
///
/// `greedy` and `greedy_plain` differ only by congestion prices, which the problems of the latter do not carry.
#[derive(Debug, Clone, Copy)]
pub struct Greedy {
    kind: PolicyKind,
}

impl Greedy {
    /// The policy reported as `kind`.
    pub(in crate::routing) fn new(kind: PolicyKind) -> Self {
        Self { kind }
    }
}

impl RoutingPolicy for Greedy {
    fn name(&self) -> &'static str {
        self.kind.as_str()
    }

    fn route(
        &self,
        problem: &Problem,
        objective: &Objective,
        _rng: &mut ChaCha8Rng,
        _stop: &mut dyn FnMut() -> bool,
    ) -> Result<RoutingDecision, PolicyError> {
        let assignment = in_order(problem, objective);
        let evaluations = (problem.n_requests() * problem.n_destinations()) as u64;
        let record = SearchRecord { evaluations, ..SearchRecord::default() };
        Ok(RoutingDecision::new(problem, objective, assignment, record))
    }
}

/// Where a request would go and what that does to J and to the destination.
struct Step {
    d: DestinationOrd,
    objective: f64,
    finish_s: f64,
}

/// When request `r` would be done if the batch were `r` alone and it went where it adds least to J; `None` where time
/// is the makespan.
#[must_use]
pub fn greedy_finish(problem: &Problem, objective: &Objective, r: usize) -> Option<Seconds> {
    let (sum, term) = (problem.sum()?, objective.sum()?);
    let m = problem.n_destinations();
    let added = |d: &DestinationOrd| {
        objective.separable()[r * m + d.idx()] + term.added(r, sum.work(r, *d), &sum.timelines[d.idx()])
    };
    let best = problem.legal_destinations(r).min_by(|a, b| added(a).total_cmp(&added(b)))?;
    let finish = sum.timelines[best.idx()].predict(sum.work(r, best)).finish;
    Some(Seconds(network_s(problem, sum, r, best)) + finish)
}

/// Each request in the order of the rows where it adds least to J.
pub(in crate::routing) fn in_order(problem: &Problem, objective: &Objective) -> Vec<DestinationOrd> {
    match (problem.sum(), objective.sum()) {
        (Some(sum), Some(term)) => least_sum(problem, objective, (sum, term)),
        _ => least_makespan(problem, objective),
    }
}

fn least_sum(
    problem: &Problem,
    objective: &Objective,
    (sum, term): (&SumTables, &SumTerm),
) -> Vec<DestinationOrd> {
    let m = problem.n_destinations();
    let mut timelines = sum.timelines.clone();
    let mut assignment = Vec::with_capacity(problem.n_requests());
    let mut places = problem.places();
    for r in 0..problem.n_requests() {
        let added = |d: &DestinationOrd| {
            objective.separable()[r * m + d.idx()] + term.added(r, sum.work(r, *d), &timelines[d.idx()])
        };
        places.look(r);
        let open = problem.legal_destinations(r).filter(|d| places.is_open(d.idx()));
        let best = open.map(|d| (d, added(&d))).min_by(|a, b| a.1.total_cmp(&b.1));
        let Some((best, _)) = best else { continue };
        places.take(r, best.idx());
        timelines[best.idx()].push(sum.work(r, best));
        assignment.push(best);
    }
    assignment
}

fn least_makespan(problem: &Problem, objective: &Objective) -> Vec<DestinationOrd> {
    let m = problem.n_destinations();
    let mut longest_s = vec![0.0_f64; m];
    let mut total_s = vec![0.0_f64; m];
    let mut makespan_s = 0.0_f64;
    let mut assignment = Vec::with_capacity(problem.n_requests());
    let mut places = problem.places();
    for r in 0..problem.n_requests() {
        let step = |d: DestinationOrd| {
            let service_s = problem.service(r, d).get();
            let (longest_s, total_s) = (longest_s[d.idx()].max(service_s), total_s[d.idx()] + service_s);
            let finish_s = destination_finish_s(problem.destination(d), longest_s, total_s);
            let later_s = (finish_s - makespan_s).max(0.0);
            let separable = objective.separable()[r * m + d.idx()];
            Step { d, objective: separable + objective.time_weight_per_s() * later_s, finish_s }
        };
        // Of equally good destinations the one that is free first.
        let by_objective =
            |a: &Step, b: &Step| a.objective.total_cmp(&b.objective).then(a.finish_s.total_cmp(&b.finish_s));
        places.look(r);
        let open = problem.legal_destinations(r).filter(|d| places.is_open(d.idx()));
        let Some(best) = open.map(step).min_by(by_objective) else { continue };
        places.take(r, best.d.idx());
        let service_s = problem.service(r, best.d).get();
        longest_s[best.d.idx()] = longest_s[best.d.idx()].max(service_s);
        total_s[best.d.idx()] += service_s;
        makespan_s = makespan_s.max(best.finish_s);
        assignment.push(best.d);
    }
    assignment
}

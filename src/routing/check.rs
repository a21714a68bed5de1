//! Independent verifier: recomputes a decision from the raw tables alone, by other code than the policies'.

use thiserror::Error;

use crate::domain::DestinationOrd;
use crate::routing::decision::RoutingDecision;
use crate::routing::objective::{Bounds, Objective, RANGE_MIN};
use crate::routing::problem::Problem;

/// Largest relative difference put down to rounding.
const TOLERANCE: f64 = 1e-9;

/// What is wrong with a decision.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum CheckError {
    /// Not one destination per request.
    #[error("{got} destinations for {want} requests")]
    Incomplete {
        /// Entries of the assignment.
        got: usize,
        /// R.
        want: usize,
    },
    /// A destination outside the fleet or outside D_r.
    #[error("request {request} may not go to column {}", destination.0)]
    Illegal {
        /// Row.
        request: usize,
        /// Column.
        destination: DestinationOrd,
    },
    /// More requests than a destination's cap.
    #[error("{got} requests go to column {}, whose cap is {cap}", destination.0)]
    OverCap {
        /// Column.
        destination: DestinationOrd,
        /// Requests there.
        got: usize,
        /// The most that may.
        cap: u32,
    },
    /// A number that does not follow from the assignment.
    #[error("{what} is {got}, recomputed {want}")]
    Differs {
        /// Name of the number.
        what: &'static str,
        /// In the decision.
        got: f64,
        /// Recomputed.
        want: f64,
    },
    /// A lower bound above J.
    #[error("lower bound {bound} is above J = {objective}")]
    Bound {
        /// The bound.
        bound: f64,
        /// J.
        objective: f64,
    },
}

/// Verifies that a decision is complete, legal and within the caps, that its raw terms and J follow from the problem, and
/// that its bound is not above its J.
///
/// # Errors
/// The first fault found.
pub fn check(problem: &Problem, objective: &Objective, decision: &RoutingDecision) -> Result<(), CheckError> {
    let (got, want) = (decision.assignment.len(), problem.n_requests());
    if got != want {
        return Err(CheckError::Incomplete { got, want });
    }
    for (request, destination) in decision.assignment.iter().copied().enumerate() {
        if destination.idx() >= problem.n_destinations() || !problem.is_legal(request, destination) {
            return Err(CheckError::Illegal { request, destination });
        }
    }
    for (destination, load) in (0..).map(DestinationOrd).zip(problem.destinations()) {
        let got = decision.assignment.iter().filter(|d| **d == destination).count();
        if let Some(cap) = load.cap.filter(|cap| got > *cap as usize) {
            return Err(CheckError::OverCap { destination, got, cap });
        }
    }
    let raw = recompute(problem, &decision.assignment);
    let value = weigh(problem, objective, &decision.assignment, raw[3]);
    let pairs = [
        ("quality loss", decision.raw.quality_loss, raw[0]),
        ("cost", decision.raw.cost.get(), raw[1]),
        ("energy", decision.raw.energy.get(), raw[2]),
        ("time", decision.raw.time.get(), raw[3]),
        ("objective", decision.objective, value),
        ("sum of terms", decision.terms.total(), value),
    ];
    let differs = |(_, got, want): &(&str, f64, f64)| (got - want).abs() > TOLERANCE * want.abs().max(1.0);
    if let Some((what, got, want)) = pairs.into_iter().find(differs) {
        return Err(CheckError::Differs { what, got, want });
    }
    match decision.lower_bound {
        Some(bound) if bound > decision.objective + TOLERANCE => {
            Err(CheckError::Bound { bound, objective: decision.objective })
        }
        _ => Ok(()),
    }
}

/// Q, C, E, T by the definitions.
fn recompute(problem: &Problem, assignment: &[DestinationOrd]) -> [f64; 4] {
    let n = assignment.len() as f64;
    let pairs = || assignment.iter().copied().enumerate();
    let finish = |d: DestinationOrd| {
        if problem.sum().is_some() {
            let here = pairs().filter(|(_, x)| *x == d);
            return here.map(|(r, _)| served(problem, assignment, r).finish_s).fold(0.0, f64::max);
        }
        let here: Vec<f64> =
            pairs().filter(|(_, x)| *x == d).map(|(r, _)| problem.service(r, d).get()).collect();
        let load = problem.destination(d);
        let longest = here.iter().copied().fold(0.0, f64::max);
        let queue = load.backlog_s + here.iter().sum::<f64>() / load.batch_speedup;
        load.network_s + if longest > queue { longest } else { queue }
    };
    [
        pairs().map(|(r, d)| (1.0 - problem.quality(r, d).get()) / n).sum(),
        pairs().map(|(r, d)| problem.cost(r, d).get()).sum(),
        pairs().map(|(r, d)| problem.energy(r, d).get()).sum(),
        pairs().map(|(_, d)| finish(d)).fold(0.0, f64::max),
    ]
}

/// What comes of request `r` on the timeline of its destination, with the rows before it that are there too.
struct Served {
    finish_s: f64,
    delay_s: f64,
    saturated_s: f64,
}

fn served(problem: &Problem, assignment: &[DestinationOrd], r: usize) -> Served {
    let d = assignment[r];
    let Some(sum) = problem.sum() else { return Served { finish_s: 0.0, delay_s: 0.0, saturated_s: 0.0 } };
    let mut timeline = sum.timelines[d.idx()];
    let before = assignment[..r].iter().enumerate().filter(|(_, other)| **other == d);
    before.for_each(|(other, _)| timeline.push(sum.work(other, d)));
    let work = sum.work(r, d);
    Served {
        finish_s: sum.rtt_s[d.idx()] + problem.transfer(r, d).get() + timeline.predict(work).finish.get(),
        delay_s: timeline.externality(work).get(),
        saturated_s: timeline.saturated_work(work).get(),
    }
}

/// J by the definitions: per term Σ ω_r·share_r less the mean ω times the lower bound, over the range.
fn weigh(problem: &Problem, objective: &Objective, assignment: &[DestinationOrd], time_s: f64) -> f64 {
    let n = assignment.len() as f64;
    let Bounds { quality, cost, energy, time } = *objective.bounds();
    let mut total = 0.0;
    for (r, d) in assignment.iter().copied().enumerate() {
        let (w, load) = (problem.weights(r), problem.destination(d));
        let served = served(problem, assignment, r);
        let time_s = if problem.sum().is_some() { served.finish_s } else { time_s / n };
        let parts = [
            (w.quality, (1.0 - problem.quality(r, d).get()) / n, quality),
            (w.cost, problem.cost(r, d).get(), cost),
            (w.energy, problem.energy(r, d).get(), energy),
            (w.time, time_s, time),
        ];
        for (weight, share, range) in parts {
            if range.max - range.min > RANGE_MIN {
                total += weight * (share - range.min / n) / (range.max - range.min);
            }
        }
        if let Some(sum) = problem.sum() {
            let range_s = time.max - time.min;
            let delay = if range_s > RANGE_MIN { served.delay_s / range_s } else { 0.0 };
            let price = sum.price_per_s[d.idx()] * served.saturated_s / n;
            total += sum.others_time_weight * (delay + price);
        }
        if objective.has_backlog_term() {
            let work_s = problem.service(r, d).get() / load.batch_speedup;
            let before = assignment[..r].iter().enumerate().filter(|(_, other)| **other == d);
            let ahead_s: f64 = before.map(|(r, _)| problem.service(r, d).get() / load.batch_speedup).sum();
            total += objective.time_weight_per_s() * (load.backlog_s + ahead_s) * work_s;
        }
    }
    total
}

//! Bounds of Eq. 6 per term.

use crate::domain::{DestinationOrd, ObjectiveScales};
use crate::routing::baseline::earliest_finish;
use crate::routing::completion::{Makespan, completions, destination_finish_s};
use crate::routing::objective::network_s;
use crate::routing::problem::Problem;

/// A term whose range is not larger than this is constant and counts nothing.
pub const RANGE_MIN: f64 = 1e-12;

/// Bounds of one term, in the term's unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TermRange {
    /// Becomes 0.
    pub min: f64,
    /// Becomes 1.
    pub max: f64,
}

impl TermRange {
    /// `1 / (max − min)`, or 0 for a term that counts nothing.
    #[must_use]
    pub fn inverse(&self) -> f64 {
        let range = self.max - self.min;
        if range > RANGE_MIN { 1.0 / range } else { 0.0 }
    }

    /// `min / (max − min)`, or 0 for a term that counts nothing.
    #[must_use]
    pub fn offset(&self) -> f64 {
        self.min * self.inverse()
    }

    /// Eq. 6, not clipped.
    #[must_use]
    pub fn normalise(&self, value: f64) -> f64 {
        (value - self.min) * self.inverse()
    }

    /// The range of some values.
    pub(crate) fn over(values: impl Iterator<Item = f64>) -> Self {
        let start = Self { min: f64::INFINITY, max: f64::NEG_INFINITY };
        values.fold(start, |range, v| Self { min: range.min.min(v), max: range.max.max(v) })
    }
}

/// Bounds of the four terms: quality is a batch mean, money and energy batch sums, time a maximum, or a sum with time
/// term `sum`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Mean quality loss.
    pub quality: TermRange,
    /// US dollars.
    pub cost: TermRange,
    /// Joules.
    pub energy: TermRange,
    /// Seconds.
    pub time: TermRange,
}

impl Bounds {
    pub(super) fn stationary(problem: &Problem, scales: &ObjectiveScales) -> Self {
        let n = problem.n_requests() as f64;
        let up_to = |max: f64| TermRange { min: 0.0, max };
        Self {
            quality: up_to(scales.quality),
            cost: up_to(scales.cost.get() * n),
            energy: up_to(scales.energy.get() * n),
            time: up_to(scales.time.get() * if problem.sum().is_some() { n } else { 1.0 }),
        }
    }

    /// Ideal point and payoff-table nadir: per term the sum (quality: mean, makespan: largest) of per-request
    /// minima, and the worst value over the four assignments that are best for one term each.
    ///
    /// The best assignment for time is that of Algorithm 2 with batched work, a heuristic. A batch of one
    /// uses the ranges over its legal destinations.
    pub(super) fn of_batch(problem: &Problem) -> Self {
        if problem.n_requests() == 1 {
            return Self::of_single_request(problem);
        }
        let tables = problem.tables();
        let by_quality = best_per_request(problem, &tables.quality_loss);
        let by_cost = best_per_request(problem, &tables.cost_usd);
        let by_energy = best_per_request(problem, &tables.energy_j);
        let by_time = earliest_finish(problem);
        let mut time = BatchTime::new(problem);
        let n = problem.n_requests() as f64;
        let assignments = [&by_quality, &by_cost, &by_energy, &by_time];
        let worst = |value: &mut dyn FnMut(&[DestinationOrd]) -> f64| {
            assignments.iter().map(|x| value(x)).fold(f64::NEG_INFINITY, f64::max)
        };
        let sum_of = |table: &[f64], x: &[DestinationOrd]| total(problem, table, x);
        Self {
            quality: TermRange {
                min: sum_of(&tables.quality_loss, &by_quality) / n,
                max: worst(&mut |x| sum_of(&tables.quality_loss, x) / n),
            },
            cost: TermRange {
                min: sum_of(&tables.cost_usd, &by_cost),
                max: worst(&mut |x| sum_of(&tables.cost_usd, x)),
            },
            energy: TermRange {
                min: sum_of(&tables.energy_j, &by_energy),
                max: worst(&mut |x| sum_of(&tables.energy_j, x)),
            },
            time: TermRange { min: ideal_time_s(problem), max: worst(&mut |x| time.of(problem, x)) },
        }
    }

    fn of_single_request(problem: &Problem) -> Self {
        let over =
            |value: &dyn Fn(DestinationOrd) -> f64| TermRange::over(problem.legal_destinations(0).map(value));
        Self {
            quality: over(&|d| 1.0 - problem.quality(0, d).get()),
            cost: over(&|d| problem.cost(0, d).get()),
            energy: over(&|d| problem.energy(0, d).get()),
            time: over(&|d| single_finish_s(problem, 0, d)),
        }
    }
}

/// What the time term of a batch measures: the makespan, or the sum of completion times.
enum BatchTime {
    Makespan(Makespan),
    Sum,
}

impl BatchTime {
    fn new(problem: &Problem) -> Self {
        if problem.sum().is_some() { Self::Sum } else { Self::Makespan(Makespan::default()) }
    }

    fn of(&mut self, problem: &Problem, assignment: &[DestinationOrd]) -> f64 {
        match self {
            Self::Makespan(makespan) => makespan.of(problem, assignment),
            Self::Sum => completions(problem, assignment).iter().map(|finish| finish.0).sum(),
        }
    }
}

/// T of request `r` if the batch were `r` alone, at `d`.
fn single_finish_s(problem: &Problem, r: usize, d: DestinationOrd) -> f64 {
    if let Some(sum) = problem.sum() {
        return network_s(problem, sum, r, d) + sum.timelines[d.idx()].predict(sum.work(r, d)).finish.0;
    }
    let service_s = problem.service(r, d).get();
    destination_finish_s(problem.destination(d), service_s, service_s)
}

fn ideal_time_s(problem: &Problem) -> f64 {
    let best = |r| {
        let finishes = problem.legal_destinations(r).map(|d| single_finish_s(problem, r, d));
        finishes.fold(f64::INFINITY, f64::min)
    };
    let each = (0..problem.n_requests()).map(best);
    if problem.sum().is_some() { each.sum() } else { each.fold(0.0, f64::max) }
}

fn total(problem: &Problem, table: &[f64], assignment: &[DestinationOrd]) -> f64 {
    let m = problem.n_destinations();
    assignment.iter().enumerate().map(|(r, d)| table[r * m + d.idx()]).sum()
}

/// The legal destination with the least value in each row; the first of equals.
fn best_per_request(problem: &Problem, table: &[f64]) -> Vec<DestinationOrd> {
    let m = problem.n_destinations();
    let best = |r: usize| {
        let by_value = |a: &DestinationOrd, b: &DestinationOrd| {
            table[r * m + a.idx()].total_cmp(&table[r * m + b.idx()])
        };
        problem.legal_destinations(r).min_by(by_value).unwrap_or(DestinationOrd(0))
    };
    (0..problem.n_requests()).map(best).collect()
}

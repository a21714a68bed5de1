//! The scales of objective mode `stationary`: configured or derived priors, then a slow moving average
//! of what batches really range over, so that weights mean the same from window to window (DESIGN §3).

use crate::domain::{Destination, ObjectiveScales, Throughput};
use crate::routing::Problem;
use crate::units::{Joules, Seconds, Tokens, Usd};

/// Share of a new batch in the average: about a hundred batches to follow a change.
const SMOOTHING: f64 = 0.02;
/// Prior range of quality loss between the best and the worst destination of a request.
const QUALITY_RANGE_PRIOR: f64 = 0.25;
/// The request the priors of money, energy and time are worked out for.
const REFERENCE_PROMPT: Tokens = Tokens(500.0);
const REFERENCE_COMPLETION: Tokens = Tokens(250.0);
/// A scale never falls below this share of its prior: batches that hardly differ in a term must not
/// turn a rounding difference into the deciding one.
const FLOOR_SHARE: f64 = 0.05;
/// Least prior of a scale, as a share of the fleet's mean.
const MEAN_SHARE: f64 = 0.1;

/// A moving average of the objective's scales.
#[derive(Debug, Clone)]
pub struct ScalesAverage {
    prior: ObjectiveScales,
    current: ObjectiveScales,
}

impl ScalesAverage {
    /// Priors from the fleet itself: the range over its destinations of a reference request.
    #[must_use]
    pub fn from_fleet(destinations: &[Destination]) -> Self {
        let service = |d: &Destination| d.throughput.service_time(REFERENCE_PROMPT, REFERENCE_COMPLETION);
        let money = |d: &Destination| d.price.charge(REFERENCE_PROMPT, REFERENCE_COMPLETION).0;
        let energy = |d: &Destination| {
            (d.power.active().0 - d.power.idle.0).max(0.0) * service(d).0 / d.throughput.batch_speedup
        };
        let prior = ObjectiveScales {
            quality: QUALITY_RANGE_PRIOR,
            cost: Usd(prior_scale(destinations.iter().map(money))),
            energy: Joules(prior_scale(destinations.iter().map(energy))),
            time: Seconds(positive(mean(destinations.iter().map(|d| service(d).0)))),
        };
        Self { prior, current: prior }
    }

    /// The scales in force.
    #[must_use]
    pub const fn current(&self) -> ObjectiveScales {
        self.current
    }

    /// Takes in the mean per-request ranges of a planned batch. A batch without a choice teaches nothing.
    pub fn observe(&mut self, problem: &Problem) {
        let mut sums = [0.0; 4];
        let mut n_choices = 0_u32;
        for r in 0..problem.n_requests() {
            let legal = || problem.legal_destinations(r);
            if legal().nth(1).is_none() {
                continue;
            }
            n_choices += 1;
            sums[0] += range(legal().map(|d| problem.quality(r, d).0));
            sums[1] += range(legal().map(|d| problem.cost(r, d).0));
            sums[2] += range(legal().map(|d| problem.energy(r, d).0));
            sums[3] += mean(legal().map(|d| problem.service(r, d).0));
        }
        if n_choices == 0 {
            return;
        }
        let n = f64::from(n_choices);
        let follow = |current: f64, seen: f64, prior: f64| {
            (current + SMOOTHING * (seen / n - current)).max(FLOOR_SHARE * prior)
        };
        self.current = ObjectiveScales {
            quality: follow(self.current.quality, sums[0], self.prior.quality),
            cost: Usd(follow(self.current.cost.0, sums[1], self.prior.cost.0)),
            energy: Joules(follow(self.current.energy.0, sums[2], self.prior.energy.0)),
            time: Seconds(follow(self.current.time.0, sums[3], self.prior.time.0)),
        };
    }
}

/// What the reference request takes of a saturated destination's time; a second where its figures say nothing.
pub(super) fn reference_work(throughput: &Throughput) -> Seconds {
    let work = throughput.work(REFERENCE_PROMPT, REFERENCE_COMPLETION);
    let shared_s = work.decode.0 / throughput.speedup(throughput.max_concurrency);
    Seconds(positive(work.prefill.0 + shared_s))
}

fn range(values: impl Iterator<Item = f64>) -> f64 {
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    (high - low).max(0.0)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (n, sum) = values.fold((0_u32, 0.0), |(n, sum), v| (n + 1, sum + v));
    sum / f64::from(n.max(1))
}

/// The range over the fleet, or a share of the mean where the fleet hardly differs.
fn prior_scale(values: impl Iterator<Item = f64> + Clone) -> f64 {
    positive(range(values.clone()).max(MEAN_SHARE * mean(values)))
}

/// A term that is nil everywhere gets the scale 1: it decides nothing.
fn positive(value: f64) -> f64 {
    if value.is_finite() && value > 0.0 { value } else { 1.0 }
}

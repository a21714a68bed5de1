//! Methods at equal true score: what each one's latency and energy are where it answers as well as a reference, and
//! what its score is where it answers as fast.
//!
//! A lower latency can be bought with score and a higher score with latency, so methods cannot be told apart by one
//! run each. Each is run at several quality weights (a *sweep*), all methods and weights with the same arrivals and
//! rows (a *seed*). A sweep becomes a curve of latency over score: its points in order of the weight, neighbours whose
//! scores, then latencies, do not rise pooled into their mean (isotonic regression), straight lines between. Pooling
//! is a mean and no envelope: an envelope would pick lucky points.
//!
//! Curves are compared at the scores the reference reaches between half and twice the scenario's quality weight, as
//! far as the method reaches them; where it reaches none of them, at all that both reach. The difference of a seed is
//! the mean logarithm of the ratio at [`PLACES`] places evenly in that range; over the seeds its mean and the interval
//! by Student's t are taken, and turned into percent.

use serde::Serialize;

use crate::simulate::live_outcome::LiveOutcome;
use crate::simulate::statistics::{mean, paired_mean};

/// Multiples of the scenario's quality weight that make up a sweep.
pub const QUALITY_FACTORS: [f64; 7] = [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0];
/// The one of them at which methods are shown by themselves.
pub const UNIT_FACTOR: f64 = 1.0;

/// Between these multiples the reference's scores are those of interest.
const CORE_FACTORS: [f64; 2] = [0.5, 2.0];
/// Where two curves are compared within their common range.
const PLACES: usize = 9;

/// What a run at one quality weight came to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SweepPoint {
    /// Multiple of the scenario's quality weight; of pooled points the mean.
    pub factor: f64,
    /// Mean true score.
    pub score: f64,
    /// Mean latency.
    pub latency_s: f64,
    /// Its 95th percentile.
    pub p95_s: f64,
    /// Its 99th percentile.
    pub p99_s: f64,
    /// Energy per request, by the scenario's model.
    pub energy_j: f64,
}

impl SweepPoint {
    /// The point of a run of `n_requests` at `factor` times the quality weight.
    #[must_use]
    pub fn new(factor: f64, outcome: &LiveOutcome, n_requests: usize) -> Self {
        let latency = &outcome.latency_s;
        Self {
            factor,
            score: outcome.score,
            latency_s: latency.mean,
            p95_s: latency.p95,
            p99_s: latency.p99,
            energy_j: outcome.energy_j / n_requests.max(1) as f64,
        }
    }

    /// `(1 − share)` of this and `share` of `other`.
    fn towards(&self, other: &Self, share: f64) -> Self {
        let mix = |of: fn(&Self) -> f64| of(self) + share * (of(other) - of(self));
        Self {
            factor: mix(|p| p.factor),
            score: mix(|p| p.score),
            latency_s: mix(|p| p.latency_s),
            p95_s: mix(|p| p.p95_s),
            p99_s: mix(|p| p.p99_s),
            energy_j: mix(|p| p.energy_j),
        }
    }
}

/// The runs of one method: a list of points, ascending in weight, per seed; one point where weights do not matter.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    /// Name of the method.
    pub method: String,
    /// Seeds, in the same order for all methods.
    pub seeds: Vec<Vec<SweepPoint>>,
}

/// The points of a method, each the mean over the seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeanSweep {
    /// Name of the method.
    pub method: String,
    /// Ascending in weight.
    pub points: Vec<SweepPoint>,
}

impl Sweep {
    /// The mean over the seeds, point by point.
    #[must_use]
    pub fn mean(&self) -> MeanSweep {
        let n_points = self.seeds.first().map_or(0, Vec::len);
        let mean_point = |i: usize| {
            let of_seeds = self.seeds.iter().filter_map(|points| points.get(i));
            let mut sum: Option<(f64, SweepPoint)> = None;
            for point in of_seeds {
                sum = Some(match sum {
                    None => (1.0, *point),
                    Some((n, mean)) => (n + 1.0, mean.towards(point, 1.0 / (n + 1.0))),
                });
            }
            sum.map(|(_, mean)| mean)
        };
        MeanSweep { method: self.method.clone(), points: (0..n_points).filter_map(mean_point).collect() }
    }
}

/// One seed of a comparison. `null` where the curves have no score, or no latency, in common.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct SeedMatch {
    /// The mean score at which latencies and energies are compared.
    pub at_score: Option<f64>,
    /// Mean latency at equal score, percent of the reference's.
    pub latency_pct: Option<f64>,
    /// 95th percentile of latency at equal score, percent.
    pub p95_pct: Option<f64>,
    /// 99th percentile of latency at equal score, percent.
    pub p99_pct: Option<f64>,
    /// Energy at equal score, percent.
    pub energy_pct: Option<f64>,
    /// Score at equal mean latency, points of 0.01.
    pub score_points: Option<f64>,
}

/// A method against the reference: means over the seeds in which they can be compared, with 95 % intervals.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Matched {
    /// The method.
    pub method: String,
    /// What it is compared with.
    pub reference: String,
    /// The mean score at which latencies and energies are compared.
    pub at_score: Option<f64>,
    /// Mean latency at equal score, percent; negative is better.
    pub latency_pct: Option<f64>,
    /// Its interval.
    pub latency_ci: Option<[f64; 2]>,
    /// 95th percentile of latency at equal score, percent.
    pub p95_pct: Option<f64>,
    /// Its interval.
    pub p95_ci: Option<[f64; 2]>,
    /// 99th percentile of latency at equal score, percent.
    pub p99_pct: Option<f64>,
    /// Its interval.
    pub p99_ci: Option<[f64; 2]>,
    /// Score at equal mean latency, points of 0.01; positive is better.
    pub score_points: Option<f64>,
    /// Its interval.
    pub score_ci: Option<[f64; 2]>,
    /// Energy at equal score, percent; negative is better.
    pub energy_pct: Option<f64>,
    /// Its interval.
    pub energy_ci: Option<[f64; 2]>,
    /// Seed by seed.
    pub seeds: Vec<SeedMatch>,
}

/// Compares `method` with `reference`, seed by seed.
#[must_use]
pub fn compare(reference: &Sweep, method: &Sweep) -> Matched {
    let pairs = reference.seeds.iter().zip(&method.seeds);
    let seeds: Vec<SeedMatch> = pairs.map(|(reference, method)| match_seed(reference, method)).collect();
    let values = |of: fn(&SeedMatch) -> Option<f64>| seeds.iter().filter_map(of).collect::<Vec<f64>>();
    // Ratios are averaged as logarithms, so that twice and half as much are as far apart.
    let percent = |of: fn(&SeedMatch) -> Option<f64>| {
        let logs: Vec<f64> = values(of).into_iter().map(|pct| (1.0 + pct / 100.0).ln()).collect();
        let (mean, interval) = paired_mean(&logs).unzip();
        (mean.map(to_percent), interval.flatten().map(|ends| ends.map(to_percent)))
    };
    let (latency_pct, latency_ci) = percent(|s| s.latency_pct);
    let (p95_pct, p95_ci) = percent(|s| s.p95_pct);
    let (p99_pct, p99_ci) = percent(|s| s.p99_pct);
    let (energy_pct, energy_ci) = percent(|s| s.energy_pct);
    let (score_points, score_ci) = paired_mean(&values(|s| s.score_points)).unzip();
    let at_scores = values(|s| s.at_score);
    Matched {
        method: method.method.clone(),
        reference: reference.method.clone(),
        at_score: (!at_scores.is_empty()).then(|| mean(&at_scores)),
        latency_pct,
        latency_ci,
        p95_pct,
        p95_ci,
        p99_pct,
        p99_ci,
        score_points,
        score_ci: score_ci.flatten(),
        energy_pct,
        energy_ci,
        seeds,
    }
}

fn to_percent(log_ratio: f64) -> f64 {
    100.0 * (log_ratio.exp() - 1.0)
}

fn match_seed(reference: &[SweepPoint], method: &[SweepPoint]) -> SeedMatch {
    let core: Vec<SweepPoint> = reference
        .iter()
        .filter(|point| (CORE_FACTORS[0]..=CORE_FACTORS[1]).contains(&point.factor))
        .copied()
        .collect();
    let curves = Curves { reference: Curve::of(reference), method: Curve::of(method), core };
    let at_scores = curves.pairs(|p| p.score);
    let at_latencies = curves.pairs(|p| p.latency_s);
    let ratio = |of: fn(&SweepPoint) -> f64| {
        let logs: Vec<f64> = at_scores.iter().map(|(theirs, ours)| (of(ours) / of(theirs)).ln()).collect();
        (!logs.is_empty()).then(|| to_percent(mean(&logs)))
    };
    let average = |values: Vec<f64>| (!values.is_empty()).then(|| mean(&values));
    SeedMatch {
        at_score: average(at_scores.iter().map(|(theirs, _)| theirs.score).collect()),
        latency_pct: ratio(|p| p.latency_s),
        p95_pct: ratio(|p| p.p95_s),
        p99_pct: ratio(|p| p.p99_s),
        energy_pct: ratio(|p| p.energy_j),
        score_points: average(
            at_latencies.iter().map(|(theirs, ours)| 100.0 * (ours.score - theirs.score)).collect(),
        ),
    }
}

/// What a comparison may go by.
type Key = fn(&SweepPoint) -> f64;

struct Curves {
    reference: Curve,
    method: Curve,
    /// The reference's points of interest.
    core: Vec<SweepPoint>,
}

impl Curves {
    /// Reference and method at equal values of `key`, evenly over their common range.
    fn pairs(&self, key: Key) -> Vec<(SweepPoint, SweepPoint)> {
        let Some([low, high]) = self.range(key) else { return Vec::new() };
        let n = if high > low { PLACES } else { 1 };
        let place = |i: usize| low + (high - low) * i as f64 / (n.max(2) - 1) as f64;
        let pair = |at: f64| Some((self.reference.at(key, at)?, self.method.at(key, at)?));
        (0..n).filter_map(|i| pair(place(i).min(high))).collect()
    }

    fn range(&self, key: Key) -> Option<[f64; 2]> {
        let (theirs, ours) = (self.reference.range(key)?, self.method.range(key)?);
        let core = self.core.iter().map(key);
        let (low, high) =
            (core.clone().fold(f64::INFINITY, f64::min), core.fold(f64::NEG_INFINITY, f64::max));
        let of_interest = overlap(theirs, [low, high]);
        of_interest.and_then(|core| overlap(core, ours)).or_else(|| overlap(theirs, ours))
    }
}

fn overlap(a: [f64; 2], b: [f64; 2]) -> Option<[f64; 2]> {
    let both = [a[0].max(b[0]), a[1].min(b[1])];
    (both[0] <= both[1]).then_some(both)
}

/// Points that rise in score and in latency, with straight lines between them.
#[derive(Debug)]
struct Curve(Vec<SweepPoint>);

impl Curve {
    /// Of points in order of the quality weight.
    fn of(points: &[SweepPoint]) -> Self {
        let single = points.iter().map(|point| (1.0, *point)).collect();
        let rising = pool(pool(single, |p| p.score), |p| p.latency_s);
        Self(rising.into_iter().map(|(_, point)| point).collect())
    }

    fn range(&self, key: Key) -> Option<[f64; 2]> {
        Some([key(self.0.first()?), key(self.0.last()?)])
    }

    /// The curve where `key` is `value`; `None` beyond its ends.
    fn at(&self, key: Key, value: f64) -> Option<SweepPoint> {
        let after = self.0.partition_point(|point| key(point) < value);
        let upper = self.0.get(after)?;
        let Some(lower) = after.checked_sub(1).map(|before| &self.0[before]) else {
            return (key(upper) <= value).then_some(*upper);
        };
        Some(lower.towards(upper, (value - key(lower)) / (key(upper) - key(lower))))
    }
}

/// Isotonic regression: neighbours between which `key` does not rise are merged into their mean, weighted by how many
/// points each stands for.
fn pool(points: Vec<(f64, SweepPoint)>, key: Key) -> Vec<(f64, SweepPoint)> {
    let mut pooled: Vec<(f64, SweepPoint)> = Vec::with_capacity(points.len());
    for (mut n, mut point) in points {
        while let Some((n_before, before)) = pooled.pop_if(|(_, before)| key(before) >= key(&point)) {
            point = before.towards(&point, n / (n_before + n));
            n += n_before;
        }
        pooled.push((n, point));
    }
    pooled
}

#[cfg(test)]
mod tests;

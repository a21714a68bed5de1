//! Methods at equal true score: what each one's latency and energy are where it answers as well as a reference, and
//! what its score is where it answers as fast.
//!
//! A lower latency can be bought with score and a higher score with latency, so methods cannot be told apart by one
//! run each. Each is run at several quality weights (a *sweep*), all methods and weights with the same arrivals and
//! rows (a *seed*). A sweep becomes a curve of latency over score: its points in order of the weight, neighbours whose
//! scores, then latencies, do not rise pooled into their mean (isotonic regression), straight lines between. Pooling
//! is a mean and no envelope: an envelope would pick lucky points.
//!
//! A curve says how long a method takes for *at least* a score, and what score it has *within* a latency: below its
//! lowest score it takes what that takes, and given more time than its slowest point it has that point's score.
//! Curves are compared at the scores (latencies) the reference reaches between half and twice the scenario's quality
//! weight, as far as the method reaches them; where it reaches none of them, at the nearest that it does. The
//! difference of a seed is the mean logarithm of the ratio at [`PLACES`] places evenly in that range; over the seeds
//! its mean and the interval by Student's t are taken, and turned into percent.

use serde::Serialize;

use crate::simulate::live_outcome::LiveOutcome;
use crate::statistics::{mean, t_interval};

/// Multiples of the scenario's quality weight that make up a sweep.
pub const QUALITY_FACTORS: [f64; 7] = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0];
/// The one of them at which methods are shown by themselves.
pub const UNIT_FACTOR: f64 = 1.0;

/// Between these multiples the reference's scores are those of interest.
const CORE_FACTORS: [f64; 2] = [0.5, 2.0];
/// Where two curves are compared within their common range.
const PLACES: u32 = 9;

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

/// One seed of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SeedMatch {
    /// The mean score at which latencies and energies are compared.
    pub at_score: f64,
    /// Mean latency at equal score, percent more than the reference's.
    pub latency_pct: f64,
    /// 95th percentile of latency at equal score, percent.
    pub p95_pct: f64,
    /// 99th percentile of latency at equal score, percent.
    pub p99_pct: f64,
    /// Energy at equal score, percent.
    pub energy_pct: f64,
    /// Score at equal mean latency, points of 0.01.
    pub score_points: f64,
}

/// A method against the reference: means over the seeds, with 95 % intervals, which one seed does not have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Matched {
    /// The method.
    pub method: String,
    /// What it is compared with.
    pub reference: String,
    /// The mean score at which latencies and energies are compared.
    pub at_score: f64,
    /// Mean latency at equal score, percent; negative is better.
    pub latency_pct: f64,
    /// Its interval.
    pub latency_ci: Option<[f64; 2]>,
    /// 95th percentile of latency at equal score, percent.
    pub p95_pct: f64,
    /// Its interval.
    pub p95_ci: Option<[f64; 2]>,
    /// 99th percentile of latency at equal score, percent.
    pub p99_pct: f64,
    /// Its interval.
    pub p99_ci: Option<[f64; 2]>,
    /// Score at equal mean latency, points of 0.01; positive is better.
    pub score_points: f64,
    /// Its interval.
    pub score_ci: Option<[f64; 2]>,
    /// Energy at equal score, percent; negative is better.
    pub energy_pct: f64,
    /// Its interval.
    pub energy_ci: Option<[f64; 2]>,
    /// Seed by seed.
    pub seeds: Vec<SeedMatch>,
}

/// Compares `method` with `reference`, seed by seed; both have the same seeds, at least one.
#[must_use]
pub fn compare(reference: &Sweep, method: &Sweep) -> Matched {
    let pairs = reference.seeds.iter().zip(&method.seeds);
    let seeds: Vec<SeedMatch> = pairs.filter_map(|(theirs, ours)| match_seed(theirs, ours)).collect();
    // Ratios are averaged as logarithms, so that twice and half as much are as far apart.
    let percent = |of: fn(&SeedMatch) -> f64| {
        let logs: Vec<f64> = seeds.iter().map(|seed| (1.0 + of(seed) / 100.0).ln()).collect();
        (to_percent(mean(&logs)), t_interval(&logs).map(|ends| ends.map(to_percent)))
    };
    let (latency_pct, latency_ci) = percent(|s| s.latency_pct);
    let (p95_pct, p95_ci) = percent(|s| s.p95_pct);
    let (p99_pct, p99_ci) = percent(|s| s.p99_pct);
    let (energy_pct, energy_ci) = percent(|s| s.energy_pct);
    let score_points: Vec<f64> = seeds.iter().map(|seed| seed.score_points).collect();
    Matched {
        method: method.method.clone(),
        reference: reference.method.clone(),
        at_score: mean(&seeds.iter().map(|seed| seed.at_score).collect::<Vec<_>>()),
        latency_pct,
        latency_ci,
        p95_pct,
        p95_ci,
        p99_pct,
        p99_ci,
        score_points: mean(&score_points),
        score_ci: t_interval(&score_points),
        energy_pct,
        energy_ci,
        seeds,
    }
}

fn to_percent(log_ratio: f64) -> f64 {
    100.0 * (log_ratio.exp() - 1.0)
}

/// `None` if one of them has no points.
fn match_seed(reference: &[SweepPoint], method: &[SweepPoint]) -> Option<SeedMatch> {
    let (theirs, ours) = (Curve::of(reference)?, Curve::of(method)?);
    let core = || {
        let is_core = |point: &&SweepPoint| (CORE_FACTORS[0]..=CORE_FACTORS[1]).contains(&point.factor);
        reference.iter().filter(is_core)
    };
    let scores = span(core().map(|point| point.score));
    let at_scores: Vec<(SweepPoint, SweepPoint)> =
        places(scores.map(|score| score.min(theirs.last().score).min(ours.last().score)))
            .map(|score| (theirs.at_least(score), ours.at_least(score)))
            .collect();
    let latencies = span(core().map(|point| point.latency_s));
    let at_latencies = places(latencies.map(|s| s.max(theirs.first().latency_s).max(ours.first().latency_s)))
        .map(|latency_s| ours.within(latency_s).score - theirs.within(latency_s).score);
    let percent = |of: fn(&SweepPoint) -> f64| {
        let logs: Vec<f64> = at_scores.iter().map(|(theirs, ours)| (of(ours) / of(theirs)).ln()).collect();
        to_percent(mean(&logs))
    };
    // Where the method has more than the score asked for, it is shown at what it has.
    let places_of_score: Vec<f64> = at_scores.iter().map(|(_, ours)| ours.score).collect();
    Some(SeedMatch {
        at_score: mean(&places_of_score),
        latency_pct: percent(|p| p.latency_s),
        p95_pct: percent(|p| p.p95_s),
        p99_pct: percent(|p| p.p99_s),
        energy_pct: percent(|p| p.energy_j),
        score_points: 100.0 * mean(&at_latencies.collect::<Vec<_>>()),
    })
}

/// The least and the largest value.
fn span(values: impl Iterator<Item = f64>) -> [f64; 2] {
    values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], x| [low.min(x), high.max(x)])
}

/// [`PLACES`] evenly over a range, ends included.
fn places([low, high]: [f64; 2]) -> impl Iterator<Item = f64> {
    let share = |i: u32| f64::from(i) / f64::from(PLACES - 1);
    (0..PLACES).map(move |i| low + (high - low) * share(i))
}

/// A figure that a curve rises in.
type Key = fn(&SweepPoint) -> f64;

/// Points that rise in score and in latency, with straight lines between them; at least one.
#[derive(Debug)]
struct Curve(Vec<SweepPoint>);

impl Curve {
    /// Of points in order of the quality weight; `None` without points.
    fn of(points: &[SweepPoint]) -> Option<Self> {
        let single = points.iter().map(|point| (1.0, *point)).collect();
        let rising = pool(pool(single, |p| p.score), |p| p.latency_s);
        (!rising.is_empty()).then(|| Self(rising.into_iter().map(|(_, point)| point).collect()))
    }

    fn first(&self) -> &SweepPoint {
        &self.0[0]
    }

    fn last(&self) -> &SweepPoint {
        &self.0[self.0.len() - 1]
    }

    /// Where the method has at least this score, which its last point has.
    fn at_least(&self, score: f64) -> SweepPoint {
        self.at(|p| p.score, score)
    }

    /// The best within this latency, which its first point keeps.
    fn within(&self, latency_s: f64) -> SweepPoint {
        self.at(|p| p.latency_s, latency_s)
    }

    /// Where `key` is `value`; beyond an end, that end.
    fn at(&self, key: Key, value: f64) -> SweepPoint {
        let after = self.0.partition_point(|point| key(point) < value);
        match (after.checked_sub(1).map(|before| &self.0[before]), self.0.get(after)) {
            (Some(lower), Some(upper)) => {
                lower.towards(upper, (value - key(lower)) / (key(upper) - key(lower)))
            }
            (None, _) => *self.first(),
            (_, None) => *self.last(),
        }
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

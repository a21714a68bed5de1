//! What came of requests: counts, sums, and how long they took.

use crate::domain::{ObjectiveScales, Weights};
use crate::units::{Joules, Quality, Seconds, Usd};

/// A latency is known within this factor.
const BUCKET_RATIO: f64 = 1.05;
/// The shortest latency told apart.
const BUCKET_FIRST: Seconds = Seconds(1e-3);
/// Buckets: up to an hour.
const N_BUCKETS: usize = 311;

/// What one answered request came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Realised {
    /// Predicted quality at the destination that answered.
    pub quality: Quality,
    /// Its price, by the tokens that were counted.
    pub usd: Usd,
    /// What it drew, by the model at the tokens counted; replaced by what a meter says.
    pub joules: Joules,
    /// From its arrival to the last byte.
    pub latency: Seconds,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Ending {
    /// It was answered whole.
    Answered(Realised),
    /// The router or its endpoints failed it.
    Failed,
    /// Its client left.
    Left,
    /// It was at fault itself, or the router stopped: it says nothing of a policy.
    Void,
}

/// Sums over requests.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Tally {
    pub(super) answered: u64,
    pub(super) failed: u64,
    pub(super) left: u64,
    /// Of those that ended, how many left for their destination by a plan of another policy.
    pub(super) crossed: u64,
    pub(super) quality: f64,
    pub(super) usd: f64,
    pub(super) joules: f64,
    pub(super) latency_s: f64,
    /// Answers that clients gave a score, and the sum of the scores.
    pub(super) scored: u64,
    pub(super) scores: f64,
    /// ω_i · term_i of each request, before the scales: quality loss, USD, J, s.
    weighted: [f64; 4],
}

impl Tally {
    pub(super) fn add(&mut self, ending: &Ending, weights: Weights, has_crossed: bool) {
        match ending {
            Ending::Answered(realised) => self.answer(realised, weights),
            Ending::Failed => self.failed += 1,
            Ending::Left => self.left += 1,
            Ending::Void => return,
        }
        self.crossed += u64::from(has_crossed);
    }

    fn answer(&mut self, realised: &Realised, weights: Weights) {
        let Realised { quality, usd, joules, latency } = *realised;
        self.answered += 1;
        self.quality += quality.0;
        self.usd += usd.0;
        self.joules += joules.0;
        self.latency_s += latency.0;
        let terms = [1.0 - quality.0, usd.0, joules.0, latency.0];
        let weights = [weights.quality, weights.cost, weights.energy, weights.time];
        for ((sum, term), weight) in self.weighted.iter_mut().zip(terms).zip(weights) {
            *sum += weight * term;
        }
    }

    /// One of the answered drew so much more than was counted, at weight `weight` in J.
    pub(super) fn correct_energy(&mut self, more: Joules, weight: f64) {
        self.joules += more.0;
        self.weighted[2] += weight * more.0;
    }

    /// A client gave an answer this score, in the place of `previous`.
    pub(super) fn give(&mut self, score: Quality, previous: Option<Quality>) {
        self.scored += u64::from(previous.is_none());
        self.scores += score.0 - previous.map_or(0.0, |previous| previous.0);
    }

    /// Mean score of the answers that clients gave one.
    pub(super) fn mean_score(&self) -> Option<f64> {
        (self.scored > 0).then(|| self.scores / self.scored as f64)
    }

    /// Mean of J over the answered: their own weights, on `scales`.
    pub(super) fn objective(&self, scales: &ObjectiveScales) -> Option<f64> {
        let scales = [scales.quality, scales.cost.0, scales.energy.0, scales.time.0];
        let terms = self.weighted.iter().zip(scales).filter(|(_, scale)| *scale > 0.0);
        self.per_answered(terms.map(|(sum, scale)| sum / scale).sum())
    }

    /// A sum over the answered as their mean; `None` without any.
    pub(super) fn per_answered(&self, sum: f64) -> Option<f64> {
        (self.answered > 0).then(|| sum / self.answered as f64)
    }

    /// Share of requests that were failed.
    pub(super) fn failed_share(&self) -> Option<f64> {
        let n = self.answered + self.failed;
        (n > 0).then(|| self.failed as f64 / n as f64)
    }
}

/// Latencies, each within a factor of [`BUCKET_RATIO`].
#[derive(Debug, Clone)]
pub(super) struct Latencies {
    counts: Box<[u64; N_BUCKETS]>,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { counts: Box::new([0; N_BUCKETS]) }
    }
}

impl Latencies {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    pub(super) fn add(&mut self, latency: Seconds) {
        let ratio = (latency.0 / BUCKET_FIRST.0).max(1.0);
        let bucket = (ratio.ln() / BUCKET_RATIO.ln()).min((N_BUCKETS - 1) as f64) as usize;
        self.counts[bucket] += 1;
    }

    /// The nearest-rank quantile `q` in `[0, 1]`; `None` without samples.
    pub(super) fn quantile(&self, q: f64) -> Option<Seconds> {
        let n: u64 = self.counts.iter().sum();
        let rank = (q * n as f64).ceil().max(1.0);
        let mut below = 0;
        let bucket = self.counts.iter().position(|count| {
            below += count;
            below as f64 >= rank
        })?;
        // The middle of the bucket.
        Some(Seconds(BUCKET_FIRST.0 * BUCKET_RATIO.powf(bucket as f64 + 0.5)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j_is_that_of_the_answered_on_the_scales_asked_for() {
        let scales =
            ObjectiveScales { quality: 0.5, cost: Usd(0.01), energy: Joules(100.0), time: Seconds(4.0) };
        let realised =
            Realised { quality: Quality(0.8), usd: Usd(0.002), joules: Joules(50.0), latency: Seconds(2.0) };
        let hurried = Weights { quality: 0.0, cost: 0.0, energy: 0.0, time: 1.0 };
        let mut tally = Tally::default();
        tally.add(&Ending::Answered(realised), hurried, false);
        for ending in [Ending::Answered(realised), Ending::Failed, Ending::Left, Ending::Void] {
            tally.add(&ending, Weights::EQUAL, matches!(ending, Ending::Failed | Ending::Void));
        }
        assert_eq!((tally.answered, tally.failed, tally.left, tally.crossed), (2, 1, 1, 1));
        // (0.2 / 0.5 + 0.002 / 0.01 + 50 / 100 + 2 / 4) / 4 = 0.4 and 2 / 4.
        assert!((tally.objective(&scales).unwrap() - 0.45).abs() < 1e-12);
        tally.correct_energy(Joules(50.0), 0.25);
        assert!((tally.objective(&scales).unwrap() - (0.45 + 0.0625)).abs() < 1e-12);
        assert!((tally.per_answered(tally.joules).unwrap() - 75.0).abs() < 1e-12);
        assert!((tally.failed_share().unwrap() - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!((Tally::default().objective(&scales), Tally::default().failed_share()), (None, None));
    }

    #[test]
    fn a_changed_score_counts_once() {
        let mut tally = Tally::default();
        assert_eq!(tally.mean_score(), None);
        tally.give(Quality(1.0), None);
        tally.give(Quality(0.5), None);
        tally.give(Quality(0.0), Some(Quality(1.0)));
        assert_eq!(tally.scored, 2);
        assert!((tally.mean_score().unwrap() - 0.25).abs() < 1e-12);
    }

    #[test]
    fn quantiles_are_within_a_bucket() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile(0.5), None);
        (1..=1000).for_each(|n| latencies.add(Seconds(f64::from(n) * 0.01)));
        for (q, is) in [(0.0, 0.01), (0.5, 5.0), (0.95, 9.5), (1.0, 10.0)] {
            let found = latencies.quantile(q).unwrap().0;
            assert!((found / is).ln().abs() <= BUCKET_RATIO.ln(), "{q}: {found}");
        }
        latencies.add(Seconds(0.0));
        latencies.add(Seconds(1e9));
        assert!(latencies.quantile(0.0).unwrap().0 < 1.1e-3);
        assert!(latencies.quantile(1.0).unwrap().0 > 3_600.0);
    }
}

//! How far predicted quality is from what clients say of the answers, by model.

use std::collections::VecDeque;

use crate::units::Quality;

/// The last so many scores of a model count.
pub const DRIFT_SCORES_MAX: usize = 200;
/// Below so many nothing is called a drift.
const SCORES_MIN: usize = 20;
/// A difference that matters, beyond its uncertainty.
const DRIFT_MIN: f64 = 0.1;
/// Of a normal distribution, both sides of a 95 % interval.
const Z_95: f64 = 1.96;

/// Recent scores of one model against what was predicted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drift {
    /// Scores that count, at most [`DRIFT_SCORES_MAX`].
    pub scores: usize,
    /// Their mean, in `[0, 1]`.
    pub mean_score: f64,
    /// Mean q̂ of the same answers when they were placed, in `[0, 1]`.
    pub mean_predicted: f64,
    /// Half of the 95 % interval of the mean difference; `None` with fewer than two scores.
    pub half_interval: Option<f64>,
}

impl Drift {
    /// Mean score less mean prediction: below 0 where answers are worse than predicted.
    #[must_use]
    pub fn difference(&self) -> f64 {
        self.mean_score - self.mean_predicted
    }

    /// Whether predictions are off by 0.1 or more and that is no accident.
    #[must_use]
    pub fn is_drifting(&self) -> bool {
        let off = self.difference().abs();
        self.scores >= SCORES_MIN
            && off >= DRIFT_MIN
            && self.half_interval.is_some_and(|half_interval| off > half_interval)
    }
}

/// The last scores of one model.
#[derive(Debug, Clone, Default)]
pub(super) struct RecentScores(VecDeque<Scored>);

#[derive(Debug, Clone, Copy)]
struct Scored {
    ord: i64,
    score: f64,
    predicted: f64,
}

impl RecentScores {
    /// Adds the score number `ord`, or replaces it.
    pub(super) fn put(&mut self, ord: i64, score: Quality, predicted: Quality) {
        let scored = Scored { ord, score: score.0, predicted: predicted.0 };
        if let Some(known) = self.0.iter_mut().find(|known| known.ord == ord) {
            *known = scored;
            return;
        }
        if self.0.len() >= DRIFT_SCORES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(scored);
    }

    /// `None` without a score.
    pub(super) fn drift(&self) -> Option<Drift> {
        let n = self.0.len();
        if n == 0 {
            return None;
        }
        let mean = |of: &dyn Fn(&Scored) -> f64| self.0.iter().map(of).sum::<f64>() / n as f64;
        let (mean_score, mean_predicted) = (mean(&|s| s.score), mean(&|s| s.predicted));
        let difference = mean_score - mean_predicted;
        let half_interval = (n > 1).then(|| {
            let squares: f64 = self.0.iter().map(|s| (s.score - s.predicted - difference).powi(2)).sum();
            Z_95 * (squares / (n as f64 - 1.0) / n as f64).sqrt()
        });
        Some(Drift { scores: n, mean_score, mean_predicted, half_interval })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recent(scores: impl IntoIterator<Item = f64>, predicted: f64) -> RecentScores {
        let mut recent = RecentScores::default();
        for (ord, score) in (0..).zip(scores) {
            recent.put(ord, Quality(score), Quality(predicted));
        }
        recent
    }

    #[test]
    fn the_difference_is_that_of_the_means_with_its_interval() {
        let drift = recent([1.0, 0.0, 0.0, 0.0], 0.75).drift().unwrap();
        assert!((drift.difference() - (0.25 - 0.75)).abs() < 1e-12);
        // Differences 0.25 and three of -0.75: variance 4 × ... = (0.75² + 3 × 0.25²) / 3 = 0.25.
        assert!((drift.half_interval.unwrap() - 1.96 * (0.25f64 / 4.0).sqrt()).abs() < 1e-12);
        assert!(!drift.is_drifting(), "four scores tell nothing");
        assert_eq!(RecentScores::default().drift(), None);
        assert_eq!(recent([1.0], 0.5).drift().unwrap().half_interval, None);
    }

    #[test]
    fn only_what_is_large_and_no_accident_is_a_drift() {
        let worse = (0..40).map(|n| f64::from(n % 2));
        assert!(recent(worse.clone(), 0.9).drift().unwrap().is_drifting());
        assert!(!recent(worse.clone(), 0.55).drift().unwrap().is_drifting(), "0.05 is little");
        // 0.5 ± 0.16 against 0.62: may be an accident.
        assert!(!recent(worse, 0.62).drift().unwrap().is_drifting());
    }

    #[test]
    fn the_last_scores_count_and_a_changed_one_once() {
        let mut recent = recent(std::iter::repeat_n(0.0, DRIFT_SCORES_MAX), 0.5);
        recent.put(3, Quality(1.0), Quality(0.5));
        let drift = recent.drift().unwrap();
        assert_eq!(drift.scores, DRIFT_SCORES_MAX);
        assert!((drift.mean_score - 1.0 / DRIFT_SCORES_MAX as f64).abs() < 1e-12);
        for ord in 1000..1004 {
            recent.put(ord, Quality(1.0), Quality(0.5));
        }
        // Number 3 was among the four oldest.
        let drift = recent.drift().unwrap();
        assert_eq!(drift.scores, DRIFT_SCORES_MAX);
        assert!((drift.mean_score - 4.0 / DRIFT_SCORES_MAX as f64).abs() < 1e-12);
    }
}

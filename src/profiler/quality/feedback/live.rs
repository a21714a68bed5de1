//! Feedback as further neighbours of a prompt, from the moment it is given.
//!
//! With the nearest scores f of model m, each of age t and with the similarity weight w of a profiled prompt,
//! q̂ = (W q̂₀ + Σ ω 2^(−t/h) w_f f) / (W + Σ ω 2^(−t/h) w_f), where q̂₀ and W (its Σ w + κ) are what the profile alone
//! says. So ω = 1 lets a fresh score count as much as a profiled one; at half-life h it counts half. A destination
//! that was never profiled has its prior for q̂₀, with W = 1.

use std::sync::{Arc, PoisonError, RwLock};

use crate::profiler::quality::embedder::EMBEDDING_DIMENSIONS;
use crate::profiler::quality::estimator::vectors::{Neighbour, PromptVector, keep_nearest, squared_distance};
use crate::profiler::quality::estimator::{Estimate, Estimator};
use crate::profiler::quality::feedback::FeedbackParams;
use crate::profiler::quality::format::FORMAT_NUMBERS;
use crate::units::Quality;

/// K is never below this (where there are as many scores) …
const NEIGHBOURS_MIN: usize = 20;
/// … nor above the number of scores divided by this …
const ROWS_PER_NEIGHBOUR: usize = 5;
/// … nor above this.
const NEIGHBOURS_MAX: usize = 160;

/// One score with its prompt.
#[derive(Debug, Clone)]
pub(in crate::profiler::quality) struct LiveRow {
    /// Its number in the store.
    pub(in crate::profiler::quality) ord: i64,
    /// Public model name.
    pub(in crate::profiler::quality) model: Arc<str>,
    pub(in crate::profiler::quality) score: Quality,
    /// Seconds since 1970.
    pub(in crate::profiler::quality) given_at: f64,
    /// The prompt as the estimator of the day compares it.
    pub(in crate::profiler::quality) vector: Box<PromptVector>,
}

/// The scores that predictions look at, the newest ones within a bound. Shared by threads.
pub(in crate::profiler::quality) struct LiveFeedback {
    /// Models of the fleet.
    models: Vec<Arc<str>>,
    /// Index of its model for each destination.
    columns: Vec<usize>,
    weight: f64,
    /// `None` = scores do not age.
    half_life_s: Option<f64>,
    rows_max: usize,
    rows: RwLock<Rows>,
}

#[derive(Default)]
struct Rows {
    vectors: Vec<PromptVector>,
    scores: Vec<Score>,
    /// The oldest, once there are as many as may be.
    oldest: usize,
}

#[derive(Clone, Copy)]
struct Score {
    ord: i64,
    column: usize,
    score: f64,
    given_at: f64,
}

/// Buffers of one thread.
#[derive(Debug, Default)]
pub(in crate::profiler::quality) struct LiveScratch {
    neighbours: Vec<Neighbour>,
    /// Σ w f and Σ w per model.
    sums: Vec<(f64, f64)>,
}

impl LiveFeedback {
    /// None yet; `models` are the public model names of the destinations, in order.
    pub(in crate::profiler::quality) fn new(
        models: impl Iterator<Item = Arc<str>>,
        params: &FeedbackParams,
    ) -> Self {
        let mut known: Vec<Arc<str>> = Vec::new();
        let columns = models.map(|model| {
            known.iter().position(|name| *name == model).unwrap_or_else(|| {
                known.push(model);
                known.len() - 1
            })
        });
        let columns = columns.collect();
        Self {
            models: known,
            columns,
            weight: params.weight,
            half_life_s: params.half_life.map(|half_life| half_life.0),
            rows_max: params.rows_max,
            rows: RwLock::default(),
        }
    }

    /// Adds a score or changes it; `false` if it informs no prediction.
    pub(in crate::profiler::quality) fn put(&self, row: &LiveRow) -> bool {
        let Some(column) = self.models.iter().position(|model| *model == row.model) else { return false };
        if self.weight <= 0.0 || self.rows_max == 0 {
            return false;
        }
        let score = Score { ord: row.ord, column, score: row.score.0, given_at: row.given_at };
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = rows.scores.iter_mut().find(|known| known.ord == row.ord) {
            *known = score;
        } else if rows.scores.len() < self.rows_max {
            rows.scores.push(score);
            rows.vectors.push(*row.vector);
        } else {
            let oldest = rows.oldest;
            rows.scores[oldest] = score;
            rows.vectors[oldest] = *row.vector;
            rows.oldest = (oldest + 1) % self.rows_max;
        }
        true
    }

    /// Scores that predictions look at.
    pub(in crate::profiler::quality) fn len(&self) -> usize {
        self.rows.read().unwrap_or_else(PoisonError::into_inner).scores.len()
    }

    /// Lets the scores count in `estimate`, which `estimator` made of a message with this embedding and these
    /// format numbers, at `now` (seconds since 1970).
    pub(in crate::profiler::quality) fn blend(
        &self,
        estimator: &Estimator,
        (embedding, format): (&[f32; EMBEDDING_DIMENSIONS], &[f64; FORMAT_NUMBERS]),
        now: f64,
        (estimate, scratch): (&mut Estimate, &mut LiveScratch),
    ) {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        if rows.scores.is_empty() {
            return;
        }
        let query = estimator.vector(embedding, format);
        let LiveScratch { neighbours, sums } = scratch;
        neighbours.clear();
        neighbours.extend(
            (0u32..)
                .zip(&rows.vectors)
                .map(|(row, vector)| Neighbour { row, squared_distance: squared_distance(&query, vector) }),
        );
        let k = NEIGHBOURS_MIN.max(neighbours.len() / ROWS_PER_NEIGHBOUR).min(NEIGHBOURS_MAX);
        keep_nearest(neighbours, k, 0);
        sums.clear();
        sums.resize(self.models.len(), (0.0, 0.0));
        for neighbour in neighbours.iter() {
            let score = rows.scores[neighbour.row as usize];
            let age_s = (now - score.given_at).max(0.0);
            let decay = self.half_life_s.map_or(1.0, |half_life_s| (-age_s / half_life_s).exp2());
            let weight = self.weight * decay * estimator.kernel().weight(neighbour);
            let (scored, total) = &mut sums[score.column];
            *scored += weight * score.score;
            *total += weight;
        }
        drop(rows);
        estimate.evidence += sums.iter().map(|(_, total)| total).sum::<f64>();
        let prediction = estimate.prediction.quality.iter_mut().zip(&mut estimate.weights);
        for ((quality, own), column) in prediction.zip(&self.columns) {
            let (scored, total) = sums[*column];
            if total > 0.0 {
                *quality = Quality(((*own * quality.0 + scored) / (*own + total)).clamp(0.0, 1.0));
                *own += total;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiler::quality::estimator::Scratch;
    use crate::profiler::quality::estimator::profile::{Profile, ProfileCell};
    use crate::profiler::quality::params::{DestinationPrior, FleetPriors, QualityParams};
    use crate::units::{Seconds, Tokens};

    const NO_FORMAT: [f64; FORMAT_NUMBERS] = [0.0; FORMAT_NUMBERS];
    const DAY_S: f64 = 86_400.0;

    fn axis(axis: usize) -> [f32; EMBEDDING_DIMENSIONS] {
        let mut embedding = [0.0; EMBEDDING_DIMENSIONS];
        embedding[axis] = 1.0;
        embedding
    }

    /// Models m (profiled: 1 on axis 0), m once more, and n (never profiled, prior 0.6).
    fn estimator() -> Estimator {
        let prior = |model: &str| DestinationPrior {
            model: model.into(),
            quality: Quality(0.6),
            completion_tokens: Tokens(10.0),
        };
        let priors = FleetPriors { destinations: ["m", "m", "n"].map(prior).into() };
        let mut profile = Profile::new(vec!["m".into()]);
        profile.push(&axis(0), NO_FORMAT, &[Some(ProfileCell { score: 1.0, completion_tokens: None })]);
        Estimator::new(profile, &priors, &QualityParams::default())
    }

    fn live(params: &FeedbackParams) -> LiveFeedback {
        LiveFeedback::new(["m", "m", "n"].into_iter().map(Arc::from), params)
    }

    fn row(estimator: &Estimator, ord: i64, model: &str, score: f64) -> LiveRow {
        let vector = Box::new(estimator.vector(&axis(0), &NO_FORMAT));
        LiveRow { ord, model: model.into(), score: Quality(score), given_at: 0.0, vector }
    }

    fn predicted(estimator: &Estimator, live: &LiveFeedback, at: usize, now: f64) -> Vec<f64> {
        let mut estimate = estimator.predict(&axis(at), &NO_FORMAT, &mut Scratch::default());
        let mut scratch = LiveScratch::default();
        live.blend(estimator, (&axis(at), &NO_FORMAT), now, (&mut estimate, &mut scratch));
        estimate.prediction.quality.iter().map(|quality| quality.0).collect()
    }

    fn assert_near(got: &[f64], expected: [f64; 3]) {
        for (got, expected) in got.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-6, "{got}, expected {expected}");
        }
    }

    #[test]
    fn scores_count_as_profiled_prompts_do() {
        let (estimator, live) = (estimator(), live(&FeedbackParams::default()));
        assert_near(&predicted(&estimator, &live, 0, 0.0), [1.0, 1.0, 0.6]);
        assert!(live.put(&row(&estimator, 1, "m", 0.0)));
        // One profiled 1, κ = 0.1 at μ = 1, and one score of 0, all with w = 1.
        let m = 1.1 / 2.1;
        assert_near(&predicted(&estimator, &live, 0, 0.0), [m, m, 0.6]);
        // The prior counts as one.
        assert!(live.put(&row(&estimator, 2, "n", 0.0)));
        assert_near(&predicted(&estimator, &live, 0, 0.0), [m, m, 0.3]);
        assert!(!live.put(&row(&estimator, 3, "elsewhere", 0.0)));
        // The last word about an answer stands.
        assert!(live.put(&row(&estimator, 1, "m", 1.0)));
        assert_near(&predicted(&estimator, &live, 0, 0.0), [1.0, 1.0, 0.3]);
        assert_eq!(live.len(), 2);
    }

    #[test]
    fn scores_of_other_prompts_count_little() {
        let (estimator, live) = (estimator(), live(&FeedbackParams::default()));
        live.put(&row(&estimator, 1, "n", 0.0));
        // At a right angle w = e^-5.
        let w = (-5.0f64).exp();
        let n = predicted(&estimator, &live, 1, 0.0)[2];
        assert!((n - 0.6 / (1.0 + w)).abs() < 1e-6, "{n}");
    }

    #[test]
    fn scores_age_and_weigh_as_configured() {
        let estimator = estimator();
        let half_life = Some(Seconds(30.0 * DAY_S));
        let params = FeedbackParams { half_life, weight: 2.0, ..FeedbackParams::default() };
        let live = live(&params);
        live.put(&row(&estimator, 1, "n", 0.0));
        for (days, weight) in [(0.0, 2.0), (30.0, 1.0), (60.0, 0.5)] {
            let n = predicted(&estimator, &live, 0, days * DAY_S)[2];
            assert!((n - 0.6 / (1.0 + weight)).abs() < 1e-6, "after {days} days: {n}");
        }
        for off in [
            FeedbackParams { weight: 0.0, ..FeedbackParams::default() },
            FeedbackParams { rows_max: 0, ..FeedbackParams::default() },
        ] {
            assert!(!self::live(&off).put(&row(&estimator, 1, "n", 0.0)));
        }
    }

    #[test]
    fn the_newest_scores_are_kept() {
        let estimator = estimator();
        let live = live(&FeedbackParams { rows_max: 3, ..FeedbackParams::default() });
        for (ord, score) in [(1, 0.0), (2, 0.0), (3, 1.0), (4, 1.0), (5, 1.0)] {
            live.put(&row(&estimator, ord, "n", score));
        }
        assert_eq!(live.len(), 3);
        let n = predicted(&estimator, &live, 0, 0.0)[2];
        assert!((n - (0.6 + 3.0) / 4.0).abs() < 1e-6, "{n}");
    }
}

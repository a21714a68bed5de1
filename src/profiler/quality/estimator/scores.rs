//! Recorded scores, and their weighted mean over neighbours.

use crate::profiler::quality::estimator::profile::ProfileCell;
use crate::profiler::quality::estimator::vectors::Neighbour;
use crate::profiler::quality::params::FleetPriors;
use crate::units::Quality;

/// What a prior weighs beside other evidence: as much as one prompt of the same words.
const PRIOR_WEIGHT: f64 = 1.0;

/// What a destination's quality is when its model has or has not been profiled.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// Column of the score table.
    Profiled(usize),
    Prior(Quality),
}

/// N × M scores and the means of the M models.
#[derive(Debug)]
pub(super) struct ScoreTable {
    /// N × M, row-major.
    scores: Vec<Option<f32>>,
    /// μ per model; `None` if it has no score.
    means: Vec<f64>,
    sources: Vec<Source>,
}

impl ScoreTable {
    /// `columns` says which model of the table serves each destination of `priors`.
    pub(super) fn new(
        cells: &[Option<ProfileCell>],
        n_models: usize,
        columns: &[Option<usize>],
        priors: &FleetPriors,
    ) -> Self {
        let scores: Vec<_> = cells.iter().map(|cell| cell.map(|cell| cell.score)).collect();
        let means: Vec<_> =
            (0..n_models).map(|model| mean(scores.iter().skip(model).step_by(n_models))).collect();
        let sources = columns
            .iter()
            .zip(&priors.destinations)
            .map(|(column, prior)| match column.filter(|column| means[*column].is_some()) {
                Some(column) => Source::Profiled(column),
                None => Source::Prior(prior.quality),
            })
            .collect();
        Self { scores, means: means.into_iter().map(|mean| mean.unwrap_or_default()).collect(), sources }
    }

    /// (Σ w q + κ μ) / (Σ w + κ) over the neighbours that hold a score, and Σ w + κ, per destination; μ where
    /// that is 0/0. A prior counts as one.
    pub(super) fn predict(
        &self,
        neighbours: &[Neighbour],
        weights: &[f64],
        prior_strength: f64,
    ) -> (Vec<Quality>, Vec<f64>) {
        let n_models = self.means.len();
        let mut sums: Vec<(f64, f64)> =
            self.means.iter().map(|mean| (prior_strength * mean, prior_strength)).collect();
        for (neighbour, weight) in neighbours.iter().zip(weights) {
            let row = &self.scores[neighbour.row as usize * n_models..][..n_models];
            for ((scored, total), score) in sums.iter_mut().zip(row) {
                if let Some(score) = score {
                    *scored += weight * f64::from(*score);
                    *total += weight;
                }
            }
        }
        let q_hat = |model: usize| {
            let (scored, total) = sums[model];
            let q_hat = if total > 0.0 { scored / total } else { self.means[model] };
            (Quality(q_hat.clamp(0.0, 1.0)), total)
        };
        self.sources
            .iter()
            .map(|source| match *source {
                Source::Profiled(model) => q_hat(model),
                Source::Prior(quality) => (quality, PRIOR_WEIGHT),
            })
            .unzip()
    }
}

/// Mean of the entries that are there.
pub(super) fn mean<'a>(entries: impl Iterator<Item = &'a Option<f32>>) -> Option<f64> {
    let (sum, n) = entries.flatten().fold((0.0, 0.0), |(sum, n), entry| (sum + f64::from(*entry), n + 1.0));
    (n > 0.0).then(|| sum / n)
}

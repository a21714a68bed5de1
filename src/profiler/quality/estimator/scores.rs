//! Recorded scores, and their weighted mean over neighbours.

use crate::profiler::quality::estimator::kernel::Kernel;
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

/// N × M scores and the totals of the M models.
#[derive(Debug)]
pub(super) struct ScoreTable {
    /// N × M, row-major.
    scores: Vec<Option<f32>>,
    totals: Vec<Total>,
    sources: Vec<Source>,
}

/// Σ, Σ of squares and number of scores, weighted.
#[derive(Debug, Clone, Copy, Default)]
struct Total {
    weight: f64,
    score: f64,
    square: f64,
}

/// What neighbours say, per destination but for the evidence.
pub(super) struct Scored {
    pub(super) quality: Vec<Quality>,
    pub(super) variance: Vec<f64>,
    /// Σ w + κ over the neighbours that the destination was scored on.
    pub(super) weights: Vec<f64>,
    pub(super) evidence: f64,
}

impl Total {
    fn add(&mut self, weight: f64, score: f32) {
        let score = f64::from(score);
        self.weight += weight;
        self.score += weight * score;
        self.square += weight * score * score;
    }

    fn mean(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.score / self.weight)
    }

    /// Mean square distance from `centre`.
    fn variance_around(&self, centre: f64) -> Option<f64> {
        let sum = self.square - 2.0 * centre * self.score + centre * centre * self.weight;
        (self.weight > 0.0).then(|| (sum / self.weight).max(0.0))
    }
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
        let mut totals = vec![Total::default(); n_models];
        for row in scores.chunks_exact(n_models.max(1)) {
            for (total, score) in totals.iter_mut().zip(row) {
                score.iter().for_each(|score| total.add(1.0, *score));
            }
        }
        let sources = columns
            .iter()
            .zip(&priors.destinations)
            .map(|(column, prior)| match column.filter(|column| totals[*column].weight > 0.0) {
                Some(column) => Source::Profiled(column),
                None => Source::Prior(prior.quality),
            })
            .collect();
        Self { scores, totals, sources }
    }

    /// μ + trust · (q̂ − μ) with q̂ = (Σ w q + κ μ) / (Σ w + κ) over the neighbours that hold a score, per destination;
    /// μ where that is 0/0. μ is the mean of all rows, `without` one.
    pub(super) fn predict(
        &self,
        neighbours: &[Neighbour],
        kernel: &Kernel,
        (trust, without): (f64, Option<usize>),
    ) -> Scored {
        let n_models = self.totals.len();
        let mut found = vec![Total::default(); n_models];
        let mut evidence = 0.0;
        for neighbour in neighbours {
            let weight = kernel.weight(neighbour);
            evidence += weight;
            for (total, score) in found.iter_mut().zip(self.row(neighbour.row as usize)) {
                if let Some(score) = score {
                    total.add(weight, *score);
                }
            }
        }
        let kappa = kernel.prior_strength;
        let of_model = |model: usize| {
            let (found, all) = (&found[model], self.total(model, without));
            let mean = all.mean().unwrap_or_default();
            let weight = found.weight + kappa;
            let retrieved = if weight > 0.0 { (found.score + kappa * mean) / weight } else { mean };
            let quality = (mean + trust * (retrieved - mean)).clamp(0.0, 1.0);
            let variance = found.variance_around(quality).or_else(|| all.variance_around(quality));
            (Quality(quality), (variance.unwrap_or_default(), weight))
        };
        let (quality, (variance, weights)) = self
            .sources
            .iter()
            .map(|source| match *source {
                Source::Profiled(model) => of_model(model),
                Source::Prior(quality) => (quality, (0.0, PRIOR_WEIGHT)),
            })
            .unzip();
        Scored { quality, variance, weights, evidence }
    }

    fn row(&self, row: usize) -> &[Option<f32>] {
        let n_models = self.totals.len();
        &self.scores[row * n_models..][..n_models]
    }

    fn total(&self, model: usize, without: Option<usize>) -> Total {
        let mut total = self.totals[model];
        if let Some(score) = without.and_then(|row| self.row(row)[model]) {
            total.add(-1.0, score);
        }
        total
    }
}

/// Mean of the entries that are there.
pub(super) fn mean<'a>(entries: impl Iterator<Item = &'a Option<f32>>) -> Option<f64> {
    let (sum, n) = entries.flatten().fold((0.0, 0.0), |(sum, n), entry| (sum + f64::from(*entry), n + 1.0));
    (n > 0.0).then(|| sum / n)
}

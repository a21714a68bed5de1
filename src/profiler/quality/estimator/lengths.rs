//! Completion lengths from the nearest neighbours.
//!
//! Per-pair predictions are noisy, and a router that minimises over them chases the under-predicted
//! ones. So the pair's own mean is shrunk towards the product of the destination's mean and one factor
//! of the request, with n_d the neighbours whose length at d is known:
//!
//! f_r = Σ_{n,d} t_nd / Σ_{n,d} t̄_d,  t̂(r, d) = (Σ_n t_nd + a · t̄_d · f_r) / (n_d + a).
//!
//! Lengths are averaged as they are: averaging their logarithms loses a tenth of the tokens. Where a
//! destination's model has no recorded length, its completion prior takes the place of t̄_d.

use crate::profiler::quality::estimator::profile::ProfileCell;
use crate::profiler::quality::estimator::scores::mean;
use crate::profiler::quality::estimator::vectors::Neighbour;
use crate::profiler::quality::params::FleetPriors;
use crate::units::Tokens;

/// K, the neighbours that lengths are read from.
pub(super) const LENGTH_NEIGHBOURS: usize = 10;

/// a, how many neighbours the request factor counts as.
const SHRINKAGE: f64 = 2.0;

/// Range of a predicted length.
const TOKENS_RANGE: (f64, f64) = (1.0, 131_072.0);

/// N × M recorded lengths and how the destinations read them.
#[derive(Debug)]
pub(super) struct LengthTable {
    /// N × M, row-major.
    lengths: Vec<Option<f32>>,
    n_models: usize,
    /// t̄ per model; `None` if no length is known.
    means: Vec<Option<f64>>,
    /// Model column and t̄_d per destination.
    destinations: Vec<(Option<usize>, f64)>,
}

impl LengthTable {
    /// `columns` says which model of the table serves each destination of `priors`.
    pub(super) fn new(
        cells: &[Option<ProfileCell>],
        n_models: usize,
        columns: &[Option<usize>],
        priors: &FleetPriors,
    ) -> Self {
        let lengths: Vec<_> = cells.iter().map(|cell| cell.and_then(|cell| cell.completion_tokens)).collect();
        let means: Vec<_> =
            (0..n_models).map(|model| mean(lengths.iter().skip(model).step_by(n_models))).collect();
        let destinations = columns
            .iter()
            .zip(&priors.destinations)
            .map(|(column, prior)| {
                let profiled = column.and_then(|column| Some((Some(column), means[column]?)));
                profiled.unwrap_or((None, prior.completion_tokens.0))
            })
            .collect();
        Self { lengths, n_models, means, destinations }
    }

    /// t̂ per destination from the neighbours given.
    pub(super) fn predict(&self, neighbours: &[Neighbour]) -> Vec<Tokens> {
        // Σ t and n per model.
        let mut known = vec![(0.0, 0.0); self.n_models];
        for neighbour in neighbours {
            let row = &self.lengths[neighbour.row as usize * self.n_models..][..self.n_models];
            for ((sum, n), length) in known.iter_mut().zip(row) {
                if let Some(length) = length {
                    *sum += f64::from(*length);
                    *n += 1.0;
                }
            }
        }
        let factor = self.request_factor(&known);
        self.destinations
            .iter()
            .map(|(column, mean)| {
                let (sum, n) = column.map_or((0.0, 0.0), |column| known[column]);
                let tokens = (sum + SHRINKAGE * mean * factor) / (n + SHRINKAGE);
                Tokens(tokens.clamp(TOKENS_RANGE.0, TOKENS_RANGE.1))
            })
            .collect()
    }

    /// f_r: how much longer than usual the neighbours' answers were; 1 if none is known.
    fn request_factor(&self, known: &[(f64, f64)]) -> f64 {
        let sums = known.iter().zip(&self.means).filter_map(|((sum, n), mean)| Some((sum, n * (*mean)?)));
        let (actual, usual) =
            sums.fold((0.0, 0.0), |(actual, usual), (sum, mean)| (actual + sum, usual + mean));
        if usual > 0.0 { actual / usual } else { 1.0 }
    }
}

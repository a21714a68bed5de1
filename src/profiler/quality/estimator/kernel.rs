//! How much each neighbour counts.

use crate::profiler::quality::estimator::vectors::Neighbour;
use crate::profiler::quality::params::{EstimatorMode, QualityParams};

/// K of `format_aware` is never below this (where the profile has that many prompts) …
const NEIGHBOURS_MIN: usize = 20;
/// … nor above the profile's size divided by this.
const ROWS_PER_NEIGHBOUR: usize = 5;

/// K, and the weight of a neighbour at a distance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kernel {
    /// Which equation.
    pub mode: EstimatorMode,
    /// K, at least 1.
    pub neighbours: usize,
    /// γ of `format_aware`.
    pub sharpness: f64,
    /// Least cosine of `paper`.
    pub min_similarity: f64,
    /// κ, the weight of the mean; 0 in mode `paper`.
    pub prior_strength: f64,
}

impl Kernel {
    /// That of `params` over a profile of `n` prompts.
    #[must_use]
    pub fn new(params: &QualityParams, n: usize) -> Self {
        let (k_max, prior_strength) = match params.mode {
            EstimatorMode::FormatAware => (NEIGHBOURS_MIN.max(n / ROWS_PER_NEIGHBOUR), params.prior_strength),
            EstimatorMode::Paper => (n, 0.0),
        };
        Self {
            mode: params.mode,
            neighbours: params.neighbours.min(n).min(k_max).max(1),
            sharpness: params.sharpness,
            min_similarity: params.min_similarity,
            prior_strength,
        }
    }

    /// w = exp(γ(s′ − 1)), or in mode `paper` s where it reaches the threshold and 0 below; never negative.
    #[must_use]
    pub fn weight(&self, neighbour: &Neighbour) -> f64 {
        let similarity = neighbour.similarity();
        match self.mode {
            EstimatorMode::FormatAware => (self.sharpness * (similarity - 1.0)).exp(),
            EstimatorMode::Paper if similarity >= self.min_similarity => similarity.max(0.0),
            EstimatorMode::Paper => 0.0,
        }
    }
}

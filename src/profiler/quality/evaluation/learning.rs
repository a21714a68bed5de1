//! How the error falls with the number of profiled prompts.

use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::profiler::quality::estimator::profile::Profile;
use crate::profiler::quality::estimator::{Estimator, Scratch};
use crate::profiler::quality::params::{FleetPriors, QualityParams};
use crate::statistics::{ci95_half, mean};

/// Sizes of profile tried; those larger than four fifths of the store are left out, and the store's own comes last.
const SIZES: [usize; 8] = [50, 100, 200, 400, 800, 1_600, 3_200, 6_400];

/// Prompts predicted, the same for every size.
const JUDGED_MAX: usize = 500;

/// The error of predictions from so many prompts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LearningPoint {
    /// Prompts in the profile.
    pub rows: usize,
    /// Mean squared error on others.
    pub mse: f64,
    /// Half its 95 % interval, over prompts.
    pub half: f64,
    /// The error of each model's mean over the same profile.
    pub mse_global_mean: f64,
}

/// Predicts some prompts of `profile` from ever more of the others. Nothing for fewer than a hundred prompts.
#[must_use]
pub fn learning_curve(
    profile: &Profile,
    priors: &FleetPriors,
    params: &QualityParams,
    rng: &mut ChaCha8Rng,
) -> Vec<LearningPoint> {
    let mut rows: Vec<usize> = (0..profile.len()).collect();
    rows.shuffle(rng);
    let (judged, others) = rows.split_at(JUDGED_MAX.min(rows.len() / 5));
    if judged.len() < 20 {
        return Vec::new();
    }
    let sizes = SIZES.into_iter().filter(|size| *size < others.len()).chain([others.len()]);
    sizes.map(|size| point(profile, (&others[..size], judged), priors, params)).collect()
}

fn point(
    profile: &Profile,
    (known, judged): (&[usize], &[usize]),
    priors: &FleetPriors,
    params: &QualityParams,
) -> LearningPoint {
    let estimator = Estimator::new(profile.subset(known), priors, params);
    let means = estimator.combine(&[], estimator.kernel(), None).prediction.quality;
    let mut scratch = Scratch::default();
    let (mut errors, mut mean_errors) = (Vec::new(), Vec::new());
    for row in judged {
        let estimate = estimator.predict(profile.embedding(*row), profile.format(*row), &mut scratch);
        let cells = profile.cells(*row).iter().zip(&estimate.prediction.quality).zip(&means);
        let of_cells: Vec<[f64; 2]> = cells
            .filter_map(|((cell, quality), mean)| {
                let score = f64::from((*cell)?.score);
                Some([*quality, *mean].map(|predicted| (score - predicted.get()).powi(2)))
            })
            .collect();
        if !of_cells.is_empty() {
            errors.push(mean(&of_cells.iter().map(|pair| pair[0]).collect::<Vec<_>>()));
            mean_errors.push(mean(&of_cells.iter().map(|pair| pair[1]).collect::<Vec<_>>()));
        }
    }
    LearningPoint {
        rows: known.len(),
        mse: mean(&errors),
        half: ci95_half(&errors),
        mse_global_mean: mean(&mean_errors),
    }
}

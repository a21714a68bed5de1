//! q̂(r, d) and completion lengths from the profiled prompts most like r.
//!
//! `format_aware`: with s′ of [`vectors`] and w = exp(γ(s′ − 1)),
//! q̂ = (Σ w q + κ μ_d) / (Σ w + κ) over the K nearest prompts that d was scored on; far from everything
//! the weights vanish and q̂ falls to the destination's mean μ_d.
//! `paper` is Eq. 1: q̂ = Σ s q / Σ s over the K nearest with cosine s of at least a threshold, else μ_d.
//!
//! Deviation: `format_aware` is the default although the paper has Eq. 1 alone. On held-out prompts of
//! public benchmarks its squared error is a seventh lower than that of Eq. 1 with five neighbours, and
//! the model it ranks first scores better; both average what similar prompts scored, without training.

mod index;
mod lengths;
pub mod profile;
mod scores;
pub mod vectors;

use std::sync::OnceLock;

use crate::domain::{Prediction, QualitySource};
use crate::profiler::quality::embedder::EMBEDDING_DIMENSIONS;
use crate::profiler::quality::format::FORMAT_NUMBERS;
use crate::profiler::quality::params::{EstimatorMode, FleetPriors, QualityParams};
use index::ApproximateIndex;
pub use index::EXACT_ROWS_MAX;
use lengths::{LENGTH_NEIGHBOURS, LengthTable};
use profile::Profile;
use scores::ScoreTable;
use vectors::{FormatScaling, Neighbour, PromptVector, VectorMatrix};

/// γ, how fast a neighbour's weight falls with its distance.
const GAMMA: f64 = 5.0;
/// K is never below this (where the profile has that many prompts) …
const NEIGHBOURS_MIN: usize = 20;
/// … nor above the profile's size divided by this.
const ROWS_PER_NEIGHBOUR: usize = 5;

/// Buffers of one thread, reused from prediction to prediction.
#[derive(Debug, Default)]
pub struct Scratch {
    neighbours: Vec<Neighbour>,
    weights: Vec<f64>,
}

/// One prediction and what it rests on.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// q̂ and lengths per destination.
    pub prediction: Prediction,
    /// Σ w over the neighbours: about 0 far from every profiled prompt, at most K.
    pub evidence: f64,
    /// Per destination what its q̂ rests on: Σ w over the neighbours that it was scored on, and κ; 1 for a prior.
    pub weights: Vec<f64>,
}

/// Predicts from a fixed profile for a fixed fleet; shared by threads.
pub struct Estimator {
    vectors: VectorMatrix,
    index: OnceLock<ApproximateIndex>,
    scores: ScoreTable,
    lengths: LengthTable,
    mode: EstimatorMode,
    n_neighbours: usize,
    min_similarity: f64,
    prior_strength: f64,
}

impl Estimator {
    /// Prepares `profile` for the destinations of `priors`, which find their column by model name. A
    /// destination whose model was never profiled keeps its prior.
    #[must_use]
    pub fn new(profile: Profile, priors: &FleetPriors, params: &QualityParams) -> Self {
        let parts = profile.into_parts();
        let n = parts.format.len();
        let (scaling, k_max) = match params.mode {
            // Without a row there is no usual form; feedback is compared by embedding alone then.
            EstimatorMode::FormatAware if n == 0 => (None, NEIGHBOURS_MIN),
            EstimatorMode::FormatAware => {
                (Some(FormatScaling::fit(&parts.format)), NEIGHBOURS_MIN.max(n / ROWS_PER_NEIGHBOUR))
            }
            EstimatorMode::Paper => (None, n),
        };
        let columns: Vec<Option<usize>> = priors
            .destinations
            .iter()
            .map(|prior| parts.models.iter().position(|model| **model == *prior.model))
            .collect();
        Self {
            scores: ScoreTable::new(&parts.cells, parts.models.len(), &columns, priors),
            lengths: LengthTable::new(&parts.cells, parts.models.len(), &columns, priors),
            vectors: VectorMatrix::new(parts.vectors, &parts.format, scaling),
            index: OnceLock::new(),
            mode: params.mode,
            n_neighbours: params.neighbours.min(n).min(k_max).max(1),
            min_similarity: params.min_similarity,
            prior_strength: params.prior_strength,
        }
    }

    /// N, the number of profiled prompts.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.vectors.len()
    }

    /// Builds the approximate index if the profile is large enough to need one (more than
    /// [`EXACT_ROWS_MAX`] prompts). Takes seconds to minutes; predictions scan exactly until it is there.
    ///
    /// # Errors
    /// What the index library reports; predictions go on with the exact scan.
    pub fn build_index(&self) -> Result<(), String> {
        if self.vectors.len() > EXACT_ROWS_MAX && self.index.get().is_none() {
            let index = ApproximateIndex::build(&self.vectors)?;
            // A second builder may have been faster; both indexes are the same.
            let _ = self.index.set(index);
        }
        Ok(())
    }

    /// Predicts for a message with this embedding and these format numbers.
    #[must_use]
    pub fn predict(
        &self,
        embedding: &[f32; EMBEDDING_DIMENSIONS],
        format: &[f64; FORMAT_NUMBERS],
        scratch: &mut Scratch,
    ) -> Estimate {
        let query = self.vectors.vector(embedding, format);
        self.find_neighbours(&query, &mut scratch.neighbours);
        scratch.weights.clear();
        // The search may return more than K, for the lengths; the nearest come first then.
        let neighbours = &scratch.neighbours[..scratch.neighbours.len().min(self.n_neighbours)];
        scratch.weights.extend(neighbours.iter().map(|neighbour| self.weight(neighbour)));
        let prior_strength = match self.mode {
            EstimatorMode::FormatAware => self.prior_strength,
            EstimatorMode::Paper => 0.0,
        };
        let nearest = &scratch.neighbours[..scratch.neighbours.len().min(LENGTH_NEIGHBOURS)];
        let (quality, weights) = self.scores.predict(neighbours, &scratch.weights, prior_strength);
        Estimate {
            weights,
            prediction: Prediction {
                quality,
                completion_tokens: self.lengths.predict(nearest),
                source: QualitySource::Store,
            },
            evidence: scratch.weights.iter().sum(),
        }
    }

    /// What a message is compared by.
    pub(in crate::profiler::quality) fn vector(
        &self,
        embedding: &[f32; EMBEDDING_DIMENSIONS],
        format: &[f64; FORMAT_NUMBERS],
    ) -> PromptVector {
        self.vectors.vector(embedding, format)
    }

    fn find_neighbours(&self, query: &PromptVector, found: &mut Vec<Neighbour>) {
        let k = self.n_neighbours.max(LENGTH_NEIGHBOURS);
        let is_indexed = self.index.get().is_some_and(|index| index.nearest(query, k, found));
        if !is_indexed {
            self.vectors.nearest(query, k, LENGTH_NEIGHBOURS, found);
        }
    }

    /// w, what a neighbour counts.
    pub(in crate::profiler::quality) fn weight(&self, neighbour: &Neighbour) -> f64 {
        let similarity = neighbour.similarity();
        match self.mode {
            EstimatorMode::FormatAware => (GAMMA * (similarity - 1.0)).exp(),
            EstimatorMode::Paper if similarity >= self.min_similarity => similarity.max(0.0),
            EstimatorMode::Paper => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::profile::ProfileCell;
    use super::*;
    use crate::profiler::quality::params::DestinationPrior;
    use crate::units::{Quality, Tokens};

    const NO_FORMAT: [f64; FORMAT_NUMBERS] = [0.0; FORMAT_NUMBERS];

    /// A unit vector with this cosine to axis 0.
    fn at_cosine(cosine: f32) -> [f32; EMBEDDING_DIMENSIONS] {
        let mut embedding = [0.0; EMBEDDING_DIMENSIONS];
        embedding[0] = cosine;
        embedding[1] = (1.0 - cosine * cosine).sqrt();
        embedding
    }

    fn priors(models: &[&str]) -> FleetPriors {
        let prior = |model: &&str| DestinationPrior {
            model: (*model).into(),
            quality: Quality(0.6),
            completion_tokens: Tokens(100.0),
        };
        FleetPriors { destinations: models.iter().map(prior).collect() }
    }

    fn cell(score: f32, completion_tokens: Option<f32>) -> Option<ProfileCell> {
        Some(ProfileCell { score, completion_tokens })
    }

    fn predict(estimator: &Estimator) -> Estimate {
        estimator.predict(&at_cosine(1.0), &NO_FORMAT, &mut Scratch::default())
    }

    #[test]
    fn format_aware_follows_its_equation() {
        let mut profile = Profile::new(vec!["m".into(), "n".into()]);
        profile.push(&at_cosine(1.0), NO_FORMAT, &[cell(1.0, None), cell(0.0, None)]);
        profile.push(&at_cosine(0.8), NO_FORMAT, &[cell(0.5, None), None]);
        let estimator = Estimator::new(profile, &priors(&["n", "m", "m", "x"]), &QualityParams::default());
        let estimate = predict(&estimator);
        // w = 1 and exp(5 (0.8 - 1)) = e^-1; μ_m = 0.75, μ_n = 0; κ = 0.1.
        let w = (-1.0f64).exp();
        let q_m = (1.0 + 0.5 * w + 0.1 * 0.75) / (1.0 + w + 0.1);
        let expected = [0.0, q_m, q_m, 0.6];
        for (quality, expected) in estimate.prediction.quality.iter().zip(expected) {
            assert!((quality.0 - expected).abs() < 1e-6, "{estimate:?}");
        }
        assert!((estimate.evidence - (1.0 + w)).abs() < 1e-6);
    }

    #[test]
    fn paper_mode_is_equation_1_with_its_fallback() {
        let mut profile = Profile::new(vec!["m".into(), "n".into()]);
        profile.push(&at_cosine(0.9), [7.0; FORMAT_NUMBERS], &[cell(1.0, None), None]);
        profile.push(&at_cosine(0.5), NO_FORMAT, &[cell(0.0, None), None]);
        profile.push(&at_cosine(0.1), NO_FORMAT, &[cell(0.0, None), cell(0.25, None)]);
        let params = QualityParams { mode: EstimatorMode::Paper, ..QualityParams::default() };
        let quality =
            predict(&Estimator::new(profile.clone(), &priors(&["m", "n"]), &params)).prediction.quality;
        // Only the cosines 0.9 and 0.5 reach the threshold of 0.3; n has no score among them: its mean.
        assert!((quality[0].0 - 0.9 / 1.4).abs() < 1e-6, "{quality:?}");
        assert!((quality[1].0 - 0.25).abs() < 1e-6, "{quality:?}");

        let nearest_only = QualityParams { neighbours: 1, ..params };
        let quality = predict(&Estimator::new(profile, &priors(&["m"]), &nearest_only)).prediction.quality;
        assert!((quality[0].0 - 1.0).abs() < 1e-6, "{quality:?}");
    }

    #[test]
    fn far_from_every_prompt_quality_is_the_mean() {
        let mut profile = Profile::new(vec!["m".into()]);
        let mut odd = NO_FORMAT;
        odd[3] = 1.0;
        for score in [1.0, 0.0, 0.5] {
            profile.push(&at_cosine(-1.0), NO_FORMAT, &[cell(score, None)]);
        }
        profile.push(&at_cosine(-1.0), odd, &[cell(0.9, None)]);
        let estimate = predict(&Estimator::new(profile, &priors(&["m"]), &QualityParams::default()));
        assert!((estimate.prediction.quality[0].0 - 0.6).abs() < 1e-3, "{estimate:?}");
        assert!(estimate.evidence < 0.001);
    }

    #[test]
    fn lengths_are_shrunk_to_the_request_factor() {
        let mut profile = Profile::new(vec!["m".into(), "n".into()]);
        for _ in 0..10 {
            profile.push(&at_cosine(1.0), NO_FORMAT, &[cell(1.0, Some(30.0)), cell(1.0, Some(10.0))]);
        }
        for _ in 0..10 {
            profile.push(&at_cosine(0.0), NO_FORMAT, &[cell(1.0, Some(90.0)), cell(1.0, Some(70.0))]);
        }
        let estimator = Estimator::new(profile, &priors(&["m", "n", "x"]), &QualityParams::default());
        let tokens = predict(&estimator).prediction.completion_tokens;
        // Means 60 and 40; factor (300 + 100) / (600 + 400) = 0.4.
        let expected = [(300.0 + 2.0 * 60.0 * 0.4) / 12.0, (100.0 + 2.0 * 40.0 * 0.4) / 12.0, 100.0 * 0.4];
        for (tokens, expected) in tokens.iter().zip(expected) {
            assert!((tokens.0 - expected).abs() < 1e-6, "{tokens:?} {expected}");
        }
    }

    #[test]
    fn without_recorded_lengths_the_prior_holds() {
        let mut profile = Profile::new(vec!["m".into()]);
        profile.push(&at_cosine(1.0), NO_FORMAT, &[cell(1.0, None)]);
        let estimator = Estimator::new(profile, &priors(&["m"]), &QualityParams::default());
        assert_eq!(predict(&estimator).prediction.completion_tokens, [Tokens(100.0)]);
    }

    #[test]
    fn the_index_agrees_with_the_scan() {
        // A fixed pseudo-random cloud, large enough that the index is used.
        let mut state = 1u32;
        let mut next = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from(u16::try_from(state >> 16).unwrap()) / 65_536.0 - 0.5
        };
        let mut cloud = || {
            // Few free directions, so that neighbours exist at all.
            let mut embedding = [0.0f32; EMBEDDING_DIMENSIONS];
            embedding[..6].fill_with(&mut next);
            let norm = embedding.iter().map(|x| x * x).sum::<f32>().sqrt();
            embedding.map(|x| x / norm)
        };
        let mut profile = Profile::new(vec!["m".into()]);
        for row in 0..=EXACT_ROWS_MAX {
            let embedding = cloud();
            profile.push(
                &embedding,
                NO_FORMAT,
                &[cell(f32::from(u8::from(row % 3 == 0)) * embedding[0].abs(), None)],
            );
        }
        let estimator = Estimator::new(profile, &priors(&["m"]), &QualityParams::default());
        let queries: Vec<_> = (0..20).map(|_| cloud()).collect();
        let ask = |estimator: &Estimator| -> Vec<f64> {
            let mut scratch = Scratch::default();
            queries
                .iter()
                .map(|query| estimator.predict(query, &NO_FORMAT, &mut scratch).prediction.quality[0].0)
                .collect()
        };
        let exact = ask(&estimator);
        estimator.build_index().unwrap();
        assert!(estimator.index.get().is_some());
        for (exact, indexed) in exact.iter().zip(ask(&estimator)) {
            assert!((exact - indexed).abs() < 5e-3, "{exact} {indexed}");
        }
    }

    proptest! {
        #[test]
        fn predictions_are_always_in_range(
            rows in prop::collection::vec(
                (-1.0f32..1.0, prop::option::of((0.0f32..=1.0, prop::option::of(0.0f32..1e6))), 0.0f64..20.0), 1..40),
            cosine in -1.0f32..1.0,
            format in 0.0f64..100.0,
            neighbours in 1usize..200,
            kappa in 0.0f64..1.0,
            is_paper in any::<bool>(),
        ) {
            let mut profile = Profile::new(vec!["m".into()]);
            for (cosine, scored, number) in &rows {
                profile.push(&at_cosine(*cosine), [*number; FORMAT_NUMBERS], &[scored.and_then(|(score, tokens)| cell(score, tokens))]);
            }
            let mode = if is_paper { EstimatorMode::Paper } else { EstimatorMode::FormatAware };
            let params = QualityParams { mode, neighbours, prior_strength: kappa, min_similarity: -0.5, ..QualityParams::default() };
            let estimator = Estimator::new(profile, &priors(&["m", "x"]), &params);
            let estimate = estimator.predict(&at_cosine(cosine), &[format; FORMAT_NUMBERS], &mut Scratch::default());
            prop_assert!(estimate.evidence.is_finite() && estimate.evidence >= 0.0);
            for quality in &estimate.prediction.quality {
                prop_assert!((0.0..=1.0).contains(&quality.0), "{estimate:?}");
            }
            for tokens in &estimate.prediction.completion_tokens {
                prop_assert!((1.0..=131_072.0).contains(&tokens.0), "{estimate:?}");
            }
        }
    }
}

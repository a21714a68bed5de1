//! q̂(r, d) and completion lengths from the profiled prompts most like r.
//!
//! `format_aware`: with s′ of [`vectors`] and w = exp(γ(s′ − 1)),
//! q̂ = (Σ w q + κ μ_d) / (Σ w + κ) over the K nearest prompts that d was scored on; far from everything
//! the weights vanish and q̂ falls to the destination's mean μ_d.
//! `paper` is Eq. 1: q̂ = Σ s q / Σ s over the K nearest with cosine s of at least a threshold, else μ_d.
//! With `ood: mean` either is drawn to μ_d where nothing similar was profiled, see [`gate`].
//!
//! Deviation: `format_aware` is the default although the paper has Eq. 1 alone. On held-out prompts of
//! public benchmarks its squared error is a seventh lower than that of Eq. 1 with five neighbours, and
//! the model it ranks first scores better; both average what similar prompts scored, without training.

pub mod gate;
mod index;
pub mod kernel;
mod lengths;
pub mod profile;
mod scores;
pub mod vectors;

use std::path::Path;
use std::sync::OnceLock;

use crate::domain::{Prediction, QualitySource};
use crate::profiler::quality::embedder::EMBEDDING_DIMENSIONS;
use crate::profiler::quality::format::FORMAT_NUMBERS;
use crate::profiler::quality::params::{EstimatorMode, FleetPriors, OodGate, QualityParams};
use gate::{GATE_NEIGHBOURS, Gate};
use index::ApproximateIndex;
pub use index::EXACT_ROWS_MAX;
use kernel::Kernel;
use lengths::{LENGTH_NEIGHBOURS, LengthTable};
use profile::Profile;
use scores::ScoreTable;
use vectors::{FormatScaling, Neighbour, PromptVector, VectorMatrix};

/// Neighbours that come sorted, nearest first: lengths and the gate read the nearest few.
const SORTED_NEIGHBOURS: usize =
    if LENGTH_NEIGHBOURS > GATE_NEIGHBOURS { LENGTH_NEIGHBOURS } else { GATE_NEIGHBOURS };

/// Vectors nearer than this are those of one text; what is left of a distance of 0 in single precision.
const TWIN_SQUARED_DISTANCE: f32 = 1e-5;

/// Neighbours looked at beyond those asked for, so that enough are left without twins.
const TWINS_EXPECTED: usize = 16;

/// Buffers of one thread, reused from prediction to prediction.
#[derive(Debug, Default)]
pub struct Scratch {
    neighbours: Vec<Neighbour>,
}

/// One prediction and what it rests on.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// q̂ and lengths per destination.
    pub prediction: Prediction,
    /// Σ w (q − q̂)² / Σ w over the neighbours that the destination was scored on, per destination: how far single
    /// scores lie from q̂. Of all its scores where no neighbour weighs anything, 0 without a profile.
    pub variance: Vec<f64>,
    /// Σ w over the neighbours: about 0 far from every profiled prompt, at most K.
    pub evidence: f64,
    /// Per destination what its q̂ rests on: Σ w over the neighbours that it was scored on, and κ; 1 for a prior.
    pub weights: Vec<f64>,
    /// Share of the neighbours in q̂, in `[0, 1]`; the rest is the destination's mean. 1 unless [`OodGate::Mean`].
    pub trust: f64,
}

impl Estimate {
    /// Whether hardly anything like the prompt was profiled: all neighbours together weigh less than one identical
    /// prompt would, or the gate is more closed than open.
    #[must_use]
    pub fn has_low_evidence(&self) -> bool {
        self.evidence < 1.0 || self.trust < 0.5
    }
}

/// Predicts from a fixed profile for a fixed fleet; shared by threads.
pub struct Estimator {
    vectors: VectorMatrix,
    index: OnceLock<ApproximateIndex>,
    gate: OnceLock<Gate>,
    scores: ScoreTable,
    lengths: LengthTable,
    kernel: Kernel,
    ood: OodGate,
}

impl Estimator {
    /// Prepares `profile` for the destinations of `priors`, which find their column by model name. A
    /// destination whose model was never profiled keeps its prior.
    #[must_use]
    pub fn new(profile: Profile, priors: &FleetPriors, params: &QualityParams) -> Self {
        let parts = profile.into_parts();
        let scaling = match params.mode {
            // Without a row there is no usual form; feedback is compared by embedding alone then.
            EstimatorMode::FormatAware if !parts.format.is_empty() => Some(FormatScaling::fit(&parts.format)),
            _ => None,
        };
        let columns: Vec<Option<usize>> = priors
            .destinations
            .iter()
            .map(|prior| parts.models.iter().position(|model| **model == *prior.model))
            .collect();
        Self {
            scores: ScoreTable::new(&parts.cells, parts.models.len(), &columns, priors),
            lengths: LengthTable::new(&parts.cells, parts.models.len(), &columns, priors),
            kernel: Kernel::new(params, parts.format.len()),
            vectors: VectorMatrix::new(parts.vectors, &parts.format, scaling),
            index: OnceLock::new(),
            gate: OnceLock::new(),
            ood: params.ood,
        }
    }

    /// N, the number of profiled prompts.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.vectors.len()
    }

    /// How neighbours count.
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Maps the index of these very prompts that an earlier [`Estimator::prepare`] left in `dir`, and gives the memory
    /// of the vectors back; whether there is one.
    pub fn map_index(&mut self, dir: &Path) -> bool {
        if self.vectors.len() <= EXACT_ROWS_MAX {
            return false;
        }
        let path = ApproximateIndex::file_in(dir, &self.vectors);
        let Some(index) = ApproximateIndex::map(&path, self.vectors.len()) else { return false };
        self.vectors.give_up_rows();
        self.index.set(index).is_ok()
    }

    /// Makes what takes a while: the approximate index of a profile of more than [`EXACT_ROWS_MAX`] prompts, kept in
    /// `dir` where one is given, and the gate of [`OodGate::Mean`]. Seconds to minutes; until then predictions scan
    /// exactly and are not gated.
    ///
    /// # Errors
    /// What the index library or the disk reports; predictions go on with what there is.
    pub fn prepare(&self, dir: Option<&Path>) -> Result<(), String> {
        let indexed = self.build_index(dir);
        self.fit_gate();
        indexed
    }

    /// Of [`Estimator::prepare`] the gate alone.
    pub fn fit_gate(&self) {
        if self.ood == OodGate::Mean && self.gate.get().is_none() {
            // A second thread may have been faster; both gates are the same.
            let _ = self.gate.set(Gate::fit(self));
        }
    }

    fn build_index(&self, dir: Option<&Path>) -> Result<(), String> {
        if self.vectors.len() <= EXACT_ROWS_MAX || self.index.get().is_some() {
            return Ok(());
        }
        let index = ApproximateIndex::build(&self.vectors)?;
        let saved = dir.map_or(Ok(()), |dir| index.save(&ApproximateIndex::file_in(dir, &self.vectors)));
        // As above.
        let _ = self.index.set(index);
        saved
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
        self.find_neighbours(&query, self.kernel.neighbours, &mut scratch.neighbours);
        self.combine(&scratch.neighbours, &self.kernel, None)
    }

    /// The neighbours of the last prediction made with `scratch`, each with its weight, nearest first.
    #[must_use]
    pub fn explain(&self, scratch: &Scratch) -> Vec<(Neighbour, f64)> {
        let mut neighbours = scratch.neighbours.clone();
        neighbours.sort_unstable_by(Neighbour::order);
        neighbours.truncate(self.kernel.neighbours);
        neighbours.into_iter().map(|neighbour| (neighbour, self.kernel.weight(&neighbour))).collect()
    }

    /// The `k` profiled prompts nearest to that of `row`, nearest first, without itself and those of the same text.
    pub fn nearest_others<'s>(&self, row: usize, k: usize, scratch: &'s mut Scratch) -> &'s [Neighbour] {
        let found = &mut scratch.neighbours;
        let vector = self.index.get().and_then(|index| index.vector(row));
        self.find_neighbours(
            vector.as_ref().unwrap_or_else(|| self.vectors.row(row)),
            k + TWINS_EXPECTED,
            found,
        );
        found.retain(|neighbour| neighbour.squared_distance > TWIN_SQUARED_DISTANCE);
        found.sort_unstable_by(Neighbour::order);
        found.truncate(k);
        found
    }

    /// What `neighbours` (the nearest first, as far as lengths and the gate look) say under `kernel`, `without` one
    /// row in the means.
    #[must_use]
    pub fn combine(&self, neighbours: &[Neighbour], kernel: &Kernel, without: Option<usize>) -> Estimate {
        let trust = self.gate.get().map_or(1.0, |gate| gate.trust(neighbours));
        // The search may give more than K, for the lengths.
        let counting = &neighbours[..neighbours.len().min(kernel.neighbours)];
        let scored = self.scores.predict(counting, kernel, (trust, without));
        Estimate {
            weights: scored.weights,
            prediction: Prediction {
                quality: scored.quality,
                completion_tokens: self
                    .lengths
                    .predict(&neighbours[..neighbours.len().min(LENGTH_NEIGHBOURS)]),
                cluster_error: Vec::new(),
                source: QualitySource::Store,
            },
            variance: scored.variance,
            evidence: scored.evidence,
            trust,
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

    fn find_neighbours(&self, query: &PromptVector, k: usize, found: &mut Vec<Neighbour>) {
        let k = k.max(SORTED_NEIGHBOURS);
        let is_indexed = self.index.get().is_some_and(|index| index.nearest(query, k, found));
        if !is_indexed {
            self.vectors.nearest(query, k, SORTED_NEIGHBOURS, found);
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
        let estimator = Estimator::new(profile.clone(), &priors(&["m"]), &QualityParams::default());
        let queries: Vec<_> = (0..20).map(|_| cloud()).collect();
        let ask = |estimator: &Estimator| -> Vec<f64> {
            let mut scratch = Scratch::default();
            queries
                .iter()
                .map(|query| estimator.predict(query, &NO_FORMAT, &mut scratch).prediction.quality[0].0)
                .collect()
        };
        let exact = ask(&estimator);
        let dir = tempfile::tempdir().unwrap();
        estimator.prepare(Some(dir.path())).unwrap();
        assert!(estimator.index.get().is_some());
        for (exact, indexed) in exact.iter().zip(ask(&estimator)) {
            assert!((exact - indexed).abs() < 5e-3, "{exact} {indexed}");
        }

        // The next start maps what was kept, and only for the same vectors.
        let again = |profile: Profile| Estimator::new(profile, &priors(&["m"]), &QualityParams::default());
        let mut mapped = again(profile.clone());
        assert!(mapped.map_index(dir.path()) && mapped.rows() == EXACT_ROWS_MAX + 1);
        assert_eq!(ask(&mapped), ask(&estimator));
        let threads: Vec<Vec<f64>> = std::thread::scope(|scope| {
            let started: Vec<_> = (0..8).map(|_| scope.spawn(|| ask(&mapped))).collect();
            started.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(threads.iter().all(|answers| *answers == ask(&estimator)));
        let nearest = mapped.nearest_others(5, 3, &mut Scratch::default()).to_vec();
        assert_eq!(nearest, estimator.nearest_others(5, 3, &mut Scratch::default()));
        profile.push(&at_cosine(0.5), NO_FORMAT, &[cell(1.0, None)]);
        assert!(!again(profile.clone()).map_index(dir.path()), "other vectors");
        again(profile).prepare(Some(dir.path())).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "the old file is gone");
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

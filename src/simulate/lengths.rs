//! Synthetic completion lengths, for traces that recorded scores but no tokens.
//!
//! length = task mean × verbosity of the model × exp(0.45 z_request + 0.25 z_pair − 0.13), at least 2, with
//! standard normal z drawn from the row's id (and the model), so that a row has the same lengths in every
//! run. The router may be given predictions of the same mean, task mean × verbosity × exp(0.25 z_request + 0.25 z −
//! 0.06): it knows the model, and of the request about half. Results that rest on them are labelled `synthetic`.

use std::collections::BTreeMap;

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use crate::routing::rng_for;
use crate::units::Tokens;

/// Mean length by benchmark, tokens.
const TASK_MEANS: &[(&str, f64)] = &[
    ("mmlu", 220.0),
    ("gsm8k", 200.0),
    ("math", 420.0),
    ("mbpp", 180.0),
    ("human_eval", 220.0),
    ("natural_qa", 60.0),
    ("trivia_qa", 40.0),
    ("commonsense_qa", 150.0),
    ("openbook_qa", 150.0),
    ("arc-challenge", 170.0),
    ("agentverse-mgsm", 220.0),
    ("agentverse-logicgrid", 450.0),
    ("commongen", 80.0),
];
const OTHER_TASK_MEAN: f64 = 200.0;

/// Length of a model's answers beside the task's mean.
const VERBOSITY: &[(&str, f64)] = &[
    ("codegemma-7b", 0.8),
    ("gemma-2-9b-it", 0.9),
    ("llama-3.1-8b-instruct", 1.0),
    ("llama-3.1-nemotron-51b-instruct", 1.15),
    ("llama-3.3-nemotron-super-49b-v1", 1.3),
    ("llama3-chatqa-1.5-70b", 0.5),
    ("llama3-chatqa-1.5-8b", 0.5),
    ("mistral-7b-instruct-v0.3", 1.0),
    ("qwen2.5-7b-instruct", 1.1),
];

const TOKENS_MIN: f64 = 2.0;

/// Streams of a row's random numbers; the third kind is the hash of a model.
const REQUEST_STREAM: u64 = 0;
const PREDICTION_STREAM: u64 = 1;

/// How long answers are, and what the router believes of it.
#[derive(Debug, Clone, PartialEq)]
pub struct LengthModel {
    /// Mean length by benchmark, tokens; 200 for others.
    pub task_mean: BTreeMap<String, f64>,
    /// Length of a model's answers beside the task's mean; 1 for others.
    pub verbosity: BTreeMap<String, f64>,
    /// Deviation of the logarithm between requests.
    pub request_sd: f64,
    /// Deviation of the logarithm between the models' answers to one request.
    pub pair_sd: f64,
    /// What the router believes where lengths are synthetic; `None` = what it predicts from the profile.
    pub predicted: Option<PredictedLengths>,
}

/// What the router believes of synthetic lengths: their mean by task and model, and one factor per request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictedLengths {
    /// How much of the request's own deviation it knows, of the logarithm.
    pub request_sd: f64,
    /// Its error, of the logarithm.
    pub noise_sd: f64,
}

impl Default for PredictedLengths {
    fn default() -> Self {
        Self { request_sd: 0.25, noise_sd: 0.25 }
    }
}

impl Default for LengthModel {
    fn default() -> Self {
        let table =
            |entries: &[(&str, f64)]| entries.iter().map(|(name, x)| ((*name).to_owned(), *x)).collect();
        Self {
            task_mean: table(TASK_MEANS),
            verbosity: table(VERBOSITY),
            request_sd: 0.45,
            pair_sd: 0.25,
            predicted: None,
        }
    }
}

impl LengthModel {
    /// The length of `model`'s answer to the row `id` of `benchmark`.
    #[must_use]
    pub fn length(&self, id: &str, benchmark: Option<&str>, model: &str) -> Tokens {
        let z_request = z(id, REQUEST_STREAM);
        let z_pair = z(id, fnv1a(model.as_bytes()));
        let factor = log_normal([(self.request_sd, z_request), (self.pair_sd, z_pair)]);
        Tokens((self.mean(benchmark, model) * factor).round().max(TOKENS_MIN))
    }

    /// What the router believes it to be; `None` = it has to predict it from the profile.
    #[must_use]
    pub fn predicted_length(&self, id: &str, benchmark: Option<&str>, model: &str) -> Option<Tokens> {
        let PredictedLengths { request_sd, noise_sd } = self.predicted?;
        let factor = log_normal([(request_sd, z(id, REQUEST_STREAM)), (noise_sd, z(id, PREDICTION_STREAM))]);
        Some(Tokens((self.mean(benchmark, model) * factor).max(TOKENS_MIN)))
    }

    fn mean(&self, benchmark: Option<&str>, model: &str) -> f64 {
        let task_mean = benchmark.and_then(|task| self.task_mean.get(task)).copied();
        task_mean.unwrap_or(OTHER_TASK_MEAN) * self.verbosity.get(model).copied().unwrap_or(1.0)
    }
}

/// A log-normal factor of mean 1, of (deviation, standard normal) pairs. Half the variance keeps the mean; it is
/// rounded to two digits, as the rule is written.
fn log_normal(parts: [(f64, f64); 2]) -> f64 {
    let half_variance = parts.iter().map(|(sd, _)| sd * sd).sum::<f64>() / 2.0;
    let shift = (half_variance * 100.0).round() / 100.0;
    (parts.iter().map(|(sd, z)| sd * z).sum::<f64>() - shift).exp()
}

/// The standard normal number of a stream of the row `id`, by Box–Muller.
fn z(id: &str, stream: u64) -> f64 {
    let rng: &mut ChaCha8Rng = &mut rng_for(fnv1a(id.as_bytes()), stream);
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
}

/// 64-bit FNV-1a, to turn names into seeds that never change.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_same_lengths_in_every_run_and_about_the_mean_over_many() {
        let model = LengthModel::default();
        let length = |i: u32| model.length(&format!("row{i}"), Some("math"), "codegemma-7b").get();
        assert!((length(1) - length(1)).abs() < 1e-12);
        let mean = (0..2_000).map(length).sum::<f64>() / 2_000.0;
        // 420 × 0.8, standard error about 1.2 %.
        assert!((mean / 336.0 - 1.0).abs() < 0.05, "{mean}");
    }

    #[test]
    fn unknown_names_have_a_plain_mean() {
        let model = LengthModel::default();
        let mean =
            (0..2_000).map(|i| model.length(&format!("r{i}"), None, "mine").get()).sum::<f64>() / 2_000.0;
        assert!((mean / 200.0 - 1.0).abs() < 0.05, "{mean}");
    }

    #[test]
    fn predictions_know_the_model_and_about_half_of_the_request() {
        let model = LengthModel { predicted: Some(PredictedLengths::default()), ..LengthModel::default() };
        let of = |i: u32, name: &str| {
            let id = format!("row{i}");
            let predicted = model.predicted_length(&id, Some("math"), name).unwrap();
            (model.length(&id, Some("math"), name).get(), predicted.get())
        };
        let pairs: Vec<(f64, f64)> = (0..4_000).map(|i| of(i, "codegemma-7b")).collect();
        let mean = pairs.iter().map(|(_, predicted)| predicted).sum::<f64>() / 4_000.0;
        assert!((mean / 336.0 - 1.0).abs() < 0.03, "{mean}");
        // Correlation of the logarithms: 0.45 · 0.25 / sqrt((0.45² + 0.25²) (0.25² + 0.25²)) = 0.618.
        let logs: Vec<(f64, f64)> = pairs.iter().map(|(a, b)| (a.ln(), b.ln())).collect();
        let means = logs.iter().fold((0.0, 0.0), |m, p| (m.0 + p.0 / 4_000.0, m.1 + p.1 / 4_000.0));
        let covariance = |f: fn((f64, f64)) -> f64| -> f64 {
            logs.iter().map(|p| f((p.0 - means.0, p.1 - means.1))).sum()
        };
        let correlation =
            covariance(|(a, b)| a * b) / (covariance(|(a, _)| a * a) * covariance(|(_, b)| b * b)).sqrt();
        assert!((correlation - 0.618).abs() < 0.04, "{correlation}");
        // One factor per request, whatever the model.
        let (quiet, wordy) = (of(1, "codegemma-7b").1, of(1, "llama-3.1-8b-instruct").1);
        assert!((quiet / wordy - 0.8).abs() < 1e-9);
        assert_eq!(LengthModel::default().predicted_length("row1", None, "m"), None);
    }

    #[test]
    fn the_hash_is_fnv1a() {
        // Published test vectors.
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}

//! What the configuration says about quality prediction (`quality.*`, `embedder.*`) and the priors it
//! falls back on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::embedder::set_up_cache;
use super::feedback::FeedbackParams;
use crate::domain::named::named_enum;
use crate::units::{Quality, Tokens};

named_enum! {
    /// How the scores of similar prompts become q̂.
    pub enum EstimatorMode {
        /// Neighbours by embedding and message format, exponential weights, soft fall to the mean.
        FormatAware = "format_aware",
        /// The paper's Eq. 1: similarity-weighted mean of the neighbours above a threshold.
        Paper = "paper",
    }
}

named_enum! {
    /// What is predicted for prompts unlike every profiled one.
    pub enum OodGate {
        /// Weights fall with distance, beside the weight κ of the mean.
        Soft = "soft",
        /// The same, drawn to the destination's mean where the nearest prompts are farther than the profile's own are
        /// from each other.
        Mean = "mean",
    }
}

/// Parameters of the store and the estimator.
#[derive(Debug, Clone, PartialEq)]
pub struct QualityParams {
    /// Directory of the quality store; may be missing.
    pub store: PathBuf,
    /// How scores become q̂.
    pub mode: EstimatorMode,
    /// K, the most neighbours that count; at least 1. [`EstimatorMode::FormatAware`] uses at most a fifth
    /// of the profiled prompts, but never less than 20.
    pub neighbours: usize,
    /// γ, how fast a neighbour's weight falls with its distance in [`EstimatorMode::FormatAware`]; not negative.
    pub sharpness: f64,
    /// Least cosine similarity of a neighbour in [`EstimatorMode::Paper`].
    pub min_similarity: f64,
    /// κ, the weight of the destination's mean beside the neighbours' in [`EstimatorMode::FormatAware`];
    /// not negative.
    pub prior_strength: f64,
    /// What is done about prompts unlike every profiled one.
    pub ood: OodGate,
    /// Whether the error rates of prompt clusters are predicted as well, which policy `uniroute` asks for.
    pub predicts_clusters: bool,
    /// What clients say of answers.
    pub feedback: FeedbackParams,
}

impl Default for QualityParams {
    fn default() -> Self {
        Self {
            store: PathBuf::from("quality"),
            mode: EstimatorMode::FormatAware,
            neighbours: 160,
            sharpness: 5.0,
            min_similarity: 0.3,
            prior_strength: 0.1,
            ood: OodGate::Soft,
            predicts_clusters: false,
            feedback: FeedbackParams::default(),
        }
    }
}

/// Where the embedding model is and how much it may use.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbedderParams {
    /// `libonnxruntime.so`. `None` looks at `ort_dylib_path`, then in `cache_dir/lib`, then in
    /// `/usr/lib/cema-router`.
    pub library: Option<PathBuf>,
    /// Folder with `model.onnx` and `tokenizer.json`. `None` looks in `cache_dir/model`, then in
    /// `/usr/lib/cema-router/model`.
    pub model: Option<PathBuf>,
    /// Value of the environment variable `ORT_DYLIB_PATH`.
    pub ort_dylib_path: Option<PathBuf>,
    /// Folder that `make setup` fills.
    pub cache_dir: PathBuf,
    /// Prompts embedded at the same time, each with a thread and a session of about 110 MB; at least 1.
    pub threads: usize,
    /// Embeddings kept for texts that come again; at least 1.
    pub cache_entries: usize,
    /// Prompts that may wait for an embedding; more are predicted from priors. At least 1.
    pub queue: usize,
}

impl EmbedderParams {
    /// The defaults with what the environment says: `ORT_DYLIB_PATH`, and where the set-up cache is.
    #[must_use]
    pub fn of_environment() -> Self {
        Self {
            ort_dylib_path: std::env::var_os("ORT_DYLIB_PATH").map(Into::into),
            cache_dir: set_up_cache(Path::new(""), std::env::current_exe().ok().as_deref()),
            ..Self::default()
        }
    }
}

impl Default for EmbedderParams {
    fn default() -> Self {
        Self {
            library: None,
            model: None,
            ort_dylib_path: None,
            cache_dir: PathBuf::from(".cache/cema"),
            threads: 1,
            cache_entries: 4096,
            queue: 256,
        }
    }
}

/// What is assumed of one destination where the store does not know better.
#[derive(Debug, Clone, PartialEq)]
pub struct DestinationPrior {
    /// Public model name; the store's scores are kept under it.
    pub model: Arc<str>,
    /// Expected quality.
    pub quality: Quality,
    /// Expected completion length.
    pub completion_tokens: Tokens,
}

/// The priors of all destinations, in the order of D.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FleetPriors {
    /// One entry per destination; index = `DestinationOrd`.
    pub destinations: Vec<DestinationPrior>,
}

//! How requests are gathered and assigned (`window`, `routing`), and what predicts quality
//! (`embedder`, `quality`).

use std::path::PathBuf;
use std::time::Duration;

use super::reader::{Field, Section};
use crate::domain::request::Weights;
use crate::planning::params::{WindowClose, WindowOrder, WindowParams};
use crate::profiler::prefix::PrefixParams;
use crate::profiler::quality::feedback::FeedbackParams;
use crate::profiler::quality::{EstimatorMode, OodGate, QualityParams};
use crate::routing::params::{CompletionModel, EnergyModel, ObjectiveMode, PolicyKind, TimeTerm};
use crate::units::Seconds;

/// The paper's routing interval is at most one second.
const MAX_WINDOW_MS: f64 = 1_000.0;
/// Longest `max_hold_ms`: ten minutes.
const MAX_HOLD_MS: f64 = 600_000.0;

/// Most beginnings of prompts remembered per destination: about 80 MB.
const MAX_PREFIX_ENTRIES: u32 = 1_000_000;
/// Longest that they count: a day.
const MAX_PREFIX_AGE_S: f64 = 86_400.0;

const DAY_S: f64 = 86_400.0;

/// Most `max_overtakes`.
const MAX_OVERTAKES: u32 = 1_000_000;

/// Reads `window`: `max_ms` 0 to 1000 (default 1000), `max_requests` 1 to 1024 (128), `close` (adaptive),
/// `max_hold_ms` auto or 0 to 600000 (auto), `order` (shortest), `max_overtakes` 0 to 1000000 (64),
/// `any_slot_after_ms` auto or 0 to 600000 (auto), `finish_target_ms` none or 1 to 600000 (none).
pub(super) fn read_window(s: &mut Section<'_>) -> WindowParams {
    WindowParams {
        max_wait: Seconds::from_ms(s.float("max_ms", 0.0..=MAX_WINDOW_MS, MAX_WINDOW_MS)),
        max_requests: s.count("max_requests", 1..=1_024, 128) as usize,
        close: s.choice("close", WindowClose::ALL, WindowClose::Adaptive),
        max_hold: ms_or(s, "max_hold_ms", "auto", 0.0),
        order: s.choice("order", WindowOrder::ALL, WindowOrder::Shortest),
        max_overtakes: s.count("max_overtakes", 0..=MAX_OVERTAKES, 64),
        any_slot_after: ms_or(s, "any_slot_after_ms", "auto", 0.0),
        finish_target: ms_or(s, "finish_target_ms", "none", 1.0),
    }
}

/// Milliseconds from `least_ms` to ten minutes; `None` for `word` and where there is nothing.
fn ms_or(s: &mut Section<'_>, key: &'static str, word: &'static str, least_ms: f64) -> Option<Seconds> {
    let field = s.get(key).filter(|field| !field.is_word(word))?;
    field.float(&(least_ms..=MAX_HOLD_MS), &format!("{word} or ")).map(Seconds::from_ms)
}

/// `switchback`: policies take turns, so that they can be compared.
#[derive(Debug, Clone, PartialEq)]
pub struct SwitchbackConfig {
    /// `minutes`: length of a slice, 0.0001 to 10080 (a week); default 10.
    pub slice: Seconds,
    /// `policies` (required): at least two, each once; the first is the one that the others are held against.
    pub policies: Vec<PolicyKind>,
    /// `washout`: share of each slice, at its beginning, that is not counted, 0 to 0.9; default 0.2.
    pub washout: f64,
}

impl SwitchbackConfig {
    pub(super) fn read(s: &mut Section<'_>) -> Self {
        const ALLOWED: &str = "a list of at least two policies, each once";
        let slice = Seconds(60.0 * s.float("minutes", 1e-4..=10_080.0, 10.0));
        let washout = s.float("washout", 0.0..=0.9, 0.2);
        let given = s.require("policies", ALLOWED).map(|field| field.filled_list(ALLOWED));
        let n_given = given.as_ref().map(Vec::len);
        let mut policies = Vec::new();
        for policy in given.unwrap_or_default().iter().filter_map(|item| item.choice(PolicyKind::ALL)) {
            if policies.contains(&policy) {
                s.fault("policies", format!("`{policy}` stands there twice"), ALLOWED);
            } else {
                policies.push(policy);
            }
        }
        if n_given == Some(1) {
            s.fault("policies", "one policy has nobody to take turns with", ALLOWED);
        }
        Self { slice, policies, washout }
    }
}

/// `routing`: how a batch is assigned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoutingConfig {
    /// `policy`; default `memetic`.
    pub policy: PolicyKind,
    /// `objective`: how terms are normalised; default `stationary`.
    pub objective: ObjectiveMode,
    /// `weights` of Eq. 5, scaled to sum to 1; default a quarter each. Where some are given the others are 0.
    pub weights: Weights,
    /// `completion`: the completion-time model; default `slots`.
    pub completion: CompletionModel,
    /// `time`: what the time term measures; default `sum`.
    pub time: TimeTerm,
    /// `energy_model`; default `marginal`.
    pub energy_model: EnergyModel,
    /// `budget_ms`: thread CPU per plan, 0.05 to 1000; default 4.
    pub budget: Duration,
    /// `refuse_infeasible_deadlines`: whether a request is refused (503) once no legal destination is predicted to meet
    /// its deadline; default false, which serves it all the same.
    pub refuse_infeasible_deadlines: bool,
    /// `seed` of the solver, any 64-bit number; default 1.
    pub seed: u64,
    /// `prefix_cache`: `entries` remembered per destination, 0 to 1000000 (default 8192), for `max_age_s`, 1 to 86400
    /// (600).
    pub prefix_cache: PrefixParams,
}

impl RoutingConfig {
    pub(super) fn read(s: &mut Section<'_>) -> Self {
        Self {
            policy: s.choice("policy", PolicyKind::ALL, PolicyKind::Memetic),
            objective: s.choice("objective", ObjectiveMode::ALL, ObjectiveMode::Stationary),
            weights: s.get("weights").and_then(|field| read_weights(&field)).unwrap_or(Weights::EQUAL),
            completion: s.choice("completion", CompletionModel::ALL, CompletionModel::Slots),
            time: s.choice("time", TimeTerm::ALL, TimeTerm::Sum),
            energy_model: s.choice("energy_model", EnergyModel::ALL, EnergyModel::Marginal),
            budget: s.ms("budget_ms", 0.05..=1_000.0, 4.0),
            refuse_infeasible_deadlines: s.flag("refuse_infeasible_deadlines", false),
            seed: s.whole("seed", 0..=u64::MAX, 1),
            prefix_cache: s.section("prefix_cache", read_prefix_cache),
        }
    }
}

fn read_prefix_cache(s: &mut Section<'_>) -> PrefixParams {
    let PrefixParams { entries, max_age } = PrefixParams::DEFAULT;
    PrefixParams {
        entries: s.count("entries", 0..=MAX_PREFIX_ENTRIES, entries),
        max_age: Seconds(s.float("max_age_s", 1.0..=MAX_PREFIX_AGE_S, max_age.0)),
    }
}

/// Weights ω of Eq. 5, each 0 to 1000000 and not all zero; an absent one is 0. Scaled to sum to 1.
pub(super) fn read_weights(field: &Field<'_>) -> Option<Weights> {
    field.section(|s| {
        let mut weight = |key| s.float(key, 0.0..=1e6, 0.0);
        let weights = Weights {
            quality: weight("quality"),
            cost: weight("cost"),
            energy: weight("energy"),
            time: weight("time"),
        };
        let normalised = weights.normalised();
        if normalised.is_none() {
            field.fault("weights sum to 0", "at least one of quality, cost, energy, time above 0");
        }
        normalised
    })?
}

/// `embedder`: where the sentence embedder is; `None` = looked for in the usual places.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EmbedderConfig {
    /// `library`: path of libonnxruntime.so, or `auto` (default).
    pub library: Option<PathBuf>,
    /// `model`: folder with model.onnx and tokenizer.json, or `auto` (default).
    pub model: Option<PathBuf>,
}

impl EmbedderConfig {
    pub(super) fn read(s: &mut Section<'_>) -> Self {
        let mut path = |key| {
            let field = s.get(key).filter(|field| !field.is_word("auto"))?;
            field.path("auto or a path")
        };
        Self { library: path("library"), model: path("model") }
    }
}

/// `quality`: the store of profiled prompts and how it is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct QualityConfig {
    /// `store`: directory; default `quality` beside the configuration. A missing one means priors only.
    pub store: PathBuf,
    /// `mode`; default `format_aware`.
    pub mode: EstimatorMode,
    /// `neighbours` consulted, 1 to 10000; default 160.
    pub neighbours: u32,
    /// `sharpness`: how fast a neighbour's weight falls with its distance (mode `format_aware`), 0 to 100; default 5.
    pub sharpness: f64,
    /// `min_similarity`: cosine below which a neighbour does not count (mode `paper`), -1 to 1; default 0.3.
    pub min_similarity: f64,
    /// `prior_strength`: weight of the destination mean against the neighbours, 0 to 1000; default 0.1.
    pub prior_strength: f64,
    /// `ood`: what is predicted for prompts unlike every profiled one; default `soft`.
    pub ood: OodGate,
    /// `embed_wait_ms`: longest wait for an embedding, 0 to 10000; default 50. In a `fixed` window at
    /// least the window's length, which passes anyway.
    pub embed_wait: Duration,
    /// `feedback` of clients: `retention_s` in which it may be given, 0 (never) to 604800 (default 3600), on the last
    /// `requests`, 1 to 1000000 (10000), in `memory_mb`, 1 to 4096 (16); `keep_prompts` in the store (false); `weight`
    /// of a fresh score beside a profiled prompt, 0 to 100 (1), halved every `half_life_days`, none or 0.01 to 3650
    /// (30); `rows` that predictions look at, 0 to 100000 (2000).
    pub feedback: FeedbackParams,
}

impl QualityConfig {
    pub(super) fn read(s: &mut Section<'_>) -> Self {
        Self {
            store: s.path("store", "quality"),
            mode: s.choice("mode", EstimatorMode::ALL, EstimatorMode::FormatAware),
            neighbours: s.count("neighbours", 1..=10_000, 160),
            sharpness: s.float("sharpness", 0.0..=100.0, 5.0),
            min_similarity: s.float("min_similarity", -1.0..=1.0, 0.3),
            prior_strength: s.float("prior_strength", 0.0..=1_000.0, 0.1),
            ood: s.choice("ood", OodGate::ALL, OodGate::Soft),
            embed_wait: s.ms("embed_wait_ms", 0.0..=10_000.0, 50.0),
            feedback: s.section("feedback", read_feedback),
        }
    }

    /// What the estimator is told, but for what policies ask of it.
    #[must_use]
    pub fn params(&self) -> QualityParams {
        QualityParams {
            store: self.store.clone(),
            mode: self.mode,
            neighbours: self.neighbours as usize,
            sharpness: self.sharpness,
            min_similarity: self.min_similarity,
            prior_strength: self.prior_strength,
            ood: self.ood,
            predicts_clusters: false,
            feedback: self.feedback.clone(),
        }
    }
}

fn read_feedback(s: &mut Section<'_>) -> FeedbackParams {
    let default = FeedbackParams::default();
    let half_life = match s.get("half_life_days") {
        None => default.half_life,
        Some(field) if field.is_word("none") => None,
        Some(field) => field.float(&(0.01..=3_650.0), "none or ").map(|days| Seconds(days * DAY_S)),
    };
    FeedbackParams {
        retention: Duration::from_secs_f64(s.float("retention_s", 0.0..=7.0 * DAY_S, 3_600.0)),
        requests_max: s.count("requests", 1..=1_000_000, 10_000) as usize,
        bytes_max: (s.count("memory_mb", 1..=4_096, 16) as usize) << 20,
        keeps_prompts: s.flag("keep_prompts", default.keeps_prompts),
        weight: s.float("weight", 0.0..=100.0, default.weight),
        half_life,
        rows_max: s.count("rows", 0..=100_000, 2_000) as usize,
    }
}

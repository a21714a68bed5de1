//! From scenario and rows to a workload: truth from the trace, predictions from the profile by the router's
//! own estimator. The two never mix.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};

use super::embeddings::embed_all;
use super::trace::{Trace, TraceRow};
use crate::cli::progress::Progress;
use crate::config::{Scenario, UnirouteErrors};
use crate::domain::{
    CachedPrefix, Capabilities, Constraints, ModelTarget, Prediction, QualitySource, RoutingRequest,
};
use crate::profiler::quality::clusters::PromptClusters;
use crate::profiler::quality::embedder::{self, Embedding};
use crate::profiler::quality::estimator::profile::{Profile, ProfileCell};
use crate::profiler::quality::estimator::{Estimator, Scratch};
use crate::profiler::quality::format::format_numbers;
use crate::profiler::quality::store::QualityStore;
use crate::profiler::quality::{DestinationPrior, EmbedderParams, FleetPriors};
use crate::simulate::{SimulatedRequest, Workload};
use crate::units::{Bytes, Quality, Tokens};

/// Expected length where neither profile nor neighbours know one.
const COMPLETION_PRIOR: Tokens = Tokens(250.0);

/// Where predictions come from.
pub(super) enum ProfileSource {
    /// Rows of a trace file.
    Rows(Trace),
    /// A quality store.
    Store(QualityStore),
}

/// What the truth of the trace says of one row.
struct TrueRow<'a> {
    row: &'a TraceRow,
    truth: Arc<Prediction>,
}

/// A workload whose router knows the truth beforehand. UniRoute gets the same.
pub(super) fn oracle(scenario: &Scenario, trace: &Trace) -> anyhow::Result<Workload> {
    let rows = true_rows(scenario, trace)?;
    let believed = rows.iter().map(|row| Arc::clone(&row.truth)).collect::<Vec<_>>();
    join(scenario, &rows, believed, None)
}

/// A workload whose router predicts from `profile`.
pub(super) fn predicted(
    scenario: &Scenario,
    trace: &mut Trace,
    profile: ProfileSource,
    embedder: &EmbedderParams,
    progress: &Progress,
) -> anyhow::Result<Workload> {
    let mut loaded = embedder::load(embedder)
        .context("predictions need the embedder; `--quality oracle` does without, but knows the truth")?;
    if let ProfileSource::Store(store) = &profile {
        store.check_embedder(&loaded.model_sha256)?;
        remove_stored(trace, store)?;
    }
    let of_profile = match &profile {
        ProfileSource::Rows(profile) => profile.rows.as_slice(),
        ProfileSource::Store(_) => &[],
    };
    let texts: Vec<&str> = of_profile.iter().chain(&trace.rows).map(|row| row.prompt.text.as_str()).collect();
    let mut embeddings = embed_all(&texts, &mut loaded, &embedder.cache_dir, progress)?;
    let of_trace = embeddings.split_off(of_profile.len());
    let models: Vec<String> = models_of(scenario);
    let profile = match &profile {
        ProfileSource::Rows(profile) => profile_of_rows(models, profile, &embeddings),
        ProfileSource::Store(store) => store.load_profile(&models)?,
    };
    if profile.is_empty() {
        bail!("the profile has no row with a score of {}", models_of(scenario).join(", "));
    }
    let clusters = (scenario.uniroute == UnirouteErrors::Clusters)
        .then(|| PromptClusters::new(&profile, &priors(scenario)));
    let estimator = Estimator::new(profile, &priors(scenario), &scenario.quality.params());
    let rows = true_rows(scenario, trace)?;
    let mut scratch = Scratch::default();
    let believed = rows.iter().zip(&of_trace).map(|(row, embedding)| {
        let format = format_numbers(&row.row.prompt.text);
        let mut prediction = estimator.predict(embedding, &format, &mut scratch).prediction;
        believe_synthetic_lengths(scenario, row.row, &mut prediction);
        Arc::new(prediction)
    });
    let believed = believed.collect();
    let clusters = clusters.map(|clusters| {
        (of_trace.iter().map(|embedding| clusters.of(embedding)).collect(), clusters.error().to_vec())
    });
    join(scenario, &rows, believed, clusters)
}

/// Where lengths are synthetic and the scenario says what the router believes of them, that.
fn believe_synthetic_lengths(scenario: &Scenario, row: &TraceRow, prediction: &mut Prediction) {
    if !row.has_synthetic_lengths {
        return;
    }
    for (tokens, model) in prediction.completion_tokens.iter_mut().zip(&scenario.trace_models) {
        let prompt = &row.prompt;
        let believed = scenario.lengths.predicted_length(&prompt.id, prompt.benchmark.as_deref(), model);
        *tokens = believed.unwrap_or(*tokens);
    }
}

/// A prompt in the store is no test of the store.
fn remove_stored(trace: &mut Trace, store: &QualityStore) -> anyhow::Result<()> {
    let mut kept = Vec::with_capacity(trace.rows.len());
    for row in trace.rows.drain(..) {
        if !store.holds(&row.prompt.id, &row.prompt.text)? {
            kept.push(row);
        }
    }
    trace.rows = kept;
    if trace.rows.is_empty() {
        bail!("every row of the trace is in the quality store; results would say nothing");
    }
    Ok(())
}

/// The models whose scores stand for the destinations', each once.
fn models_of(scenario: &Scenario) -> Vec<String> {
    let mut models: Vec<String> = scenario.trace_models.iter().map(|model| model.to_string()).collect();
    models.sort_unstable();
    models.dedup();
    models
}

#[expect(clippy::cast_possible_truncation, reason = "profiles are single precision by design")]
fn profile_of_rows(models: Vec<String>, rows: &Trace, embeddings: &[Embedding]) -> Profile {
    let mut profile = Profile::new(models.clone());
    for (row, embedding) in rows.rows.iter().zip(embeddings) {
        let cell = |model: &String| {
            let score = row.prompt.scores.iter().find(|score| score.model == *model)?;
            let completion_tokens = score.completion_tokens.map(|tokens| tokens as f32);
            Some(ProfileCell { score: score.score as f32, completion_tokens })
        };
        let cells: Vec<_> = models.iter().map(cell).collect();
        if cells.iter().any(Option::is_some) {
            profile.push(embedding, format_numbers(&row.prompt.text), &cells);
        }
    }
    profile
}

fn priors(scenario: &Scenario) -> FleetPriors {
    let columns = scenario.destinations.iter().zip(&scenario.trace_models);
    let prior = columns.map(|(destination, model)| DestinationPrior {
        model: Arc::clone(model),
        quality: destination.quality_prior,
        completion_tokens: COMPLETION_PRIOR,
    });
    FleetPriors { destinations: prior.collect() }
}

/// Every row must have a score and a length for every destination.
fn true_rows<'a>(scenario: &Scenario, trace: &'a Trace) -> anyhow::Result<Vec<TrueRow<'a>>> {
    let columns = scenario.destinations.iter().zip(&scenario.trace_models);
    let mut rows = Vec::with_capacity(trace.rows.len());
    for row in &trace.rows {
        let (mut quality, mut completion_tokens) = (Vec::new(), Vec::new());
        for (destination, model) in columns.clone() {
            let id = &row.prompt.id;
            let score = row.prompt.scores.iter().find(|score| *score.model == **model);
            let score = score.with_context(|| {
                let known: Vec<&str> = row.prompt.scores.iter().map(|s| s.model.as_str()).collect();
                format!(
                    "trace {}: row `{id}` has no score of {model}, which destination {} needs; it has {}",
                    trace.source,
                    destination.id,
                    known.join(", ")
                )
            })?;
            quality.push(Quality(score.score));
            completion_tokens.push(score.completion_tokens.map_or(COMPLETION_PRIOR, Tokens));
        }
        let (cluster_error, source) = (Vec::new(), QualitySource::Store);
        let truth = Arc::new(Prediction { quality, completion_tokens, cluster_error, source });
        rows.push(TrueRow { row, truth });
    }
    Ok(rows)
}

/// The cluster of each row, and the error per cluster and destination.
type ClusterTable = (Vec<usize>, Vec<f64>);

fn join(
    scenario: &Scenario,
    rows: &[TrueRow<'_>],
    believed: Vec<Arc<Prediction>>,
    clusters: Option<ClusterTable>,
) -> anyhow::Result<Workload> {
    // Without clusters every row is a cluster of its own, and its predicted loss the error rate.
    let (of_row, error) = clusters.unwrap_or_else(|| {
        let losses = believed.iter().flat_map(|prediction| &prediction.quality).map(|q| 1.0 - q.get());
        ((0..rows.len()).collect(), losses.collect())
    });
    let requests =
        rows.iter().zip(believed).zip(of_row).map(|((row, prediction), cluster)| SimulatedRequest {
            request: Arc::new(request(row.row)),
            prediction,
            truth: Arc::clone(&row.truth),
            cluster,
        });
    Ok(Workload::new(scenario.destinations.clone().into(), requests.collect(), error)?)
}

fn request(row: &TraceRow) -> RoutingRequest {
    RoutingRequest {
        id: row.prompt.id.as_str().into(),
        target: ModelTarget::Any,
        needs: Capabilities::CHAT,
        prompt_tokens: row.prompt_tokens,
        longest_prompt: row.prompt_tokens,
        cached: CachedPrefix::NOWHERE,
        max_completion_tokens: None,
        choices: 1,
        upload: Bytes(row.prompt.text.len() as f64),
        constraints: Constraints::default(),
        weights: None,
        time: None,
    }
}

/// Opens a quality store or reads rows, whichever `path` is.
pub(super) fn profile_at(path: &Path) -> anyhow::Result<ProfileSource> {
    if path.is_dir() {
        return Ok(ProfileSource::Store(QualityStore::open(path)?));
    }
    Ok(ProfileSource::Rows(super::trace::read(path).context("--profile")?))
}

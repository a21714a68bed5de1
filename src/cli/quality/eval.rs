//! `quality eval`: how well a store predicts prompts that it does not hold.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;

use super::charts::{calibration_chart, cost_chart};
use super::{EmbedderArgs, EstimatorArgs, Format, StoreArgs, open_scored, width, write_charts};
use crate::cli::progress::Progress;
use crate::profiler::quality::embedder::embed_all;
use crate::profiler::quality::embedder::{self, Embedding, LoadedEmbedder};
use crate::profiler::quality::estimator::{Estimator, Scratch};
use crate::profiler::quality::evaluation::check::fleet_of;
use crate::profiler::quality::evaluation::{JudgedPrompt, Means, Metrics, judge, truth_of};
use crate::profiler::quality::format::format_numbers;
use crate::profiler::quality::import::TraceRows;
use crate::profiler::quality::store::{QualityStore, StoredPrompt};

/// Judge a store by scored prompts that it does not hold
///
/// Prompts that are in the store with the same text are left out. Prints, as JSON, the mean
/// squared error of predicted quality beside that of each model's mean (over everything, and
/// per benchmark), the mean score of the models predicted best, calibration, what the ranking
/// is worth in money (`aiq`, where costs are recorded), and the error of predicted lengths.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct EvalArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Scored prompts, in the form of `quality import`
    #[arg(long, value_name = "F")]
    trace: PathBuf,

    /// Write every predicted quality, as rows `id,model,q`
    #[arg(long, value_name = "OUT.csv")]
    predictions: Option<PathBuf>,

    #[command(flatten)]
    estimator: EstimatorArgs,

    #[command(flatten)]
    embedder: EmbedderArgs,

    /// Folder for charts (SVG): calibration and cost against quality
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,

    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Json)]
    format: Format,
}

/// What is printed.
#[derive(Serialize)]
struct Evaluation<'a> {
    #[serde(flatten)]
    metrics: &'a Metrics,
    /// Prompts in the store.
    profile_rows: usize,
    /// Rows left out since the store holds them.
    known: usize,
    /// Rows left out since they are faulty.
    faulty: usize,
}

pub(super) fn run(args: &EvalArgs) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    let (store, labelled) = open_scored(&args.store.store)?;
    let mut loaded = embedder::load(&args.embedder.params())?;
    store.check_embedder(&loaded.model_sha256)?;
    let (prompts, known, faulty) = unknown_prompts(&args.trace, &store, &progress)?;
    let embeddings = embed(&prompts, &mut loaded, &progress)?;
    let models = labelled.profile.models().to_vec();
    let means = Means::new(&labelled);
    let profile_rows = labelled.profile.len();
    let params = args.estimator.params(&args.store.store);
    let estimator = Estimator::new(labelled.profile, &fleet_of(&models), &params);
    if let Err(reason) = estimator.prepare(None) {
        progress.say(&format!("no index, every prediction scans the store: {reason}"));
    }
    let mut scratch = Scratch::default();
    let rows: Vec<JudgedPrompt> = prompts
        .iter()
        .zip(&embeddings)
        .map(|(prompt, embedding)| judged(prompt, embedding, (&estimator, &models), &mut scratch))
        .collect();
    if let Some(path) = &args.predictions {
        write_predictions(path, &rows, &models)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(folder) = &args.plot {
        let charts = [calibration_chart(&rows), cost_chart(&rows, &models)];
        write_charts(folder, charts.into_iter().flatten().collect(), &progress)?;
    }
    let metrics = judge(&rows, &models, &means);
    let evaluation = Evaluation { metrics: &metrics, profile_rows, known, faulty };
    let text = match args.format {
        Format::Json => serde_json::to_string(&evaluation)? + "\n",
        Format::Table => table(&evaluation)?,
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The rows of `trace` that the store does not hold and that score one of its models, with how many it holds and how
/// many are faulty.
fn unknown_prompts(
    trace: &Path,
    store: &QualityStore,
    progress: &Progress,
) -> anyhow::Result<(Vec<StoredPrompt>, usize, usize)> {
    /// Faulty rows printed one by one.
    const FAULTS_SHOWN: usize = 20;
    let rows = TraceRows::open(trace).with_context(|| format!("cannot read {}", trace.display()))?;
    let (mut prompts, mut known, mut faulty) = (Vec::new(), 0, 0);
    for (row, parsed) in rows {
        match parsed {
            Ok(prompt) if store.holds(&prompt.id, &prompt.text)? => known += 1,
            Ok(prompt) => prompts.push(prompt),
            Err(reason) => {
                faulty += 1;
                if faulty <= FAULTS_SHOWN {
                    progress.say(&format!("line {row}: {reason}"));
                }
            }
        }
    }
    if prompts.is_empty() {
        bail!("no row of {} can be judged: {known} are in the store, {faulty} are faulty", trace.display());
    }
    Ok((prompts, known, faulty))
}

fn embed(
    prompts: &[StoredPrompt],
    loaded: &mut LoadedEmbedder,
    progress: &Progress,
) -> anyhow::Result<Vec<Embedding>> {
    let stage = progress.stage("embedding prompts", prompts.len());
    let texts: Vec<&str> = prompts.iter().map(|prompt| prompt.text.as_str()).collect();
    Ok(embed_all(&texts, &mut loaded.workers, &|| stage.advance())?)
}

fn judged(
    prompt: &StoredPrompt,
    embedding: &Embedding,
    (estimator, models): (&Estimator, &[String]),
    scratch: &mut Scratch,
) -> JudgedPrompt {
    let estimate = estimator.predict(embedding, &format_numbers(&prompt.text), scratch);
    JudgedPrompt {
        id: prompt.id.clone(),
        benchmark: prompt.benchmark.clone(),
        has_low_evidence: estimate.has_low_evidence(),
        quality: estimate.prediction.quality.iter().map(|quality| Some(quality.get())).collect(),
        variance: estimate.variance,
        completion_tokens: estimate.prediction.completion_tokens.iter().map(|n| n.get()).collect(),
        truth: truth_of(prompt, models),
    }
}

fn write_predictions(path: &Path, rows: &[JudgedPrompt], models: &[String]) -> anyhow::Result<()> {
    let mut writer = csv::Writer::from_path(path)?;
    writer.write_record(["id", "model", "q"])?;
    for row in rows {
        for (model, quality) in models.iter().zip(&row.quality) {
            if let Some(quality) = quality {
                writer.write_record([row.id.as_str(), model, &quality.to_string()])?;
            }
        }
    }
    Ok(writer.flush()?)
}

fn table(evaluation: &Evaluation<'_>) -> anyhow::Result<String> {
    let serde_json::Value::Object(fields) = serde_json::to_value(evaluation)? else {
        bail!("an evaluation is an object");
    };
    let column = width(fields.keys().map(String::as_str), "");
    let number = |value: &serde_json::Value| match value.as_f64() {
        Some(number) if value.is_f64() => format!("{number:.4}"),
        _ => value.to_string(),
    };
    let lines = fields.iter().map(|(name, value)| format!("{name:column$}  {}\n", number(value)));
    Ok(lines.collect())
}

//! `quality`: fill the store that quality predictions rest on, judge it, and see what it says.

mod charts;
mod check;
mod eval;
mod export;
mod import;
mod prune;
mod query;
mod rebuild;
mod stats;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};

use crate::cli::progress::Progress;
use crate::profiler::quality::params::{EmbedderParams, EstimatorMode, OodGate, QualityParams};
use crate::profiler::quality::store::{LabelledProfile, QualityStore};

/// The way of a store.
const AFTER_HELP: &str = "\
Examples (`profile quality` fills a store from your own endpoints):
  cema-router quality import --store quality --trace rows.jsonl
  cema-router quality check --store quality                     # is it any good? what is it bad at?
  cema-router quality query --store quality \"What is 7 plus 5?\"";

/// Fill, judge and inspect the quality store
///
/// The store holds prompts that were answered by your models and scored. The router predicts how well a
/// model will answer a new prompt from the most similar prompts in it. It is one directory; back it up by
/// copying it while nothing writes to it.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct QualityArgs {
    #[command(subcommand)]
    command: QualityCommand,
}

#[derive(Debug, Subcommand)]
enum QualityCommand {
    Import(import::ImportArgs),
    Stats(stats::StatsArgs),
    Query(query::QueryArgs),
    Check(check::CheckArgs),
    Eval(eval::EvalArgs),
    Export(export::ExportArgs),
    Rebuild(rebuild::RebuildArgs),
    Prune(prune::PruneArgs),
}

/// The store a command works on.
#[derive(Debug, Args)]
struct StoreArgs {
    /// Directory of the store
    #[arg(long, value_name = "DIR")]
    store: PathBuf,
}

/// Where the embedding model is.
#[derive(Debug, Args)]
pub(super) struct EmbedderArgs {
    /// libonnxruntime.so [default: $ORT_DYLIB_PATH, .cache/cema/lib, /usr/lib/cema-router]
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,

    /// Folder with model.onnx and tokenizer.json [default: .cache/cema/model, /usr/lib/cema-router/model]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,

    /// Prompts embedded at the same time [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
}

/// How predictions are made; the keys of `quality` in the configuration.
#[derive(Debug, Args)]
struct EstimatorArgs {
    /// `mode`: `format_aware`, or `paper` (Eq. 1)
    #[arg(long, default_value = "format_aware", value_parser = mode)]
    mode: EstimatorMode,

    /// `neighbours`
    #[arg(long, value_name = "K", default_value_t = 160, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    neighbours: u32,

    /// `sharpness`
    #[arg(long, value_name = "GAMMA", default_value_t = 5.0, value_parser = from_zero)]
    sharpness: f64,

    /// `prior_strength`
    #[arg(long, value_name = "KAPPA", default_value_t = 0.1, value_parser = from_zero)]
    prior_strength: f64,

    /// `min_similarity` (mode `paper`)
    #[arg(long, value_name = "COSINE", default_value_t = 0.3, allow_negative_numbers = true)]
    min_similarity: f64,

    /// `ood`: `soft` or `mean`
    #[arg(long, default_value = "soft", value_parser = ood)]
    ood: OodGate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

/// Runs the command: results go to standard output, progress and faults to standard error.
///
/// # Errors
/// What went wrong, for the user to read.
pub fn run(args: &QualityArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        QualityCommand::Import(args) => import::run(args),
        QualityCommand::Stats(args) => stats::run(args),
        QualityCommand::Query(args) => query::run(args),
        QualityCommand::Check(args) => check::run(args),
        QualityCommand::Eval(args) => eval::run(args),
        QualityCommand::Export(args) => export::run(args),
        QualityCommand::Rebuild(args) => rebuild::run(args),
        QualityCommand::Prune(args) => prune::run(args),
    }
}

impl EmbedderArgs {
    pub(super) fn params(&self) -> EmbedderParams {
        let n_cores = || std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        EmbedderParams {
            library: self.library.clone(),
            model: self.model.clone(),
            threads: self.threads.map_or_else(n_cores, usize::from),
            ..EmbedderParams::of_environment()
        }
    }
}

impl EstimatorArgs {
    fn params(&self, store: &Path) -> QualityParams {
        QualityParams {
            store: store.to_path_buf(),
            mode: self.mode,
            neighbours: self.neighbours as usize,
            sharpness: self.sharpness,
            min_similarity: self.min_similarity,
            prior_strength: self.prior_strength,
            ood: self.ood,
            ..QualityParams::default()
        }
    }
}

fn mode(name: &str) -> Result<EstimatorMode, String> {
    EstimatorMode::from_name(name).ok_or_else(|| "format_aware or paper".to_owned())
}

fn ood(name: &str) -> Result<OodGate, String> {
    OodGate::from_name(name).ok_or_else(|| "soft or mean".to_owned())
}

fn from_zero(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=1_000.0).contains(&number) { Ok(number) } else { Err("not from 0 to 1000".to_owned()) }
}

/// Writes the charts that can be drawn into `folder`.
fn write_charts(folder: &Path, charts: Vec<charts::Chart>, progress: &Progress) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make folder {}", folder.display()))?;
    for chart in charts {
        let path = folder.join(chart.file_name);
        std::fs::write(&path, chart.svg).with_context(|| format!("cannot write {}", path.display()))?;
        progress.say(&format!("chart {}", path.display()));
    }
    Ok(())
}

fn width<'a>(names: impl Iterator<Item = &'a str>, title: &str) -> usize {
    names.map(|name| name.chars().count()).max().unwrap_or(0).max(title.len())
}

/// The store in `dir` with its scored prompts, of which there are some.
fn open_scored(dir: &Path) -> anyhow::Result<(QualityStore, LabelledProfile)> {
    let store = QualityStore::open(dir)?;
    let labelled = store.load_labelled()?;
    if labelled.profile.is_empty() {
        bail!("{} holds no scored prompt", dir.display());
    }
    Ok((store, labelled))
}

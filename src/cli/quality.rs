//! `quality`: fill and inspect the store that quality predictions rest on.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use crate::profiler::quality::embedder;
use crate::profiler::quality::import::{ImportEvent, ImportSummary, import_trace};
use crate::profiler::quality::params::EmbedderParams;
use crate::profiler::quality::store::{QualityStore, StoreStats};

/// Faulty rows printed one by one; the others are counted.
const FAULTS_SHOWN: u64 = 20;

/// Time between progress lines where there is no terminal.
const PROGRESS_PERIOD: Duration = Duration::from_secs(5);

/// Below this many prompts retrieval is hardly better than each model's mean.
const PROMPTS_ADVISED: i64 = 200;

/// Fill and inspect the quality store.
///
/// The store holds prompts that were answered by your models and scored. The router predicts how well a
/// model will answer a new prompt from the most similar prompts in it. It is one directory; back it up by
/// copying it while nothing writes to it.
#[derive(Debug, Args)]
pub struct QualityArgs {
    #[command(subcommand)]
    command: QualityCommand,
}

#[derive(Debug, Subcommand)]
enum QualityCommand {
    Import(ImportArgs),
    Stats(StatsArgs),
}

/// Add scored prompts from a file
///
/// Each line of the file is one JSON object (here on three lines):
///
///   {"id": "q1", "prompt": "What is 2+2?", "benchmark": "math", "models": {
///     "small": {"score": 0.0},
///     "large": {"score": 1.0, "completion_tokens": 12, "cost_usd": 0.0001}}}
///
/// `id`, `prompt` and a `score` from 0 to 1 are required; `benchmark`, `task`,
/// `source` and `license` are kept, other keys are ignored. Name models as your
/// configuration does; a model missing in a line was not asked.
///
/// A bad line is reported with its number and skipped. When an id comes again
/// the last line wins: another text replaces the prompt and its scores, the same
/// text adds to its scores. An interrupted import keeps what it reported; run it
/// again to go on, known prompts are not embedded twice.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
struct ImportArgs {
    /// Directory of the store; made if there is none
    #[arg(long, value_name = "DIR")]
    store: PathBuf,

    /// File to import, plain or gzip
    #[arg(long, value_name = "F.jsonl[.gz]")]
    trace: PathBuf,

    #[command(flatten)]
    embedder: EmbedderArgs,
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

/// Show what a store holds: prompts by benchmark, scores by model
#[derive(Debug, Args)]
struct StatsArgs {
    /// Directory of the store
    #[arg(long, value_name = "DIR")]
    store: PathBuf,

    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Table,
    Json,
}

/// Runs the command: results go to standard output, progress and faults to standard error.
///
/// # Errors
/// A store or embedder that cannot be used, a trace that cannot be opened, a closed output.
pub fn run(args: &QualityArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        QualityCommand::Import(args) => import(args),
        QualityCommand::Stats(args) => stats(args),
    }
}

fn import(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let n_bytes = std::fs::metadata(&args.trace)
        .with_context(|| format!("cannot read {}", args.trace.display()))?
        .len();
    let mut embedder = embedder::load(&args.embedder.params())?;
    let mut store = QualityStore::open_or_create(&args.store)?;
    let mut progress = Progress::new(n_bytes);
    let result = import_trace(&args.trace, &mut store, &mut embedder, &mut |event| progress.show(&event));
    progress.finish();
    let summary = result?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}: {} new, {} changed, {} unchanged, {} faulty",
        args.trace.display(),
        summary.inserted,
        summary.updated,
        summary.unchanged,
        summary.faulty
    )?;
    if summary.usable() == 0 {
        anyhow::bail!(
            "no line of {} was usable; `quality import --help` shows the format",
            args.trace.display()
        );
    }
    if summary.is_cut {
        anyhow::bail!(
            "{} could not be read to its end: what was read is stored; import it again once it is whole",
            args.trace.display()
        );
    }
    let n_prompts = store.stats()?.prompts;
    writeln!(out, "{}: {n_prompts} prompts", args.store.display())?;
    if n_prompts < PROMPTS_ADVISED {
        writeln!(
            out,
            "fewer than {PROMPTS_ADVISED} prompts predict little more than each model's mean; add more"
        )?;
    }
    Ok(ExitCode::SUCCESS)
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

/// A bar on a terminal, now and then a line elsewhere; faults as they come.
struct Progress {
    bar: ProgressBar,
    n_bytes: u64,
    n_faults: u64,
    last_line: Option<Instant>,
}

impl Progress {
    fn new(n_bytes: u64) -> Self {
        let bar =
            if std::io::stderr().is_terminal() { ProgressBar::new(n_bytes) } else { ProgressBar::hidden() };
        // The template is a constant; a wrong one would only leave the default style.
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}  {eta} left") {
            bar.set_style(style);
        }
        bar.set_message("embedding");
        bar.enable_steady_tick(Duration::from_millis(250));
        Self { bar, n_bytes, n_faults: 0, last_line: None }
    }

    fn show(&mut self, event: &ImportEvent<'_>) {
        match event {
            ImportEvent::Fault { row, reason } => {
                self.n_faults += 1;
                if self.n_faults <= FAULTS_SHOWN {
                    self.say(&format!("line {row}: {reason}"));
                } else if self.n_faults == FAULTS_SHOWN + 1 {
                    self.say("more faulty lines follow, only counted from here");
                }
            }
            ImportEvent::Committed { summary, position } => {
                self.bar.set_position(*position);
                self.bar.set_message(format!("{} prompts stored", summary.usable()));
                let is_due = self.last_line.is_none_or(|last| last.elapsed() >= PROGRESS_PERIOD);
                if self.bar.is_hidden() && is_due {
                    self.last_line = Some(Instant::now());
                    self.say(&progress_line(summary, *position, self.n_bytes));
                }
            }
        }
    }

    /// A line above the bar. With standard error gone there is nobody to tell.
    fn say(&self, line: &str) {
        self.bar.suspend(|| drop(writeln!(std::io::stderr(), "{line}")));
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn progress_line(summary: &ImportSummary, position: u64, n_bytes: u64) -> String {
    let percent = position.saturating_mul(100).checked_div(n_bytes).unwrap_or(100);
    format!("{percent:>3} %  {} prompts stored, {} lines faulty", summary.usable(), summary.faulty)
}

fn stats(args: &StatsArgs) -> anyhow::Result<ExitCode> {
    let stats = QualityStore::open(&args.store)?.stats()?;
    let text = match args.format {
        Format::Json => serde_json::to_string(&stats)? + "\n",
        Format::Table => table(&stats),
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn table(stats: &StoreStats) -> String {
    let embedder = stats.embedder_sha256.as_deref().unwrap_or("none yet");
    let mut lines = vec![
        format!("prompts   {}", stats.prompts),
        format!("scores    {} ({:.1} % of prompts x models)", stats.scores, 100.0 * stats.coverage),
        format!("embedder  model.onnx {embedder:.12}"),
        format!("schema    {}", stats.schema_version),
    ];
    let number =
        |number: Option<f64>, digits: usize| number.map_or("-".to_owned(), |x| format!("{x:.digits$}"));
    if !stats.models.is_empty() {
        let width = width(stats.models.iter().map(|model| model.name.as_str()), "model");
        lines.push(String::new());
        lines.push(format!(
            "{:width$}  {:>8}  {:>8}  {:>6}  {:>8}  {:>10}",
            "model", "prompts", "coverage", "score", "tokens", "USD"
        ));
        lines.extend(stats.models.iter().map(|model| {
            format!(
                "{:width$}  {:>8}  {:>6.1} %  {:>6.3}  {:>8}  {:>10}",
                model.name,
                model.scores,
                100.0 * model.coverage,
                model.mean_score,
                number(model.mean_completion_tokens, 1),
                number(model.mean_cost_usd, 6)
            )
        }));
        let names = stats.tags.iter().map(|tag| tag.benchmark.as_deref().unwrap_or("-"));
        let width = self::width(names, "benchmark");
        lines.push(String::new());
        lines.push(format!("{:width$}  {:>8}  {:>6}", "benchmark", "prompts", "score"));
        lines.extend(stats.tags.iter().map(|tag| {
            let name = tag.benchmark.as_deref().unwrap_or("-");
            format!("{name:width$}  {:>8}  {:>6}", tag.prompts, number(tag.mean_score, 3))
        }));
    }
    lines.join("\n") + "\n"
}

fn width<'a>(names: impl Iterator<Item = &'a str>, title: &str) -> usize {
    names.map(|name| name.chars().count()).max().unwrap_or(0).max(title.len())
}

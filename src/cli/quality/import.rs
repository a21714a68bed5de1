//! `quality import`: a file of scored prompts into the store.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::EmbedderArgs;
use crate::profiler::quality::embedder;
use crate::profiler::quality::evaluation::check::PROMPTS_ADVISED;
use crate::profiler::quality::import::{ImportEvent, ImportSummary, import_trace};
use crate::profiler::quality::store::QualityStore;

/// Faulty rows printed one by one; the others are counted.
const FAULTS_SHOWN: u64 = 20;

/// Time between progress lines where there is no terminal.
const PROGRESS_PERIOD: Duration = Duration::from_secs(5);

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
///
/// A file whose name ends in .csv or .csv.gz has a first line that names columns: `id`,
/// `prompt`, `score:MODEL` and, where there are any, `completion_tokens:MODEL`,
/// `cost_usd:MODEL`, `benchmark`, `task`, `source`, `license`; an empty field is an absent one.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct ImportArgs {
    /// Directory of the store; made if there is none
    #[arg(long, value_name = "DIR")]
    store: PathBuf,

    /// File to import, plain or gzip
    #[arg(long, value_name = "F.jsonl[.gz] | F.csv[.gz]")]
    trace: PathBuf,

    #[command(flatten)]
    embedder: EmbedderArgs,
}

pub(super) fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
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
    if usize::try_from(n_prompts).is_ok_and(|n| n < PROMPTS_ADVISED) {
        writeln!(
            out,
            "fewer than {PROMPTS_ADVISED} prompts predict little more than each model's mean; add more"
        )?;
    }
    Ok(ExitCode::SUCCESS)
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

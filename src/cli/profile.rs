//! `profile`: measure what endpoints can do and how far away they are, for the configuration, and how good their answers
//! are, for the quality store.

mod charts;
mod consent;
mod network;
mod quality;
mod report;
mod throughput;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use httpdate::fmt_http_date;

use crate::cli::progress::Progress;

/// In which order.
const AFTER_HELP: &str = "\
Examples:
  cema-router profile throughput --config config.yaml   # prints the YAML to copy
  cema-router profile network --config config.yaml
  cema-router profile quality --config config.yaml --workload gsm8k,mmlu --limit 60";

/// Measure endpoints: their speed, their distance, how good their answers are
///
/// What is not measured is guessed from model sizes and device classes, and the router predicts with it.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ProfileArgs {
    #[command(subcommand)]
    command: ProfileCommand,
}

#[derive(Debug, Subcommand)]
enum ProfileCommand {
    // Their own documentation is the help text.
    Throughput(throughput::ThroughputArgs),
    Network(network::NetworkArgs),
    Quality(quality::QualityArgs),
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

/// Interrupted by Ctrl-C, as shells tell it.
const INTERRUPTED: u8 = 130;

/// Runs the command: results go to standard output, progress to standard error. Exit code 1 where a destination could
/// not be measured, 130 after Ctrl-C; what was measured is told all the same.
///
/// # Errors
/// A configuration with faults, unknown destinations, no consent, files that cannot be written.
pub fn run(args: &ProfileArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match &args.command {
        ProfileCommand::Throughput(args) => runtime.block_on(throughput::run(args)),
        ProfileCommand::Network(args) => runtime.block_on(network::run(args)),
        ProfileCommand::Quality(args) => runtime.block_on(quality::run(args)),
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Measured,
    /// Something could not be measured.
    Failed,
    Interrupted,
}

impl Outcome {
    fn of(was_interrupted: bool, has_failed: bool) -> Self {
        match (was_interrupted, has_failed) {
            (true, _) => Self::Interrupted,
            (_, true) => Self::Failed,
            _ => Self::Measured,
        }
    }

    fn exit_code(self) -> ExitCode {
        match self {
            Self::Measured => ExitCode::SUCCESS,
            Self::Failed => ExitCode::FAILURE,
            Self::Interrupted => ExitCode::from(INTERRUPTED),
        }
    }
}

/// The date as fragments give it.
fn today() -> String {
    fmt_http_date(SystemTime::now())
}

/// Prints `text` and, with a table, the configuration to copy, unless that goes to a file.
fn print(
    mut text: String,
    yaml: &str,
    (format, out): (Format, Option<&Path>),
    progress: &Progress,
) -> anyhow::Result<()> {
    match out {
        Some(path) if !yaml.is_empty() => {
            write_file(path, yaml)?;
            progress.say(&format!("configuration to copy: {}", path.display()));
        }
        None if format == Format::Table => text = text + "\n" + yaml,
        _ => {}
    }
    std::io::stdout().lock().write_all(text.as_bytes()).context("cannot write the results")
}

fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

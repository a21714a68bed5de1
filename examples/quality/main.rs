//! What the quality estimator is worth on scored prompts: each question predicted from others, beside each model's mean,
//! the paper's Eq. 1 and k-means.
//!
//! ```text
//! cargo run --release --example quality -- --trace rows.jsonl.gz                  # five folds by hash of the question
//! cargo run --release --example quality -- --trace rows.jsonl.gz --profile-rows 400
//! cargo run --release --example quality -- --trace rows.jsonl.gz --leave-out
//! ```
//!
//! Prints one Markdown table. Rows have the form of `quality import`; `question`, where there is one, is the prompt without
//! instructions, so that all forms of a question are on one side of a split.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example that prints its results")]

mod methods;
mod rows;
mod table;

use std::path::PathBuf;

use anyhow::bail;
use cema_router::profiler::quality::EmbedderParams;
use clap::Parser;

use methods::METHODS;
use rows::{Row, Split, read_rows};
use table::print_table;

/// Judge the estimator on scored prompts.
#[derive(Debug, Parser)]
struct Args {
    /// Scored prompts, plain or gzip
    #[arg(long)]
    trace: PathBuf,

    /// Folds by hash of the question
    #[arg(long, default_value_t = 5)]
    folds: usize,

    /// Predict from so many prompts only, chosen at random five times, instead of from the other folds
    #[arg(long, conflicts_with = "leave_out")]
    profile_rows: Option<usize>,

    /// Predict each benchmark from the others
    #[arg(long)]
    leave_out: bool,

    /// Folder of the embedding model
    #[arg(long)]
    model: Option<PathBuf>,

    /// Resamplings behind the intervals of AIQ
    #[arg(long, default_value_t = 400)]
    resamplings: usize,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let embedder = EmbedderParams { model: args.model.clone(), threads, ..EmbedderParams::of_environment() };
    let (rows, models) = read_rows(&args.trace, &embedder)?;
    let splits = splits(&args, &rows);
    if splits.iter().any(|split| split.known.len() < 20 || split.judged.is_empty()) {
        bail!("{} has too few rows for this split", args.trace.display());
    }
    eprintln!("{} rows, {} models, {} splits", rows.len(), models.len(), splits.len());
    let judged = METHODS.map(|method| {
        eprintln!("{}", method.name());
        splits.iter().flat_map(|split| method.predict(split, &rows, &models)).collect::<Vec<_>>()
    });
    print_table(&judged, &models, args.resamplings);
    Ok(())
}

fn splits(args: &Args, rows: &[Row]) -> Vec<Split> {
    if args.leave_out {
        return rows::by_benchmark(rows);
    }
    match args.profile_rows {
        Some(n) => rows::few(rows, n),
        None => rows::folds(rows, args.folds),
    }
}

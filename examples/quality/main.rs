//! What the quality estimator is worth on scored prompts: each question predicted from others, beside each model's mean,
//! the paper's Eq. 1 and k-means.
//!
//! ```text
//! cargo run --release --example quality -- --trace rows.jsonl.gz
//! ```
//!
//! Prints three Markdown tables: each fold (by hash of the question) predicted from the others, everything from 400 rows
//! (five random choices), and each benchmark from the others. Rows have the form of `quality import`; `question`, where there
//! is one, is the prompt without instructions, so that all forms of a question are on one side of a split.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example that prints its results")]

mod methods;
mod rows;
mod table;

use std::path::PathBuf;

use anyhow::bail;
use cema_router::profiler::quality::EmbedderParams;
use clap::Parser;

use methods::METHODS;
use rows::read_rows;
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

    /// Rows of the small profiles
    #[arg(long, default_value_t = 400)]
    few: usize,

    /// Folder of the embedding model
    #[arg(long)]
    model: Option<PathBuf>,

    /// Resamplings behind the intervals of AIQ
    #[arg(long, default_value_t = 200)]
    resamplings: usize,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let embedder = EmbedderParams { model: args.model.clone(), threads, ..EmbedderParams::of_environment() };
    let (rows, models) = read_rows(&args.trace, &embedder)?;
    let tables = [
        (format!("{} folds by hash of the question", args.folds), rows::folds(&rows, args.folds)),
        (format!("From {} rows, five random choices", args.few), rows::few(&rows, args.few)),
        ("Each benchmark from the others".to_owned(), rows::by_benchmark(&rows)),
    ];
    for (title, splits) in tables {
        if splits.iter().any(|split| split.known.len() < 20 || split.judged.is_empty()) {
            bail!("{} has too few rows for this split", args.trace.display());
        }
        let judged = METHODS.map(|method| {
            eprintln!("{title}: {}", method.name());
            splits.iter().flat_map(|split| method.predict(split, &rows, &models)).collect::<Vec<_>>()
        });
        println!("\n### {title}\n");
        print_table(&judged, &models, args.resamplings);
    }
    Ok(())
}

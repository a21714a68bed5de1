//! `quality stats`: what a store holds.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;

use super::{Format, StoreArgs, width};
use crate::profiler::quality::store::{QualityStore, StoreStats};

/// Show what a store holds: prompts by benchmark, scores by model
#[derive(Debug, Args)]
pub(super) struct StatsArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

pub(super) fn run(args: &StatsArgs) -> anyhow::Result<ExitCode> {
    let stats = QualityStore::open(&args.store.store)?.stats()?;
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

//! `quality check`: what a store is worth, by predicting each of its prompts from the others.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::charts::{calibration_chart, learning_chart};
use super::{EstimatorArgs, Format, StoreArgs, open_scored, width, write_charts};
use crate::cli::progress::Progress;
use crate::profiler::quality::evaluation::check::{Check, check, fleet_of};
use crate::profiler::quality::evaluation::learning::learning_curve;
use crate::routing::rng_for;

/// Seed of the learning curve's choice of prompts.
const SEED: u64 = 1;

/// Judge a store: each prompt predicted from the others
///
/// Shows the squared error of predictions beside that of each model's mean and of the paper's
/// equation, by benchmark too, parameters that would be better if there are any, and warns of
/// what makes a store useless. Needs no embedder. Prompts of one text do not help each other.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Most prompts to judge, evenly spread over the store
    #[arg(long, value_name = "N", default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(1..))]
    rows: u32,

    #[command(flatten)]
    estimator: EstimatorArgs,

    /// Folder for charts (SVG): calibration and learning curve
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,

    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

pub(super) fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let (_, labelled) = open_scored(&args.store.store)?;
    let params = args.estimator.params(&args.store.store);
    let progress = Progress::new();
    let n = labelled.profile.len().min(args.rows as usize);
    let checked = {
        // In two spaces: with the format of messages and without.
        let stage = progress.stage("comparing prompts", 2 * n);
        check(&labelled, &params, args.rows as usize, &mut || stage.advance())
    };
    if let Some(folder) = &args.plot {
        let fleet = fleet_of(labelled.profile.models());
        let curve = learning_curve(&labelled.profile, &fleet, &params, &mut rng_for(SEED, 0));
        let charts = [calibration_chart(&checked.rows), learning_chart(&curve)];
        write_charts(folder, charts.into_iter().flatten().collect(), &progress)?;
    }
    let text = match args.format {
        Format::Json => serde_json::to_string(&checked.check)? + "\n",
        Format::Table => table(&checked.check),
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    for warning in &checked.check.warnings {
        progress.say(&format!("warning: {warning}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn table(check: &Check) -> String {
    let metrics = &check.metrics;
    let mut lines = vec![format!("{} prompts, {} judged", check.prompts, metrics.rows), String::new()];
    let column = width(check.methods.iter().map(|method| method.method.as_str()), "predicted by");
    lines.push(format!("{:column$}  {:>6}  {}", "predicted by", "MSE", "against each model's mean (95 %)"));
    lines.extend(check.methods.iter().map(|method| {
        let [lo, hi] = method.against_mean;
        format!("{:column$}  {:>6.4}  {lo:+.4} to {hi:+.4}", method.method, method.mse)
    }));
    lines.push(String::new());
    lines.push(format!("score of the model predicted best  {:.3}", metrics.chosen_score));
    if let Some(model) = &metrics.best_single_model {
        lines.push(format!("score of {model} for everything  {:.3}", metrics.best_single));
    }
    lines.push(format!("score of the best for each prompt  {:.3}", metrics.oracle));
    lines.push(format!("predicted minus real score of the predicted best  {:+.3}", metrics.bias_chosen));
    lines.push(format!("calibration error  {:.3}", metrics.calibration_error));
    lines.push(format!("prompts unlike the others  {:.1} %", 100.0 * metrics.low_evidence));
    let name = |tag: &Option<String>| tag.clone().unwrap_or_else(|| "-".to_owned());
    let names: Vec<String> = check.tags.iter().map(|tag| name(&tag.benchmark)).collect();
    let column = width(names.iter().map(String::as_str), "benchmark");
    lines.push(String::new());
    lines.push(format!(
        "{:column$}  {:>7}  {:>6}  {:>11}  {:>6}  {:>6}",
        "benchmark", "prompts", "MSE", "MSE of mean", "chosen", "best"
    ));
    lines.extend(check.tags.iter().zip(&names).map(|(tag, name)| {
        format!(
            "{name:column$}  {:>7}  {:>6.4}  {:>11.4}  {:>6.3}  {:>6.3}",
            tag.rows, tag.mse, tag.mse_global_mean, tag.chosen_score, tag.oracle
        )
    }));
    lines.push(String::new());
    lines.push(match check.suggestion {
        Some(better) => format!(
            "better: neighbours: {}, sharpness: {}  (MSE {:.4}, {:+.4} to {:+.4})",
            better.neighbours, better.sharpness, better.mse, better.difference[0], better.difference[1]
        ),
        None => "no other neighbours or sharpness are surely better".to_owned(),
    });
    lines.join("\n") + "\n"
}

//! `quality query`: what a store says of one prompt, and why.

use std::io::{Read as _, Write as _};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;

use super::{EmbedderArgs, EstimatorArgs, Format, StoreArgs, open_scored, width};
use crate::profiler::quality::embedder::{self, embed_guarded};
use crate::profiler::quality::estimator::{Estimate, Estimator, Scratch};
use crate::profiler::quality::evaluation::Means;
use crate::profiler::quality::evaluation::check::fleet_of;
use crate::profiler::quality::format::format_numbers;

/// Characters shown of a neighbour's text.
const TEXT_SHOWN: usize = 60;

/// Show what a store predicts for a prompt, and from which prompts
///
/// Prints q, the predicted quality of each model, with the deviation of single scores around
/// it, the model's mean and the predicted length; then the nearest profiled prompts with their
/// similarity, their weight and what each model scored on them.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct QueryArgs {
    /// The last user message of a request; `-` reads it from standard input
    text: String,

    #[command(flatten)]
    store: StoreArgs,

    /// Neighbours to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    show: usize,

    #[command(flatten)]
    estimator: EstimatorArgs,

    #[command(flatten)]
    embedder: EmbedderArgs,

    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// What the store says.
#[derive(Serialize)]
struct Answer {
    /// Σ w over the neighbours.
    evidence: f64,
    /// Share of the neighbours in q̂.
    trust: f64,
    has_low_evidence: bool,
    neighbours_used: usize,
    models: Vec<ModelAnswer>,
    neighbours: Vec<NeighbourAnswer>,
}

#[derive(Serialize)]
struct ModelAnswer {
    model: String,
    q: f64,
    deviation: f64,
    mean: Option<f64>,
    completion_tokens: f64,
}

#[derive(Serialize)]
struct NeighbourAnswer {
    id: String,
    benchmark: Option<String>,
    similarity: f64,
    weight: f64,
    text: String,
    /// In the order of the models.
    scores: Vec<Option<f32>>,
}

pub(super) fn run(args: &QueryArgs) -> anyhow::Result<ExitCode> {
    let text = text(&args.text)?;
    let (store, labelled) = open_scored(&args.store.store)?;
    let mut loaded = embedder::load(&args.embedder.params())?;
    store.check_embedder(&loaded.model_sha256)?;
    let worker = loaded.workers.first_mut().context("the embedder has no worker")?;
    let embedding = embed_guarded(worker.as_mut(), &text)?;
    let models = labelled.profile.models().to_vec();
    let means = Means::new(&labelled);
    let params = args.estimator.params(&args.store.store);
    let estimator = Estimator::new(labelled.profile.clone(), &fleet_of(&models), &params);
    // One prompt: a scan is quicker than an index; only the gate is needed.
    estimator.fit_gate();
    let mut scratch = Scratch::default();
    let estimate = estimator.predict(&embedding, &format_numbers(&text), &mut scratch);
    let explained = estimator.explain(&scratch);
    let mut neighbours = Vec::new();
    for (neighbour, weight) in explained.iter().take(args.show) {
        let row = neighbour.row as usize;
        let label = labelled.labels[row].clone();
        let text = store.prompt(&label.id)?.map(|prompt| beginning(&prompt.text)).unwrap_or_default();
        let scores = labelled.profile.cells(row).iter().map(|cell| cell.map(|cell| cell.score)).collect();
        let similarity = neighbour.similarity();
        let (id, benchmark) = (label.id, label.benchmark);
        neighbours.push(NeighbourAnswer { id, benchmark, similarity, weight: *weight, text, scores });
    }
    let answer = Answer {
        evidence: estimate.evidence,
        trust: estimate.trust,
        has_low_evidence: estimate.has_low_evidence(),
        neighbours_used: explained.len(),
        models: model_answers(&models, &estimate, &means),
        neighbours,
    };
    let text = match args.format {
        Format::Json => serde_json::to_string(&answer)? + "\n",
        Format::Table => table(&answer),
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn text(given: &str) -> anyhow::Result<String> {
    /// Longest text read.
    const TEXT_BYTES_MAX: u64 = 16 << 20;
    let mut text = given.to_owned();
    if given == "-" {
        text.clear();
        std::io::stdin().lock().take(TEXT_BYTES_MAX).read_to_string(&mut text).context("standard input")?;
    }
    if text.trim().is_empty() {
        bail!("the text is empty");
    }
    Ok(text)
}

fn model_answers(models: &[String], estimate: &Estimate, means: &Means) -> Vec<ModelAnswer> {
    let of_model = |(i, model): (usize, &String)| ModelAnswer {
        model: model.clone(),
        q: estimate.prediction.quality[i].get(),
        deviation: estimate.variance[i].sqrt(),
        mean: means.global[i],
        completion_tokens: estimate.prediction.completion_tokens[i].get(),
    };
    let mut answers: Vec<ModelAnswer> = models.iter().enumerate().map(of_model).collect();
    answers.sort_by(|a, b| b.q.total_cmp(&a.q));
    answers
}

fn beginning(text: &str) -> String {
    let mut words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = words.char_indices().nth(TEXT_SHOWN) {
        words.truncate(end);
        words.push('…');
    }
    words
}

fn table(answer: &Answer) -> String {
    let mut lines = vec![format!(
        "evidence {:.2} from {} neighbours{}{}",
        answer.evidence,
        answer.neighbours_used,
        if answer.trust < 1.0 {
            format!(", trusted by {:.0} %", 100.0 * answer.trust)
        } else {
            String::new()
        },
        if answer.has_low_evidence { "; hardly anything like it was profiled" } else { "" }
    )];
    let column = width(answer.models.iter().map(|model| model.model.as_str()), "model");
    lines.push(String::new());
    lines
        .push(format!("{:column$}  {:>5}  {:>9}  {:>5}  {:>7}", "model", "q", "deviation", "mean", "tokens"));
    lines.extend(answer.models.iter().map(|model| {
        let mean = model.mean.map_or("-".to_owned(), |mean| format!("{mean:.3}"));
        format!(
            "{:column$}  {:>5.3}  {:>9.3}  {mean:>5}  {:>7.1}",
            model.model, model.q, model.deviation, model.completion_tokens
        )
    }));
    lines.push(String::new());
    lines.push(format!("{:>10}  {:>6}  prompt", "similarity", "weight"));
    lines.extend(answer.neighbours.iter().map(|neighbour| {
        let benchmark = neighbour.benchmark.as_deref().unwrap_or("-");
        format!(
            "{:>10.3}  {:>6.3}  {} ({benchmark}): {}",
            neighbour.similarity, neighbour.weight, neighbour.id, neighbour.text
        )
    }));
    lines.join("\n") + "\n"
}

//! The thread that embeds prompts and stores answers, one transaction each: an answer costs more than a turn of the disk.

use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use serde_json::json;
use tokio::sync::mpsc;

use crate::calibrate::quality::{Graded, Question};
use crate::domain::Destination;
use crate::profiler::quality::embedder::{LoadedEmbedder, embed_guarded};
use crate::profiler::quality::store::{ProfiledAnswer, QualityStore, StoredPrompt, StoredScore};
use crate::units::Tokens;

/// One answer to be stored.
pub(super) struct Record {
    prompt: StoredPrompt,
    answer: ProfiledAnswer,
}

/// One that is on disk.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Written {
    pub(super) model: String,
    pub(super) benchmark: Option<String>,
    pub(super) score: f64,
    pub(super) completion_tokens: Option<f64>,
    pub(super) cost_usd: f64,
    pub(super) latency_s: f64,
    pub(super) is_cut: bool,
}

impl Record {
    pub(super) fn new(destination: &Destination, question: &Question, graded: Graded) -> Self {
        let Graded { answered, score } = graded;
        let tokens = |n: Option<u64>| n.map(|n| n as f64);
        let (prompt_tokens, completion_tokens) =
            (tokens(answered.prompt_tokens), tokens(answered.completion_tokens));
        let cost_usd = prompt_tokens
            .zip(completion_tokens)
            .map(|(prompt, completion)| destination.price.charge(Tokens(prompt), Tokens(completion)).0);
        let score = StoredScore { model: destination.model.to_string(), score, completion_tokens, cost_usd };
        let prompt = StoredPrompt {
            id: question.id.clone(),
            text: question.prompt.clone(),
            benchmark: question.benchmark.clone(),
            task: question.task.clone(),
            source: question.source.clone(),
            license: question.license.clone(),
            embedding: None,
            scores: vec![score],
        };
        let answer = ProfiledAnswer {
            destination: destination.id.to_string(),
            scorer: question.grader.name().to_owned(),
            prompt_tokens,
            ttft_s: answered.ttft.get(),
            latency_s: answered.latency.get(),
            is_cut: answered.is_cut,
            answered_at: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0.0, |since| since.as_secs_f64()),
        };
        Self { prompt, answer }
    }
}

/// Stores what comes until nobody sends any more. With `prints_rows` each answer is a line on standard output, once it
/// is on disk.
pub(super) fn write(
    mut store: QualityStore,
    mut embedder: LoadedEmbedder,
    mut inbox: mpsc::Receiver<Record>,
    (written, prints_rows): (&mpsc::UnboundedSender<Written>, bool),
) -> anyhow::Result<()> {
    let worker = embedder.workers.first_mut().context("there is no embedder")?;
    while let Some(Record { mut prompt, answer }) = inbox.blocking_recv() {
        if !store.holds(&prompt.id, &prompt.text)? {
            prompt.embedding = Some(embed_guarded(worker.as_mut(), &prompt.text)?);
        }
        store.write_profiled(&embedder.model_sha256, &prompt, &answer)?;
        for score in prompt.scores {
            if prints_rows {
                let row = json!({
                    "id": prompt.id,
                    "model": score.model,
                    "destination": answer.destination,
                    "score": score.score,
                    "scorer": answer.scorer,
                    "prompt_tokens": answer.prompt_tokens,
                    "completion_tokens": score.completion_tokens,
                    "cost_usd": score.cost_usd,
                    "ttft_s": answer.ttft_s,
                    "latency_s": answer.latency_s,
                    "is_cut": answer.is_cut,
                });
                let mut out = std::io::stdout().lock();
                writeln!(out, "{row}").and_then(|()| out.flush()).context("cannot write the results")?;
            }
            // Nobody counts any more after an error elsewhere.
            let _ = written.send(Written {
                model: score.model,
                benchmark: prompt.benchmark.clone(),
                score: score.score,
                completion_tokens: score.completion_tokens,
                cost_usd: score.cost_usd.unwrap_or_default(),
                latency_s: answer.latency_s,
                is_cut: answer.is_cut,
            });
        }
    }
    Ok(())
}

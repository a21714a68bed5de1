//! Scored prompts with their embeddings, and ways to split them.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, bail};
use cema_router::profiler::quality::EmbedderParams;
use cema_router::profiler::quality::embedder::{self, Embedding, embed_all};
use cema_router::profiler::quality::evaluation::{Truth, truth_of};
use cema_router::profiler::quality::format::{FORMAT_NUMBERS, format_numbers};
use cema_router::profiler::quality::import::{Line, TraceLines, parse_row};
use cema_router::profiler::quality::store::StoredPrompt;
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;
use sha2::{Digest as _, Sha256};

/// Twin sentences of Winogrande differ in a word near their end: they are one question.
const WINOGRANDE_KEY_CHARS: usize = 28;

/// Random choices of a small profile.
const FEW_REPEATS: u64 = 5;

/// One scored prompt.
pub(crate) struct Row {
    pub(crate) prompt: StoredPrompt,
    pub(crate) embedding: Embedding,
    pub(crate) format: [f64; FORMAT_NUMBERS],
    pub(crate) truth: Vec<Option<Truth>>,
    /// Hash of the question.
    question: [u8; 32],
}

/// Rows that predict and rows that are predicted, by index.
pub(crate) struct Split {
    pub(crate) known: Vec<usize>,
    pub(crate) judged: Vec<usize>,
}

/// Reads and embeds; also the models, by name.
pub(crate) fn read_rows(path: &Path, params: &EmbedderParams) -> anyhow::Result<(Vec<Row>, Vec<String>)> {
    let mut lines = TraceLines::over(File::open(path).with_context(|| path.display().to_string())?)?;
    let mut prompts = Vec::new();
    while let Some(line) = lines.next_line()? {
        let Line::Bytes(line) = line else { bail!("a line is too long") };
        if line.trim_ascii().is_empty() {
            continue;
        }
        let prompt = parse_row(&line).map_err(anyhow::Error::msg)?;
        let value: serde_json::Value = serde_json::from_slice(&line)?;
        let question = value["question"].as_str().unwrap_or(&prompt.text).to_owned();
        prompts.push((prompt, question));
    }
    let models: BTreeSet<String> = prompts
        .iter()
        .flat_map(|(prompt, _)| prompt.scores.iter().map(|score| score.model.clone()))
        .collect();
    let models: Vec<String> = models.into_iter().collect();
    let mut loaded = embedder::load(params)?;
    eprintln!("embedding {} prompts", prompts.len());
    let texts: Vec<&str> = prompts.iter().map(|(prompt, _)| prompt.text.as_str()).collect();
    let embeddings = embed_all(&texts, &mut loaded.workers, &|| ())?;
    let rows = prompts.into_iter().zip(embeddings).map(|((prompt, question), embedding)| Row {
        format: format_numbers(&prompt.text),
        truth: truth_of(&prompt, &models),
        question: key(&question, prompt.benchmark.as_deref()),
        embedding,
        prompt,
    });
    Ok((rows.collect(), models))
}

fn key(question: &str, benchmark: Option<&str>) -> [u8; 32] {
    let mut text: String =
        question.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    if benchmark == Some("winogrande") {
        text = text.chars().take(WINOGRANDE_KEY_CHARS).collect();
    }
    Sha256::digest(text.as_bytes()).into()
}

/// Every fold predicted from the others.
pub(crate) fn folds(rows: &[Row], n: usize) -> Vec<Split> {
    let fold = |row: &Row| {
        let [a, b, c, d, e, f, g, h, ..] = row.question;
        u64::from_be_bytes([a, b, c, d, e, f, g, h]) % n as u64
    };
    (0..n as u64).map(|i| split(rows, |row| fold(row) == i)).collect()
}

/// Every benchmark predicted from the others.
pub(crate) fn by_benchmark(rows: &[Row]) -> Vec<Split> {
    let names: BTreeSet<_> = rows.iter().map(|row| &row.prompt.benchmark).collect();
    names.into_iter().map(|name| split(rows, |row| row.prompt.benchmark == *name)).collect()
}

/// Everything predicted from `n` rows; forms of a known question are not judged.
pub(crate) fn few(rows: &[Row], n: usize) -> Vec<Split> {
    let choose = |seed| {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        let known = order[..n.min(order.len())].to_vec();
        let asked: BTreeSet<_> = known.iter().map(|row| rows[*row].question).collect();
        let judged = (0..rows.len()).filter(|row| !asked.contains(&rows[*row].question)).collect();
        Split { known, judged }
    };
    (0..FEW_REPEATS).map(choose).collect()
}

fn split(rows: &[Row], is_judged: impl Fn(&Row) -> bool) -> Split {
    let (judged, known) = (0..rows.len()).partition(|row| is_judged(&rows[*row]));
    Split { known, judged }
}

//! Rows of a trace as the simulator needs them: prompt, tokens, scores, and which side of a split they are on.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::config::ShippedTrace;
use crate::profiler::quality::import::{LINE_BYTES_MAX, Line, TraceLines, parse_row};
use crate::profiler::quality::store::StoredPrompt;
use crate::simulate::lengths::LengthModel;
use crate::units::Tokens;

/// Bytes per token of a prompt whose tokens were not counted.
const BYTES_PER_TOKEN: f64 = 4.0;

/// Winogrande comes in twin sentences that differ late; twins stay on one side of a split.
const WINOGRANDE_KEY_CHARS: usize = 28;

/// One of this many shares of a split is the trace, the rest the profile.
const SPLIT_SHARES: u8 = 3;

/// Rows and where they are from.
pub(super) struct Trace {
    /// File name, or the name of shipped rows.
    pub(super) source: String,
    pub(super) rows: Vec<TraceRow>,
}

/// One scored prompt.
pub(super) struct TraceRow {
    pub(super) prompt: StoredPrompt,
    pub(super) prompt_tokens: Tokens,
    /// Whether lengths of its answers are synthetic.
    pub(super) has_synthetic_lengths: bool,
    /// SHA-256 of the normalised question; versions of one question share it.
    question: [u8; 32],
}

/// What a row has beside what an import reads.
#[derive(Deserialize)]
struct Extra {
    prompt_tokens: Option<f64>,
    question: Option<String>,
}

/// Reads the trace at `path`, plain or gzip.
pub(super) fn read(path: &Path) -> anyhow::Result<Trace> {
    let file = File::open(path).with_context(|| format!("cannot open trace {}", path.display()))?;
    let source = path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into());
    let rows = read_rows(file).with_context(|| format!("trace {}", path.display()))?;
    Ok(Trace { source, rows })
}

/// The rows that come with the program.
pub(super) fn shipped(trace: ShippedTrace) -> anyhow::Result<Trace> {
    let (bytes, source): (&'static [u8], _) = match trace {
        ShippedTrace::Routerbench => {
            (include_bytes!("../../../data/routerbench-0shot.jsonl.gz"), "shipped routerbench-0shot")
        }
        ShippedTrace::Open9 => (include_bytes!("../../../data/open9.jsonl.gz"), "shipped open9"),
    };
    Ok(Trace { source: source.to_owned(), rows: read_rows(bytes)? })
}

fn read_rows(trace: impl Read + 'static) -> anyhow::Result<Vec<TraceRow>> {
    let mut lines = TraceLines::over(trace)?;
    let mut rows = Vec::new();
    let mut ids = HashSet::new();
    let mut number = 0_u64;
    while let Some(line) = lines.next_line().with_context(|| format!("after line {number}"))? {
        number += 1;
        let bytes = match line {
            Line::TooLong => bail!("line {number} is longer than {LINE_BYTES_MAX} bytes"),
            Line::Bytes(bytes) if bytes.trim_ascii().is_empty() => continue,
            Line::Bytes(bytes) => bytes,
        };
        let row = parse(&bytes).map_err(|reason| anyhow::anyhow!("line {number}: {reason}"))?;
        if !ids.insert(row.prompt.id.clone()) {
            bail!("line {number}: id `{}` was given before; ids must be unique", row.prompt.id);
        }
        rows.push(row);
    }
    if rows.is_empty() {
        bail!("it has no rows; `quality import --help` shows the format");
    }
    Ok(rows)
}

fn parse(line: &[u8]) -> Result<TraceRow, String> {
    let prompt = parse_row(line)?;
    let extra: Extra = serde_json::from_slice(line).map_err(|e| e.to_string())?;
    let counted = extra.prompt_tokens.unwrap_or(prompt.text.len() as f64 / BYTES_PER_TOKEN);
    if !(counted.is_finite() && counted >= 0.0) {
        return Err(format!("prompt_tokens {counted} is negative or not finite"));
    }
    let question =
        question_key(extra.question.as_deref().unwrap_or(&prompt.text), prompt.benchmark.as_deref());
    Ok(TraceRow { prompt_tokens: Tokens(counted), has_synthetic_lengths: false, question, prompt })
}

fn question_key(question: &str, benchmark: Option<&str>) -> [u8; 32] {
    let mut text: String =
        question.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    if benchmark == Some("winogrande") {
        text = text.chars().take(WINOGRANDE_KEY_CHARS).collect();
    }
    Sha256::digest(text.as_bytes()).into()
}

impl Trace {
    /// Profile and trace out of one file: two thirds and one third, by hash of the question.
    pub(super) fn split(self) -> (Self, Self) {
        let (trace, profile) =
            self.rows.into_iter().partition(|row| row.question[0].is_multiple_of(SPLIT_SHARES));
        let part = |name: &str, rows| Self { source: format!("{} ({name})", self.source), rows };
        (
            part("two thirds by hash of the question", profile),
            part("one third by hash of the question", trace),
        )
    }

    /// Drops rows whose question is asked in `other` too; how many.
    pub(super) fn remove_questions_of(&mut self, other: &Self) -> usize {
        let asked: HashSet<&[u8; 32]> = other.rows.iter().map(|row| &row.question).collect();
        let before = self.rows.len();
        self.rows.retain(|row| !asked.contains(&row.question));
        before - self.rows.len()
    }

    /// Gives every answer of `models` whose length was not recorded a synthetic one; whether there was any.
    pub(super) fn fill_lengths(&mut self, lengths: &LengthModel, models: &[Arc<str>]) -> bool {
        let mut is_synthetic = false;
        for row in &mut self.rows {
            let prompt = &mut row.prompt;
            let unknown = prompt.scores.iter_mut().filter(|score| {
                score.completion_tokens.is_none() && models.iter().any(|model| **model == *score.model)
            });
            for score in unknown {
                let length = lengths.length(&prompt.id, prompt.benchmark.as_deref(), &score.model);
                score.completion_tokens = Some(length.get());
                row.has_synthetic_lengths = true;
            }
            is_synthetic |= row.has_synthetic_lengths;
        }
        is_synthetic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(id: &str, question: &str) -> String {
        format!(
            r#"{{"id":"{id}","prompt":"Answer: {question}","question":"{question}","models":{{"m":{{"score":1}}}}}}"#
        )
    }

    fn rows(lines: &[String]) -> anyhow::Result<Vec<TraceRow>> {
        read_rows(std::io::Cursor::new(lines.join("\n").into_bytes()))
    }

    #[test]
    fn shipped_rows_can_be_read_and_split_without_a_question_on_both_sides() {
        for shipped_trace in ShippedTrace::ALL {
            let trace = shipped(*shipped_trace).unwrap();
            let n = trace.rows.len();
            let (mut profile, trace) = trace.split();
            assert_eq!(profile.rows.len() + trace.rows.len(), n);
            assert!(trace.rows.len() >= 70 && profile.rows.len() > trace.rows.len(), "{shipped_trace}");
            assert_eq!(profile.remove_questions_of(&trace), 0);
        }
    }

    #[test]
    fn one_question_in_two_forms_is_one_question() {
        let mut profile = Trace {
            source: String::new(),
            rows: rows(&[line("a", "What is 1+1?"), line("b", "other")]).unwrap(),
        };
        let trace = Trace { source: String::new(), rows: rows(&[line("c", "what is 1 + 1")]).unwrap() };
        assert_eq!(profile.remove_questions_of(&trace), 1);
        assert_eq!(profile.rows[0].prompt.id, "b");
    }

    #[test]
    fn faults_name_their_line() {
        let error = |lines: &[String]| format!("{:#}", rows(lines).err().unwrap());
        assert!(error(&[line("a", "x"), "{".into()]).starts_with("line 2: not JSON"));
        assert!(error(&[line("a", "x"), String::new(), line("a", "y")]).starts_with("line 3: id `a`"));
        assert!(error(&[String::new()]).contains("no rows"));
    }

    #[test]
    fn only_unrecorded_lengths_are_made_up() {
        let text = r#"{"id":"a","prompt":"p","models":{"m":{"score":1,"completion_tokens":7},"n":{"score":1},"x":{"score":0}}}"#;
        let mut trace = Trace { source: String::new(), rows: rows(&[text.to_owned()]).unwrap() };
        let model = LengthModel::default();
        assert!(!trace.fill_lengths(&model, &["m".into()]));
        assert!(trace.fill_lengths(&model, &["m".into(), "n".into()]));
        let lengths: Vec<_> = trace.rows[0].prompt.scores.iter().map(|s| s.completion_tokens).collect();
        assert!(lengths[0] == Some(7.0) && lengths[1].is_some() && lengths[2].is_none(), "{lengths:?}");
    }
}

//! One row of a trace: a prompt and what each model scored on it.
//!
//! ```json
//! {"id":"gsm8k:472","prompt":"…","benchmark":"gsm8k","task":"gsm8k","source":"…","license":"MIT",
//!  "models":{"large":{"score":1.0,"completion_tokens":154,"cost_usd":0.00526}}}
//! ```
//!
//! `id`, `prompt` and one score are required; other keys are ignored. A model without a score is a model
//! that was not asked.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::profiler::quality::store::{COMPLETION_TOKENS_MAX, StoredPrompt, StoredScore};

/// Dearest request that is believed.
const COST_USD_MAX: f64 = 1e6;

/// Longest id, model name or tag, in bytes.
const NAME_BYTES_MAX: usize = 512;

/// A row as it stands in a file, unchecked.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RawRow {
    pub(super) id: String,
    pub(super) prompt: String,
    pub(super) benchmark: Option<String>,
    pub(super) task: Option<String>,
    pub(super) source: Option<String>,
    pub(super) license: Option<String>,
    pub(super) models: BTreeMap<String, RawScore>,
}

/// What it says of one model.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RawScore {
    pub(super) score: Option<f64>,
    pub(super) completion_tokens: Option<f64>,
    pub(super) cost_usd: Option<f64>,
}

/// Reads and checks one line; the prompt comes without an embedding.
///
/// # Errors
/// What is wrong with the row, in words for the person who made the file.
pub fn parse_row(line: &[u8]) -> Result<StoredPrompt, String> {
    let line = std::str::from_utf8(line).map_err(|e| format!("not UTF-8 at byte {}", e.valid_up_to()))?;
    check_row(serde_json::from_str(line).map_err(|e| json_reason(&e))?)
}

/// The prompt of a row that is as it must be, without an embedding.
///
/// # Errors
/// As [`parse_row`].
pub(super) fn check_row(row: RawRow) -> Result<StoredPrompt, String> {
    check_name("id", &row.id)?;
    for tag in [&row.benchmark, &row.task, &row.source, &row.license].into_iter().flatten() {
        if tag.len() > NAME_BYTES_MAX {
            return Err(format!("a tag is longer than {NAME_BYTES_MAX} bytes"));
        }
    }
    if row.prompt.trim().is_empty() {
        return Err("prompt is empty".to_owned());
    }
    let scores = row
        .models
        .into_iter()
        .filter_map(|(model, raw)| check_score(model, &raw).transpose())
        .collect::<Result<Vec<_>, String>>()?;
    if scores.is_empty() {
        return Err("no model has a score".to_owned());
    }
    Ok(StoredPrompt {
        id: row.id,
        text: row.prompt,
        benchmark: row.benchmark,
        task: row.task,
        source: row.source,
        license: row.license,
        embedding: None,
        scores,
    })
}

fn json_reason(error: &serde_json::Error) -> String {
    // serde_json ends its messages with "at line 1 column N"; every row is line 1 to it.
    let text = error.to_string();
    let reason = text.split(" at line ").next().unwrap_or(&text);
    match error.classify() {
        serde_json::error::Category::Data => format!("{reason} (byte {})", error.column()),
        _ => format!("not JSON: {reason} at byte {} (NaN and Infinity are not JSON)", error.column()),
    }
}

fn check_name(what: &str, name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(format!("{what} has {} bytes, allowed are 1 to {NAME_BYTES_MAX}", name.len()));
    }
    if name.chars().any(char::is_control) {
        return Err(format!("{what} holds control characters: {name:?}"));
    }
    Ok(())
}

/// `None` for a model without a score.
fn check_score(model: String, raw: &RawScore) -> Result<Option<StoredScore>, String> {
    check_name("a model name", &model)?;
    let Some(score) = raw.score else { return Ok(None) };
    if !(0.0..=1.0).contains(&score) {
        return Err(format!("score {score} of model `{model}` is not in [0, 1]"));
    }
    let bounded = [
        ("completion_tokens", raw.completion_tokens, COMPLETION_TOKENS_MAX),
        ("cost_usd", raw.cost_usd, COST_USD_MAX),
    ];
    for (what, number, max) in bounded {
        if let Some(number) = number.filter(|number| !(0.0..=max).contains(number)) {
            return Err(format!("{what} {number:e} of model `{model}` is not in [0, {max}]"));
        }
    }
    let (completion_tokens, cost_usd) = (raw.completion_tokens, raw.cost_usd);
    Ok(Some(StoredScore { model, score, completion_tokens, cost_usd }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reason(line: &str) -> String {
        parse_row(line.as_bytes()).unwrap_err()
    }

    #[test]
    fn a_full_row_is_read() {
        let line = r#"{"id":"a","prompt":"p","benchmark":"b","license":"MIT","prompt_tokens":3,
            "models":{"m":{"score":1,"completion_tokens":7,"cost_usd":0.5,"estimated":true},"n":{"score":null}}}"#;
        let prompt = parse_row(line.as_bytes()).unwrap();
        assert_eq!((prompt.id.as_str(), prompt.text.as_str(), prompt.task), ("a", "p", None));
        let score =
            StoredScore { model: "m".into(), score: 1.0, completion_tokens: Some(7.0), cost_usd: Some(0.5) };
        assert_eq!(prompt.scores, [score]);
    }

    #[test]
    fn each_fault_is_named() {
        let with = |models: &str| reason(&format!(r#"{{"id":"a","prompt":"p","models":{models}}}"#));
        assert!(with(r#"{"m":{"score":1.5}}"#).contains("score 1.5 of model `m`"));
        assert!(with(r#"{"m":{"score":NaN}}"#).contains("NaN"));
        assert!(with(r#"{"m":{"score":1e999}}"#).contains("out of range"));
        assert!(with(r#"{"m":{"score":1,"completion_tokens":-1}}"#).contains("completion_tokens -1"));
        assert!(with(r#"{"m":{"score":1,"completion_tokens":1e308}}"#).contains("not in [0, 10000000]"));
        assert!(with("{\"a\\nb\":{\"score\":1}}").contains("control characters"));
        assert!(with(r#"{"m":{"score":"good"}}"#).contains("string"));
        assert!(with(r#"{"":{"score":1}}"#).contains("model name"));
        assert_eq!(with("{}"), "no model has a score");
        assert_eq!(with(r#"{"m":{}}"#), "no model has a score");
        assert!(reason(r#"{"id":"a","models":{}}"#).contains("missing field `prompt`"));
        assert!(reason(r#"{"id":"","prompt":"p","models":{}}"#).contains("id has 0 bytes"));
        assert_eq!(reason(r#"{"id":"a","prompt":" \n","models":{}}"#), "prompt is empty");
        assert!(reason(r#"{"id":"a","prompt":"#).contains("not JSON"));
        assert!(parse_row(b"{\"id\":\"\xff").unwrap_err().contains("not UTF-8 at byte 7"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(line in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Err(reason) = parse_row(&line) {
                prop_assert!(!reason.is_empty());
            }
        }

        #[test]
        fn what_passes_is_in_range(score in prop::num::f64::ANY, tokens in prop::num::f64::ANY) {
            let line = format!(r#"{{"id":"a","prompt":"p","models":{{"m":{{"score":{score:?},"completion_tokens":{tokens:?}}}}}}}"#);
            if let Ok(prompt) = parse_row(line.as_bytes()) {
                prop_assert!((0.0..=1.0).contains(&prompt.scores[0].score));
                prop_assert!((0.0..=COMPLETION_TOKENS_MAX).contains(&prompt.scores[0].completion_tokens.unwrap()));
            }
        }
    }
}

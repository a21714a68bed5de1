//! A finished request in the decision log.

use std::fmt::Write as _;
use std::sync::Arc;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::{Dispatch, Finished};

/// A finished request in the decision log, one line of it: what was predicted and what came of it.
#[derive(Debug, Serialize)]
pub(super) struct RequestLine {
    kind: &'static str,
    id: Arc<str>,
    /// The plan that placed it last.
    plan: Option<u64>,
    destination: Option<String>,
    outcome: &'static str,
    stream: bool,
    attempts: u32,
    /// Set by whoever has it.
    pub(super) prompt_sha256: Option<String>,
    predicted: Option<PredictedLine>,
    actual: ActualLine,
}

#[derive(Debug, Serialize)]
struct PredictedLine {
    quality: f64,
    seconds: f64,
    prompt_tokens: f64,
    /// Of the prompt, expected in the cache of the destination because they were sent there before.
    cached_prompt_tokens: f64,
    completion_tokens: f64,
    joules: f64,
    usd: f64,
}

#[derive(Debug, Serialize)]
struct ActualLine {
    /// From dispatch to the last byte, as `seconds` is predicted.
    seconds: Option<f64>,
    /// From arrival to the last byte.
    since_arrival_s: f64,
    /// From arrival to the first content of a stream.
    first_content_s: Option<f64>,
    prompt_tokens: Option<f64>,
    /// Of the prompt, found in its cache, where the endpoint tells.
    cached_prompt_tokens: Option<f64>,
    completion_tokens: Option<f64>,
    /// By the model, at the tokens counted; measured energy has lines of its own.
    modelled_joules: Option<f64>,
    usd: Option<f64>,
}

impl RequestLine {
    pub(super) fn new(id: &Arc<str>, attempts: u32, finished: &Finished<'_>) -> Self {
        let counted = finished.prompt.zip(finished.completion);
        let charge = |dispatch: &Dispatch| {
            counted.map(|(prompt, completion)| dispatch.destination().price.charge(prompt, completion).0)
        };
        Self {
            kind: "request",
            id: Arc::clone(id),
            plan: finished.dispatch.map(|dispatch| dispatch.plan),
            destination: finished.dispatch.map(|dispatch| dispatch.destination().id.to_string()),
            outcome: finished.outcome.as_str(),
            stream: finished.stream,
            attempts,
            prompt_sha256: None,
            predicted: finished.dispatch.map(|dispatch| PredictedLine {
                quality: dispatch.estimate.quality.0,
                seconds: dispatch.estimate.completion.0,
                prompt_tokens: dispatch.prompt.0,
                cached_prompt_tokens: dispatch.cached.0,
                completion_tokens: dispatch.completion.0,
                joules: dispatch.estimate.joules.0,
                usd: dispatch.estimate.usd.0,
            }),
            actual: ActualLine {
                seconds: finished.execution.map(|span| span.0),
                since_arrival_s: finished.duration.0,
                first_content_s: finished.to_first_content.map(|span| span.0),
                prompt_tokens: finished.prompt.map(|tokens| tokens.0),
                cached_prompt_tokens: finished.cached.map(|tokens| tokens.0),
                completion_tokens: finished.completion.map(|tokens| tokens.0),
                modelled_joules: finished.modelled_joules().map(|joules| joules.0),
                usd: finished.dispatch.and_then(charge),
            },
        }
    }
}

/// The first 64 bits, in hexadecimal: enough to tell prompts apart.
pub(super) fn short_sha256(text: &str) -> String {
    let digest = Sha256::digest(text);
    digest.iter().take(8).fold(String::with_capacity(16), |mut hex, byte| {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

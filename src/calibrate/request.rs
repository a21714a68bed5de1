//! One streamed request to an endpoint, timed; its text, where that is wanted.

use std::error::Error;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::sample::{Sample, ServerTimings};
use crate::domain::{ApiCall, Destination};
use crate::endpoint::answer::{EventKind, Usage, classify_event};
use crate::endpoint::causes::with_causes;
use crate::endpoint::coding::{ContentCoding, DecodedBody};
use crate::endpoint::sse::{Scanner, SseEvent};
use crate::endpoint::upstream_error::UpstreamError;
use crate::endpoint::{EndpointPool, Post, SendError};
use crate::units::{Seconds, TokensPerSec};

/// Read of an error answer.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// Read of the text of an answer; what a model says beyond that is not looked at.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// Where requests go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) pool: &'a EndpointPool,
    pub(super) destination: &'a Destination,
    /// What the times of samples count from.
    pub(super) epoch: Instant,
}

/// Why a request was not answered as it should be.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("{}", with_causes(.0))]
    Send(#[from] SendError),
    #[error("answered {status}: {message}")]
    Refused { status: StatusCode, message: String },
    #[error("the answer broke off: {}", with_causes(.0.as_ref()))]
    Broken(Box<dyn Error + Send + Sync>),
    #[error("no content within {0} s")]
    Silent(u64),
    #[error("the stream had an error: {0}")]
    InBand(String),
    #[error("the answer had no content")]
    Empty,
    #[error(
        "the server does not count tokens in streams (`stream_options.include_usage`), so there is nothing to measure by"
    )]
    NoCounts,
}

impl AskError {
    /// Whether the request itself was at fault, so that a shorter one may fare better.
    pub(super) fn is_about_the_request(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if matches!(*status, StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE))
    }

    /// Whether the server only had no room for it.
    pub(super) fn is_about_the_moment(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if matches!(*status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE))
    }
}

/// Sends `prompt` as a chat and reads the answer of up to `max_tokens` to its end.
pub(super) async fn ask(target: Target<'_>, prompt: &str, max_tokens: u64) -> Result<Sample, AskError> {
    let Target { pool, destination, epoch } = target;
    let since_epoch = |at: Instant| Seconds((at - epoch).as_secs_f64());
    let kind = pool.spec(destination.endpoint).kind;
    let mut body = chat(destination, prompt, max_tokens);
    if kind.takes_ignore_eos() {
        body["ignore_eos"] = true.into();
    }
    if kind.takes_cache_prompt() {
        body["cache_prompt"] = false.into();
    }
    let (sent, reading) = exchange((pool, destination), &body, Reading::default()).await?;
    reading.into_sample(since_epoch(sent), since_epoch)
}

/// What came of a request whose text matters.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Said {
    /// What the model said, without its reasoning where the server keeps that apart.
    pub(super) text: String,
    /// Tokens, where the server counts them.
    pub(super) prompt_tokens: Option<u64>,
    pub(super) completion_tokens: Option<u64>,
    /// Time to the first content, and to the last.
    pub(super) ttft: Seconds,
    pub(super) latency: Seconds,
    /// It ended at its token limit.
    pub(super) is_cut: bool,
}

/// A streamed chat at temperature 0.
fn chat(destination: &Destination, prompt: &str, max_tokens: u64) -> Value {
    json!({
        "model": &*destination.upstream_model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": true,
        "stream_options": {"include_usage": true},
    })
}

/// Sends `prompt` as a chat at temperature 0, and reads what is said in up to `max_tokens`.
pub(super) async fn listen(
    (pool, destination): (&EndpointPool, &Destination),
    prompt: &str,
    max_tokens: u32,
) -> Result<Said, AskError> {
    let body = chat(destination, prompt, max_tokens.into());
    let reading = Reading { said: Some(String::new()), ..Reading::default() };
    let (sent, reading) = exchange((pool, destination), &body, reading).await?;
    reading.into_said(sent)
}

/// Sends `body` and reads the answer to its end; also when it was sent.
async fn exchange(
    (pool, destination): (&EndpointPool, &Destination),
    body: &Value,
    mut reading: Reading,
) -> Result<(Instant, Reading), AskError> {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::ACCEPT, HeaderValue::from_static("text/event-stream")),
    ];
    let sent = Instant::now();
    let first_limit = sent + pool.timeouts().first_token;
    let post = Post {
        call: ApiCall::Chat,
        headers: &headers,
        body: body.to_string().into(),
        first_byte: pool.timeouts().first_byte,
    };
    let response = pool.post(destination.endpoint, post).await?;
    let (head, body) = response.into_parts();
    let coding = ContentCoding::of(&head.headers).map_err(|error| AskError::Broken(error.into()))?;
    let mut body = DecodedBody::new(body, coding);
    if head.status != StatusCode::OK {
        let read = timeout_at(first_limit, Limited::new(body, ERROR_BYTES_MAX).collect()).await;
        let body = read.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
        let message = UpstreamError::from_response(head.status, &body).message;
        return Err(AskError::Refused { status: head.status, message });
    }
    loop {
        let limit = reading.last.map_or(first_limit, |_| Instant::now() + pool.timeouts().idle);
        let waited = || limit.duration_since(reading.last.unwrap_or(sent)).as_secs();
        match timeout_at(limit, body.frame()).await {
            Err(_) => return Err(AskError::Silent(waited())),
            Ok(Some(Err(error))) => return Err(AskError::Broken(error.into())),
            Ok(Some(Ok(frame))) => {
                frame.data_ref().into_iter().for_each(|data| reading.push(data, Instant::now()))
            }
            Ok(None) => break,
        }
    }
    Ok((sent, reading))
}

/// What has been read of an answer.
#[derive(Debug, Default)]
struct Reading {
    scanner: Scanner,
    first: Option<Instant>,
    last: Option<Instant>,
    usage: Option<Usage>,
    timed: Option<Usage>,
    server: Option<ServerTimings>,
    error: Option<String>,
    /// What was said, where that is wanted.
    said: Option<String>,
    /// A choice ended, and whether that was at the token limit.
    ended: bool,
    is_cut: bool,
}

impl Reading {
    fn push(&mut self, data: &Bytes, now: Instant) {
        let Self { scanner, first, last, usage, timed, server, error, said, ended, is_cut } = self;
        scanner.push(data, &mut |event| {
            let (SseEvent::Data(data) | SseEvent::Error(data)) = event else { return };
            let facts = classify_event(data);
            match facts.kind {
                EventKind::Content => {
                    first.get_or_insert(now);
                    *last = Some(now);
                }
                EventKind::Error(upstream) => *error = Some(upstream.message),
                EventKind::Preamble | EventKind::Finish | EventKind::Usage | EventKind::Other => {}
            }
            *ended |= facts.finished;
            if let Some(said) = said {
                *is_cut |= read_said(data, said);
            }
            *usage = facts.usage.or(*usage);
            if facts.timed.is_some() {
                *timed = facts.timed;
                *server = read_timings(data);
            }
        });
    }

    fn into_sample(
        self,
        sent: Seconds,
        since_epoch: impl Fn(Instant) -> Seconds,
    ) -> Result<Sample, AskError> {
        if let Some(error) = self.error {
            return Err(AskError::InBand(error));
        }
        let (Some(first), Some(last)) = (self.first, self.last) else { return Err(AskError::Empty) };
        let counted =
            self.usage.or(self.timed).filter(|usage| usage.prompt_tokens > 0).ok_or(AskError::NoCounts)?;
        let cached_tokens = counted.cached_tokens.unwrap_or_default();
        Ok(Sample {
            prompt_tokens: counted.prompt_tokens.saturating_sub(cached_tokens),
            cached_tokens,
            completion_tokens: counted.completion_tokens,
            sent,
            first: since_epoch(first),
            last: since_epoch(last),
            server: self.server,
        })
    }
}

impl Reading {
    fn into_said(self, sent: Instant) -> Result<Said, AskError> {
        if let Some(error) = self.error {
            return Err(AskError::InBand(error));
        }
        // A model may have nothing to say, which is an answer; a stream that breaks off is none.
        if self.first.is_none() && !self.ended {
            return Err(AskError::Empty);
        }
        let counted = self.usage.or(self.timed);
        let since_sent = |at: Option<Instant>| {
            Seconds(at.map_or_else(|| sent.elapsed(), |at| at.duration_since(sent)).as_secs_f64())
        };
        Ok(Said {
            text: self.said.unwrap_or_default(),
            prompt_tokens: counted.map(|usage| usage.prompt_tokens).filter(|n| *n > 0),
            completion_tokens: counted.map(|usage| usage.completion_tokens),
            ttft: since_sent(self.first),
            latency: since_sent(self.last),
            is_cut: self.is_cut,
        })
    }
}

/// Appends what the first choice of `event` says to `said`; whether it ends there for want of tokens.
fn read_said(event: &[u8], said: &mut String) -> bool {
    let Ok(event) = serde_json::from_slice::<Value>(event) else { return false };
    let choice = &event["choices"][0];
    if let Some(piece) = choice["delta"]["content"].as_str()
        && said.len() + piece.len() <= TEXT_BYTES_MAX
    {
        said.push_str(piece);
    }
    choice["finish_reason"] == "length"
}

/// Reads llama.cpp's `timings`.
fn read_timings(event: &[u8]) -> Option<ServerTimings> {
    let event: Value = serde_json::from_slice(event).ok()?;
    let rate = |key: &str| event["timings"][key].as_f64().map(TokensPerSec);
    Some(ServerTimings { prefill: rate("prompt_per_second")?, decode: rate("predicted_per_second")? })
}

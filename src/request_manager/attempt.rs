//! One attempt: send a request to one destination and read on until the answer may be committed.
//!
//! Nothing is committed before the endpoint's first content: a stream's preamble and comments are held,
//! an answer in one piece is held whole. Whatever goes wrong until then is a [`Failure`] that another
//! destination may make good.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use super::{Call, FailureKind};
use crate::domain::Destination;
use crate::endpoint::answer::{Usage, inspect_complete};
use crate::endpoint::meter::StreamMeter;
use crate::endpoint::upstream_error::UpstreamError;
use crate::endpoint::{EndpointPool, SendError, Timeouts};
use crate::profiler::node::UnderWay;

/// Held of a stream before its first content; more is committed.
const PREAMBLE_BYTES_MAX: usize = 8 << 10;
/// An answer in one piece is held up to this size; beyond it, it is streamed.
const WHOLE_BYTES_MAX: usize = 16 << 20;
/// Read of an error answer.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// One attempt at one destination.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    pub(super) pool: &'a EndpointPool,
    pub(super) destination: &'a Destination,
    pub(super) began: Instant,
    pub(super) under_way: UnderWay,
}

/// An answer that may be committed to the client.
#[derive(Debug)]
pub(super) enum Answer {
    /// In one piece.
    Whole { status: StatusCode, headers: HeaderMap, body: Bytes, usage: Option<Usage> },
    /// Under way.
    Streaming { status: StatusCode, headers: HeaderMap, stream: Box<Streaming> },
}

/// An answer under way.
#[derive(Debug)]
pub(super) struct Streaming {
    /// Read already and not passed on.
    pub(super) held: BytesMut,
    /// What is still to come.
    pub(super) rest: Incoming,
    /// What passed; `None` where the answer is not an event stream.
    pub(super) meter: Option<StreamMeter>,
    /// When the attempt began.
    pub(super) began: Instant,
    /// Kept until the stream is over.
    pub(super) _under_way: UnderWay,
}

/// Why an attempt gave no answer. Nothing of it has reached the client.
#[derive(Debug)]
pub(super) enum Failure {
    Connect,
    Broken,
    TimedOut(&'static str),
    Unusable(String),
    Answered { error: UpstreamError, retry_after: Option<Duration> },
}

impl Failure {
    /// Metric label.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Broken => "broken",
            Self::TimedOut(what) => what,
            Self::Unusable(_) => "unusable",
            Self::Answered { error, .. } => match error.status.as_u16() {
                429 => "status_429",
                503 => "status_503",
                400..500 => "status_4xx",
                _ => "status_5xx",
            },
        }
    }

    /// Whether another destination may do better: not where the request itself is at fault.
    pub(super) fn may_fail_over(&self) -> bool {
        match self {
            Self::Answered { error, .. } => !matches!(error.status.as_u16(), 400 | 405 | 413 | 415 | 422),
            _ => true,
        }
    }

    pub(super) fn kind(&self) -> FailureKind {
        match self {
            Self::Connect | Self::Broken => FailureKind::Unreachable,
            Self::TimedOut(_) => FailureKind::TimedOut,
            Self::Unusable(why) => FailureKind::Unusable(why.clone()),
            Self::Answered { error, retry_after } => {
                FailureKind::Answered { error: error.clone(), retry_after: *retry_after }
            }
        }
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Connect(_) => Self::Connect,
            SendError::Broken(_) => Self::Broken,
            SendError::FirstByteTimeout(_) => Self::TimedOut("first_byte_timeout"),
            SendError::Request(error) => Self::Unusable(error.to_string()),
        }
    }
}

impl Attempt<'_> {
    pub(super) async fn run(self, call: &Call) -> Result<Answer, Failure> {
        let body = (call.body_for)(&self.destination.upstream_model);
        let response =
            self.pool.post(self.destination.endpoint, call.path, call.headers.clone(), body).await?;
        if !response.status().is_success() {
            return Err(self.read_error(response).await);
        }
        let is_event_stream = content_type(response.headers()).starts_with("text/event-stream");
        if call.stream && is_event_stream {
            self.read_preamble(response).await
        } else {
            self.read_whole(response).await
        }
    }

    /// Reads a stream up to its first content.
    async fn read_preamble(self, response: Response<Incoming>) -> Result<Answer, Failure> {
        let limits = *self.pool.timeouts();
        let (status, headers) = (response.status(), passed_headers(response.headers()));
        let mut rest = response.into_body();
        let mut meter = StreamMeter::new();
        let mut held = BytesMut::new();
        let commit_at = self.began + limits.commit_after.min(limits.first_token);
        loop {
            match timeout_at(commit_at, rest.frame()).await {
                Ok(Some(Ok(frame))) => {
                    let Ok(data) = frame.into_data() else { continue };
                    meter.push(&data);
                    held.extend_from_slice(&data);
                }
                Ok(Some(Err(_))) => return Err(Failure::Broken),
                Ok(None) => {
                    meter.finish();
                    if meter.is_finished() {
                        break;
                    }
                    return Err(Failure::Unusable("a stream that ended before its first token".to_owned()));
                }
                Err(_) if limits.commit_after < limits.first_token => break,
                Err(_) => return Err(Failure::TimedOut("first_token_timeout")),
            }
            if let Some(error) = meter.error() {
                return Err(self.answered(error.clone(), None));
            }
            if meter.has_content() || held.len() > PREAMBLE_BYTES_MAX {
                break;
            }
        }
        let (began, _under_way) = (self.began, self.under_way);
        let stream = Box::new(Streaming { held, rest, meter: Some(meter), began, _under_way });
        Ok(Answer::Streaming { status, headers, stream })
    }

    /// Reads an answer in one piece; a very large one is passed on while it comes.
    async fn read_whole(self, response: Response<Incoming>) -> Result<Answer, Failure> {
        let limits = *self.pool.timeouts();
        let (status, headers) = (response.status(), passed_headers(response.headers()));
        let mut rest = response.into_body();
        let mut held = BytesMut::new();
        let mut read_by = self.began + limits.first_token;
        loop {
            match timeout_at(read_by, rest.frame()).await {
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        held.extend_from_slice(&data);
                    }
                    read_by = Instant::now() + limits.idle;
                }
                Ok(Some(Err(_))) => return Err(Failure::Broken),
                Ok(None) => break,
                Err(_) => return Err(Failure::TimedOut("first_token_timeout")),
            }
            if held.len() > WHOLE_BYTES_MAX {
                let (began, _under_way) = (self.began, self.under_way);
                let stream = Box::new(Streaming { held, rest, meter: None, began, _under_way });
                return Ok(Answer::Streaming { status, headers, stream });
            }
        }
        let body = held.freeze();
        let inspected = inspect_complete(&body).map_err(|error| self.answered(error, None))?;
        Ok(Answer::Whole { status, headers, body, usage: inspected.usage })
    }

    async fn read_error(&self, response: Response<Incoming>) -> Failure {
        let Timeouts { idle, .. } = *self.pool.timeouts();
        let status = response.status();
        let retry_after = retry_after(response.headers());
        let reading = Limited::new(response.into_body(), ERROR_BYTES_MAX).collect();
        let body = match timeout_at(Instant::now() + idle, reading).await {
            Ok(Ok(collected)) => collected.to_bytes(),
            // Its status says enough.
            Ok(Err(_)) | Err(_) => Bytes::new(),
        };
        self.answered(UpstreamError::from_response(status, &body), retry_after)
    }

    /// An endpoint's error in its own words, but for its address.
    fn answered(&self, mut error: UpstreamError, retry_after: Option<Duration>) -> Failure {
        error.redact(self.pool.authority(self.destination.endpoint));
        Failure::Answered { error, retry_after }
    }
}

fn content_type(headers: &HeaderMap) -> &str {
    headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The endpoint's own wish, in seconds or milliseconds; dates and nonsense are ignored.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms").map(|ms| ms / 1e3).or_else(|| number("retry-after"))?;
    (0.0..86_400.0).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

/// The headers of an endpoint's answer that go to the client: what describes the body, and nothing that
/// names the endpoint or belongs to one hop.
fn passed_headers(headers: &HeaderMap) -> HeaderMap {
    let mut passed = HeaderMap::new();
    for name in [header::CONTENT_TYPE, header::CONTENT_ENCODING, header::CACHE_CONTROL] {
        if let Some(value) = headers.get(&name) {
            passed.insert(name, value.clone());
        }
    }
    passed
}

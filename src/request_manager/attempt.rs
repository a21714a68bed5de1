//! One attempt: send a request to one destination and read on until the answer may be committed.
//!
//! Nothing is committed before the endpoint's first content: a stream's preamble and comments are held,
//! an answer in one piece is held whole. Whatever goes wrong until then is a [`Failure`] that another
//! destination may make good.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use tokio::time::{Instant, timeout_at};

use super::{Call, FailureKind};
use crate::domain::{Destination, EndpointOrd};
use crate::endpoint::answer::{Usage, inspect_complete};
use crate::endpoint::coding::{ContentCoding, DecodedBody};
use crate::endpoint::meter::StreamMeter;
use crate::endpoint::upstream_error::UpstreamError;
use crate::endpoint::{AnswerBody, EndpointPool, SendError, Timeouts};
use crate::profiler::node::UnderWay;

/// Held of a stream before its first content; more is committed.
const PREAMBLE_BYTES_MAX: usize = 8 << 10;
/// An answer in one piece is held up to this size; beyond it, it is streamed.
const WHOLE_BYTES_MAX: usize = 16 << 20;
/// Read of an error answer.
const ERROR_BYTES_MAX: usize = 64 << 10;

const FIRST_TOKEN_TIMEOUT: Failure = Failure::TimedOut("first_token_timeout");

/// One attempt at one destination.
pub(super) struct Attempt<'a> {
    pub(super) call: &'a Call,
    pub(super) pool: &'a Arc<EndpointPool>,
    pub(super) destination: &'a Destination,
    pub(super) began: Instant,
    pub(super) under_way: UnderWay,
}

/// An endpoint and the way to it.
#[derive(Debug, Clone)]
struct Line {
    pool: Arc<EndpointPool>,
    endpoint: EndpointOrd,
    /// The model as the endpoint knows it and as its errors are to call it.
    renamed: Option<(Arc<str>, Arc<str>)>,
}

/// The body of an endpoint's answer without its content coding.
type PlainBody = DecodedBody<AnswerBody>;

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
    pub(super) rest: Rest,
    /// What passed; `None` where the answer is not an event stream.
    pub(super) meter: Option<StreamMeter>,
    /// When the attempt began.
    pub(super) began: Instant,
    /// Kept until the stream is over.
    pub(super) _under_way: UnderWay,
}

/// What is still to come of an answer under way.
pub(super) enum Rest {
    /// Even its head: the client waited so long that the stream was committed without.
    Head(Pin<Box<dyn Future<Output = Result<PlainBody, Failure>> + Send>>),
    /// Its body.
    Body(PlainBody),
    /// Nothing: the endpoint has been left.
    Nothing,
}

impl fmt::Debug for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Head(_) => "Head",
            Self::Body(_) => "Body",
            Self::Nothing => "Nothing",
        })
    }
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
    pub(super) async fn run(self) -> Result<Answer, Failure> {
        let call = self.call;
        let body = (call.body_for)(&self.destination.upstream_model);
        let opened = self.line().open(call.kind.path(), call.headers.clone(), body);
        if !call.stream {
            return self.read_whole(opened.await?).await;
        }
        let mut opened = Box::pin(opened);
        match timeout_at(self.quiet_until(), &mut opened).await {
            Ok(response) => {
                let response = response?;
                if is_event_stream(&response) {
                    self.read_preamble(response).await
                } else {
                    self.read_whole(response).await
                }
            }
            Err(_) if self.may_commit() => Ok(self.commit_without_head(opened)),
            Err(_) => Err(FIRST_TOKEN_TIMEOUT),
        }
    }

    /// Until when a stream may be without content and nothing happens.
    fn quiet_until(&self) -> Instant {
        let limits = self.pool.timeouts();
        self.began + limits.commit_after.min(limits.first_token)
    }

    /// Whether a stream without content is committed to the client then, or given up.
    fn may_commit(&self) -> bool {
        self.pool.timeouts().commit_after < self.pool.timeouts().first_token
    }

    /// A stream whose endpoint has not even sent a head: it may be loading the model.
    fn commit_without_head(
        self,
        opened: impl Future<Output = Result<Response<PlainBody>, Failure>> + Send + Unpin + 'static,
    ) -> Answer {
        let body = async move {
            let response = opened.await?;
            if is_event_stream(&response) {
                return Ok(response.into_body());
            }
            Err(Failure::Unusable("an answer in one piece to a request for a stream".to_owned()))
        };
        let headers =
            HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"))]);
        let rest = Rest::Head(Box::pin(body));
        self.under_way(StatusCode::OK, headers, (BytesMut::new(), rest, Some(StreamMeter::new())))
    }

    fn under_way(
        self,
        status: StatusCode,
        headers: HeaderMap,
        (held, rest, meter): (BytesMut, Rest, Option<StreamMeter>),
    ) -> Answer {
        let (began, _under_way) = (self.began, self.under_way);
        Answer::Streaming {
            status,
            headers,
            stream: Box::new(Streaming { held, rest, meter, began, _under_way }),
        }
    }

    fn line(&self) -> Line {
        let upstream = &self.destination.upstream_model;
        Line {
            pool: Arc::clone(self.pool),
            endpoint: self.destination.endpoint,
            renamed: self.call.echo_model.as_ref().map(|asked| (Arc::clone(upstream), Arc::clone(asked))),
        }
    }

    /// Reads a stream up to its first content.
    async fn read_preamble(self, response: Response<PlainBody>) -> Result<Answer, Failure> {
        let (status, headers) = (response.status(), passed_headers(response.headers()));
        let mut rest = response.into_body();
        let mut meter = StreamMeter::new();
        let mut held = BytesMut::new();
        let quiet_until = self.quiet_until();
        loop {
            match timeout_at(quiet_until, rest.frame()).await {
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
                Err(_) if self.may_commit() => break,
                Err(_) => return Err(FIRST_TOKEN_TIMEOUT),
            }
            if let Some(error) = meter.error() {
                return Err(self.line().answered(error.clone(), None));
            }
            if meter.has_content() || held.len() > PREAMBLE_BYTES_MAX {
                break;
            }
        }
        Ok(self.under_way(status, headers, (held, Rest::Body(rest), Some(meter))))
    }

    /// Reads an answer in one piece; a very large one is passed on while it comes.
    async fn read_whole(self, response: Response<PlainBody>) -> Result<Answer, Failure> {
        let limits = *self.pool.timeouts();
        let (status, headers) = (response.status(), passed_headers(response.headers()));
        let mut rest = response.into_body();
        let mut held = BytesMut::new();
        let mut read_by = self.began + limits.first_token;
        let mut too_late = FIRST_TOKEN_TIMEOUT;
        loop {
            match timeout_at(read_by, rest.frame()).await {
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        held.extend_from_slice(&data);
                    }
                    read_by = Instant::now() + limits.idle;
                    too_late = Failure::TimedOut("idle_timeout");
                }
                Ok(Some(Err(_))) => return Err(Failure::Broken),
                Ok(None) => break,
                Err(_) => return Err(too_late),
            }
            if held.len() > WHOLE_BYTES_MAX {
                return Ok(self.under_way(status, headers, (held, Rest::Body(rest), None)));
            }
        }
        let body = held.freeze();
        let inspected =
            inspect_complete(self.call.kind, &body).map_err(|error| self.line().answered(error, None))?;
        Ok(Answer::Whole { status, headers, body, usage: inspected.usage })
    }
}

impl Line {
    /// Sends a request and awaits the head of a good answer; another one is read whole.
    async fn open(
        self,
        path: &'static str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<PlainBody>, Failure> {
        let response = self.pool.post(self.endpoint, path, headers, body).await?;
        if response.status().is_success() { decoded(response) } else { Err(self.read_error(response).await) }
    }

    async fn read_error(&self, response: Response<AnswerBody>) -> Failure {
        let Timeouts { idle, .. } = *self.pool.timeouts();
        let status = response.status();
        let retry_after = retry_after(response.headers());
        let reading = async {
            let body = Limited::new(decoded(response).ok()?.into_body(), ERROR_BYTES_MAX);
            Some(body.collect().await.ok()?.to_bytes())
        };
        // Where it cannot be read, its status says enough.
        let body = timeout_at(Instant::now() + idle, reading).await.ok().flatten().unwrap_or_default();
        self.answered(UpstreamError::from_response(status, &body), retry_after)
    }

    /// An endpoint's error in its own words, but for its address and key.
    fn answered(&self, mut error: UpstreamError, retry_after: Option<Duration>) -> Failure {
        for secret in self.pool.secrets(self.endpoint) {
            error.redact(secret);
        }
        if let Some((upstream, asked)) = &self.renamed {
            error.rename_model(upstream, asked);
        }
        Failure::Answered { error, retry_after }
    }
}

/// Whether a content type is that of server-sent events; media types have no case.
pub(crate) fn names_event_stream(content_type: &HeaderValue) -> bool {
    const EVENT_STREAM: &[u8] = b"text/event-stream";
    content_type
        .as_bytes()
        .get(..EVENT_STREAM.len())
        .is_some_and(|name| name.eq_ignore_ascii_case(EVENT_STREAM))
}

/// The answer without its content coding.
fn decoded(response: Response<AnswerBody>) -> Result<Response<PlainBody>, Failure> {
    match ContentCoding::of(response.headers()) {
        Ok(coding) => Ok(response.map(|body| DecodedBody::new(body, coding))),
        Err(unknown) => Err(Failure::Unusable(format!("{unknown}, which it was not asked for"))),
    }
}

fn is_event_stream(response: &Response<PlainBody>) -> bool {
    let content_type = response.headers().get(header::CONTENT_TYPE);
    content_type.is_some_and(names_event_stream)
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
    for name in [header::CONTENT_TYPE, header::CACHE_CONTROL] {
        if let Some(value) = headers.get(&name) {
            passed.insert(name, value.clone());
        }
    }
    passed
}

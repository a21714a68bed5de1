//! One attempt: send a request to one destination and read on until the answer may be committed.
//!
//! Nothing is committed before the endpoint's first content: a stream's preamble and comments are held,
//! an answer in one piece is held whole. Whatever goes wrong until then is a [`Failure`] that another
//! destination may make good.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::warn;

use super::answer_head::{PassedHead, is_event_stream, names_plain_text};
use super::download::Download;
use super::failure::{Failure, should_retry};
use super::{Call, World};
use crate::domain::{ApiCall, Destination, DestinationOrd, EndpointOrd};
use crate::endpoint::answer::{Accounts, inspect_complete};
use crate::endpoint::coding::{ContentCoding, DecodedBody};
use crate::endpoint::event_filter::EventFilter;
use crate::endpoint::meter::StreamMeter;
use crate::endpoint::retry_after::retry_after;
use crate::endpoint::upstream_error::{Renamed, UpstreamError};
use crate::endpoint::{AnswerBody, EndpointPool, Post, Timeouts, Upload};
use crate::profiler::engine::ColdStart;
use crate::profiler::network::Direction;
use crate::units::{Seconds, Tokens};

/// Held of a stream before its first content; more is committed.
const PREAMBLE_BYTES_MAX: usize = 8 << 10;
/// An answer in one piece is held up to this size; beyond it, it is streamed.
const WHOLE_BYTES_MAX: usize = 16 << 20;
/// Read of an error answer.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// How long the words of an error answer are awaited: its status says enough.
const ERROR_WORDS_WAIT: Duration = Duration::from_secs(1);

const FIRST_TOKEN_TIMEOUT: Failure = Failure::TimedOut("first_token_timeout");

/// One attempt at one destination.
pub(super) struct Attempt<'a> {
    call: &'a Call,
    world: &'a Arc<World>,
    destination: &'a Destination,
    began: Instant,
    limits: Timeouts,
    /// Where its model is not loaded.
    cold: Option<ColdStart>,
    usage: &'a UsageInjection,
    /// Whether the event with the token counts is the router's own affair.
    asks_for_usage: bool,
}

/// Which endpoints are asked for token counts that clients did not ask for. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct UsageInjection(Arc<[AtomicBool]>);

impl UsageInjection {
    /// As configured.
    pub(super) fn new(pool: &EndpointPool) -> Self {
        Self(pool.iter().map(|(_, spec)| AtomicBool::new(spec.inject_usage)).collect())
    }

    fn is_on(&self, endpoint: EndpointOrd) -> bool {
        self.0[endpoint.idx()].load(Ordering::Relaxed)
    }

    /// The endpoint does not take it.
    fn switch_off(&self, endpoint: EndpointOrd, name: &str) {
        if self.0[endpoint.idx()].swap(false, Ordering::Relaxed) {
            warn!(
                endpoint = name,
                "refuses `stream_options`: streams go without from now on; set `inject_usage: false`"
            );
        }
    }
}

/// An endpoint and the way to it.
#[derive(Debug, Clone)]
struct Line {
    world: Arc<World>,
    endpoint: EndpointOrd,
    /// Longest wait for the head of its answer.
    first_byte: Duration,
    /// What its errors are to call the model; `None` = as it does.
    renamed: Option<Renamed>,
    usage: UsageInjection,
}

/// What is sent to an endpoint.
#[derive(Debug)]
struct Outgoing {
    kind: ApiCall,
    headers: Arc<[(HeaderName, HeaderValue)]>,
    body: Bytes,
    /// The body without what the router added, should the endpoint refuse just that.
    unasked: Option<Bytes>,
}

/// The body of an endpoint's answer without its content coding.
type PlainBody = DecodedBody<AnswerBody>;
/// The head of a good answer; where its model was loaded first, with what is to learn of that.
type Opened = (Response<PlainBody>, Option<ColdStart>);

/// An answer that may be committed to the client, as a 200 whatever kind of success its endpoint called it.
#[derive(Debug)]
pub(super) enum Answer {
    /// In one piece.
    Whole { head: PassedHead, body: Bytes, accounts: Accounts },
    /// Under way.
    Streaming { head: PassedHead, stream: Box<Streaming> },
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
    /// What does not pass.
    pub(super) filter: EventFilter,
    /// When the attempt began.
    pub(super) began: Instant,
    /// Its limits.
    pub(super) limits: Timeouts,
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

impl<'a> Attempt<'a> {
    /// An attempt that begins at `began`. Where the model has to be loaded first, it is given the time for that.
    pub(super) fn new(
        began: Instant,
        world: &'a Arc<World>,
        usage: &'a UsageInjection,
        call: &'a Call,
        (ord, destination): (DestinationOrd, &'a Destination),
    ) -> Self {
        let cold = world.loads.begin(ord);
        let limits = *world.pool.timeouts();
        let limits = if cold.is_some() { limits.with_load() } else { limits };
        Self { call, world, destination, began, limits, cold, usage, asks_for_usage: false }
    }

    pub(super) async fn run(mut self) -> Result<Answer, Failure> {
        let call = self.call;
        let outgoing = self.outgoing();
        self.asks_for_usage = outgoing.unasked.is_some();
        let (line, mut cold) = (self.line(), self.cold.take());
        // Boxed: large, and moved by every future around it otherwise.
        let mut opened = Box::pin(async move {
            let response = line.open(outgoing).await?;
            cold.iter_mut().for_each(ColdStart::answered);
            Ok((response, cold))
        });
        if !call.stream {
            let (response, cold) = opened.await?;
            return self.read_whole(response, cold).await;
        }
        match timeout_at(self.quiet_until(), &mut opened).await {
            Ok(opened) => {
                let (response, cold) = opened?;
                if is_event_stream(&response) {
                    cold.into_iter().for_each(|cold| cold.worked(self.prefill()));
                    self.read_preamble(response).await
                } else {
                    self.read_whole(response, cold).await
                }
            }
            Err(_) if self.may_commit() => Ok(self.commit_without_head(opened)),
            Err(_) => Err(FIRST_TOKEN_TIMEOUT),
        }
    }

    fn outgoing(&self) -> Outgoing {
        let call = self.call;
        let endpoint = self.destination.endpoint;
        let kind = self.world.pool.spec(endpoint).kind;
        let body = (call.body_for)(&self.destination.upstream_model);
        let asked = kind.prepare(body.clone(), call.stream && self.usage.is_on(endpoint));
        let unasked = asked.asks_for_usage.then(|| kind.prepare(body, false).body);
        Outgoing { kind: call.kind, headers: Arc::clone(&call.headers), body: asked.body, unasked }
    }

    /// Until when a stream may be without content and nothing happens.
    fn quiet_until(&self) -> Instant {
        self.began + self.limits.commit_after.min(self.limits.first_token)
    }

    /// Whether a stream without content is committed to the client then, or given up.
    fn may_commit(&self) -> bool {
        self.limits.commit_after < self.limits.first_token
    }

    /// What the endpoint does itself before the first token.
    fn prefill(&self) -> Seconds {
        self.call.request.prompt_tokens.duration_at(self.destination.throughput.prefill)
    }

    /// A stream whose endpoint has not even sent a head: it may be loading the model.
    fn commit_without_head(
        self,
        opened: impl Future<Output = Result<Opened, Failure>> + Send + Unpin + 'static,
    ) -> Answer {
        let prefill = self.prefill();
        let body = async move {
            let (response, cold) = opened.await?;
            cold.into_iter().for_each(|cold| cold.worked(prefill));
            if is_event_stream(&response) {
                return Ok(response.into_body());
            }
            Err(Failure::Unusable("an answer in one piece to a request for a stream".to_owned()))
        };
        let head = PassedHead::of_event_stream(&HeaderMap::new());
        let rest = Rest::Head(Box::pin(body));
        self.under_way(head, (BytesMut::new(), rest, Some(StreamMeter::new())))
    }

    fn under_way(
        self,
        head: PassedHead,
        (held, rest, meter): (BytesMut, Rest, Option<StreamMeter>),
    ) -> Answer {
        let secrets = Arc::clone(self.world.pool.secrets(self.destination.endpoint));
        let filter = EventFilter::new(self.asks_for_usage, secrets, self.renamed());
        let stream = Streaming { held, rest, meter, filter, began: self.began, limits: self.limits };
        Answer::Streaming { head, stream: Box::new(stream) }
    }

    fn line(&self) -> Line {
        Line {
            world: Arc::clone(self.world),
            endpoint: self.destination.endpoint,
            first_byte: self.limits.first_byte,
            usage: self.usage.clone(),
            renamed: self.renamed(),
        }
    }

    fn renamed(&self) -> Option<Renamed> {
        let upstream = Arc::clone(&self.destination.upstream_model);
        self.call.echo_model.as_ref().map(|asked| Renamed { upstream, asked: Arc::clone(asked) })
    }

    /// Reads a stream up to its first content.
    async fn read_preamble(self, response: Response<PlainBody>) -> Result<Answer, Failure> {
        let head = PassedHead::of_event_stream(response.headers());
        let mut rest = response.into_body();
        let mut meter = StreamMeter::new();
        let mut held = BytesMut::new();
        let quiet_until = self.quiet_until();
        let mut is_over = false;
        while !is_over {
            match timeout_at(quiet_until, rest.frame()).await {
                Ok(Some(Ok(frame))) => {
                    let Ok(data) = frame.into_data() else { continue };
                    meter.push(&data);
                    held.extend_from_slice(&data);
                }
                Ok(Some(Err(_))) => return Err(Failure::Broken),
                Ok(None) => {
                    // The last event may not have been closed.
                    meter.finish();
                    is_over = true;
                }
                Err(_) if self.may_commit() => break,
                Err(_) => return Err(FIRST_TOKEN_TIMEOUT),
            }
            if let Some(error) = meter.error() {
                return Err(self.line().answered(error.clone(), Wishes::default()));
            }
            if is_over && !meter.is_finished() {
                return Err(Failure::Unusable("a stream that ended before its first token".to_owned()));
            }
            if meter.has_content() || held.len() > PREAMBLE_BYTES_MAX {
                break;
            }
        }
        Ok(self.under_way(head, (held, Rest::Body(rest), Some(meter))))
    }

    /// Reads an answer in one piece; a very large one is passed on while it comes.
    async fn read_whole(
        self,
        response: Response<PlainBody>,
        cold: Option<ColdStart>,
    ) -> Result<Answer, Failure> {
        let limits = self.limits;
        let mut download = Download::of(response.headers());
        let head = PassedHead::of_json(response.headers());
        let mut rest = response.into_body();
        let mut held = BytesMut::new();
        let mut read_by = self.began + limits.first_token;
        let mut too_late = FIRST_TOKEN_TIMEOUT;
        loop {
            match timeout_at(read_by, rest.frame()).await {
                Ok(Some(Ok(frame))) => {
                    let now = Instant::now();
                    if let Ok(data) = frame.into_data() {
                        download.came(data.len(), now);
                        held.extend_from_slice(&data);
                    }
                    read_by = now + limits.idle;
                    too_late = Failure::TimedOut("idle_timeout");
                }
                Ok(Some(Err(_))) => return Err(Failure::Broken),
                Ok(None) => break,
                Err(_) => return Err(too_late),
            }
            if held.len() > WHOLE_BYTES_MAX {
                if !held.trim_ascii_start().starts_with(b"{") {
                    return Err(Failure::Unusable("a large answer that is no JSON object".to_owned()));
                }
                return Ok(self.under_way(head, (held, Rest::Body(rest), None)));
            }
        }
        let body = held.freeze();
        let accounts = inspect_complete(self.call.kind, &body)
            .map_err(|error| self.line().answered(error, Wishes::default()))?;
        if let Some((bytes, time)) = download.seen() {
            self.world.paths.transferred(self.destination.endpoint, Direction::Down, bytes, time);
        }
        // An answer in one piece begins when it is complete.
        if let (Some(cold), Some(usage)) = (cold, accounts.usage) {
            let counted = |tokens: u64| Tokens(tokens as f64);
            let (prompt, completion) = (counted(usage.prompt_tokens), counted(usage.completion_tokens));
            cold.worked(self.destination.throughput.service_time(prompt, completion));
        }
        Ok(Answer::Whole { head, body, accounts })
    }
}

impl Line {
    /// Sends a request and awaits the head of a good answer; another one is read whole. Where an endpoint
    /// refuses what the router added, the request goes out once more without: that is not its failure.
    async fn open(self, outgoing: Outgoing) -> Result<Response<PlainBody>, Failure> {
        let Outgoing { kind, headers, body, unasked } = outgoing;
        match self.send(kind, &headers, body).await {
            Err(failure) if failure.is_about_usage() => match unasked {
                Some(body) => {
                    self.usage.switch_off(self.endpoint, &self.world.pool.spec(self.endpoint).name);
                    Box::pin(self.send(kind, &headers, body)).await
                }
                None => Err(failure),
            },
            outcome => outcome,
        }
    }

    async fn send(
        &self,
        call: ApiCall,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<Response<PlainBody>, Failure> {
        let post = Post { call, headers, body, first_byte: self.first_byte };
        let response = self.world.pool.post(self.endpoint, post).await?;
        if let Some(Upload { bytes, time }) = response.extensions().get() {
            self.world.paths.transferred(self.endpoint, Direction::Up, *bytes, *time);
        }
        if response.status().is_success() { decoded(response) } else { Err(self.read_error(response).await) }
    }

    async fn read_error(&self, response: Response<AnswerBody>) -> Failure {
        let limit = self.world.pool.timeouts().idle.min(ERROR_WORDS_WAIT);
        let status = response.status();
        let wishes = Wishes {
            wait: retry_after(response.headers(), SystemTime::now()),
            should_retry: should_retry(response.headers()),
        };
        let is_plain = response.headers().get(header::CONTENT_TYPE).is_some_and(names_plain_text);
        let mut body = BytesMut::new();
        // Where it cannot be read, its status says enough.
        if let Ok(response) = decoded(response) {
            _ = timeout(limit, read_start(response.into_body(), &mut body)).await;
        }
        let error = if is_plain {
            UpstreamError::from_plain_text(status, &body)
        } else {
            UpstreamError::from_response(status, &body)
        };
        self.answered(error, wishes)
    }

    /// An endpoint's error in its own words, but for its address and key.
    fn answered(&self, mut error: UpstreamError, wishes: Wishes) -> Failure {
        for secret in self.world.pool.secrets(self.endpoint).iter() {
            error.redact(secret);
        }
        if let Some(renamed) = &self.renamed {
            error.rename_model(renamed);
        }
        Failure::Answered { error, wait: wishes.wait, should_retry: wishes.should_retry }
    }
}

/// What an endpoint's error says of coming again.
#[derive(Debug, Clone, Copy, Default)]
struct Wishes {
    wait: Option<Duration>,
    should_retry: Option<bool>,
}

/// Reads an error answer as far as it comes and is worth reading.
async fn read_start(mut rest: PlainBody, body: &mut BytesMut) {
    while let Some(Ok(frame)) = rest.frame().await {
        if let Ok(data) = frame.into_data() {
            let room = ERROR_BYTES_MAX - body.len();
            body.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() > room {
                return;
            }
        }
    }
}

/// The answer without its content coding.
fn decoded(response: Response<AnswerBody>) -> Result<Response<PlainBody>, Failure> {
    match ContentCoding::of(response.headers()) {
        Ok(coding) => Ok(response.map(|body| DecodedBody::new(body, coding))),
        Err(unknown) => Err(Failure::Unusable(format!("{unknown}, which it was not asked for"))),
    }
}

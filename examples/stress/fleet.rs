//! Scripted endpoints of limited capacity.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Endpoints of a fleet.
const ENDPOINTS: usize = 4;
/// How long an answer in one piece takes once it has a slot.
const SERVICE: Duration = Duration::from_millis(100);

/// What each endpoint can do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    /// Requests that run at once.
    pub(crate) slots: usize,
    /// Requests that may be with it at once.
    pub(crate) inflight_max: usize,
}

/// Room for thousands of streams.
pub(crate) const FOR_STREAMS: Capacity = Capacity { slots: 4_096, inflight_max: 8_192 };
/// 320 requests a second, all endpoints together.
pub(crate) const FOR_OVERLOAD: Capacity = Capacity { slots: 8, inflight_max: 16 };

/// Running endpoints; they end with their owner.
pub(crate) struct Fleet {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) capacity: Capacity,
    endpoints: Vec<Arc<Endpoint>>,
    _tasks: JoinSet<()>,
}

struct Endpoint {
    slots: Semaphore,
    inflight: AtomicUsize,
    inflight_peak: AtomicUsize,
}

impl Fleet {
    pub(crate) async fn start(capacity: Capacity) -> anyhow::Result<Self> {
        let (mut addresses, mut endpoints, mut tasks) = (Vec::new(), Vec::new(), JoinSet::new());
        for _ in 0..ENDPOINTS {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            addresses.push(listener.local_addr()?);
            let endpoint = Arc::new(Endpoint {
                slots: Semaphore::new(capacity.slots),
                inflight: AtomicUsize::new(0),
                inflight_peak: AtomicUsize::new(0),
            });
            endpoints.push(Arc::clone(&endpoint));
            tasks.spawn(serve(listener, endpoint));
        }
        Ok(Self { addresses, capacity, endpoints, _tasks: tasks })
    }

    /// Requests a second that all of them can answer.
    pub(crate) fn per_second(&self) -> f64 {
        (ENDPOINTS * self.capacity.slots) as f64 / SERVICE.as_secs_f64()
    }

    /// Requests with all endpoints now.
    pub(crate) fn inflight(&self) -> usize {
        self.endpoints.iter().map(|endpoint| endpoint.inflight.load(Ordering::Relaxed)).sum()
    }

    /// Most requests that one endpoint had at a time.
    pub(crate) fn inflight_peak(&self) -> usize {
        self.endpoints
            .iter()
            .map(|endpoint| endpoint.inflight_peak.load(Ordering::Relaxed))
            .max()
            .unwrap_or(0)
    }
}

/// A request that is with an endpoint.
struct Present(Arc<Endpoint>);

impl Present {
    fn arrives(endpoint: &Arc<Endpoint>) -> Self {
        let inflight = endpoint.inflight.fetch_add(1, Ordering::Relaxed) + 1;
        endpoint.inflight_peak.fetch_max(inflight, Ordering::Relaxed);
        Self(Arc::clone(endpoint))
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.inflight.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn serve(listener: TcpListener, endpoint: Arc<Endpoint>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(serve_one(stream, Arc::clone(&endpoint)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_one(stream: TcpStream, endpoint: Arc<Endpoint>) {
    // A router that breaks off ends its connection only.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| answer(Arc::clone(&endpoint), request));
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

async fn answer(endpoint: Arc<Endpoint>, request: Request<Incoming>) -> anyhow::Result<Answer> {
    if request.method() == Method::GET {
        return Ok(Response::new(Full::default().boxed_unsync()));
    }
    let present = Present::arrives(&endpoint);
    let body = request.into_body().collect().await?.to_bytes();
    let asked: serde_json::Value = serde_json::from_slice(&body)?;
    let text = asked["messages"][0]["content"].as_str().context("a request without a text")?.to_owned();
    if asked["stream"].as_bool() == Some(true) {
        let (name, seconds) = text.split_once(' ').context("`NAME SECONDS`")?;
        return Ok(stream_of(name.to_owned(), seconds.parse()?, present));
    }
    let slot = endpoint.slots.acquire().await?;
    tokio::time::sleep(SERVICE).await;
    drop((slot, present));
    let said = serde_json::json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{
            "index": 0, "message": {"role": "assistant", "content": said_to(&text)}, "finish_reason": "stop",
        }],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
    });
    let response = Response::builder().header("content-type", "application/json");
    Ok(response.body(Full::new(Bytes::from(said.to_string())).boxed_unsync())?)
}

/// What the answer in one piece to `text` says.
pub(crate) fn said_to(text: &str) -> String {
    format!("you said {text}")
}

/// What event `n` of the stream called `name` says.
pub(crate) fn event_of(name: &str, n: u32) -> String {
    format!("{name}:{n} \u{65e5}\u{1f642} ")
}

/// A stream with one event a second, the first at once, that says what [`event_of`] has.
fn stream_of(name: String, seconds: u32, present: Present) -> Answer {
    let words = stream::unfold((0, name, present), move |(n, name, present)| async move {
        if n == seconds {
            return None;
        }
        if n > 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let event = event(&serde_json::json!({"content": event_of(&name, n)}), None);
        Some((event, (n + 1, name, present)))
    });
    let role = stream::iter([event(&serde_json::json!({"role": "assistant", "content": ""}), None)]);
    let end = stream::iter([event(&serde_json::json!({}), Some("stop")), "data: [DONE]\n\n".to_owned()]);
    let frames = role.chain(words).chain(end).map(|event| Ok(Frame::data(Bytes::from(event))));
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    let content_type = http::HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(http::header::CONTENT_TYPE, content_type);
    response
}

fn event(delta: &serde_json::Value, finish_reason: Option<&str>) -> String {
    let event = serde_json::json!({
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    });
    format!("data: {event}\n\n")
}

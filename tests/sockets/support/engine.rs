//! A serving engine of exactly known speed behind a real HTTP socket: slots, one prompt read at a time, generation that
//! slows down with what runs beside it.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// How fast it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Speed {
    /// Before the first token of any request.
    pub(crate) overhead: Duration,
    /// For each prompt token; prompts are read one at a time.
    pub(crate) per_prompt_token: Duration,
    /// Between two tokens of one answer alone.
    pub(crate) per_token: Duration,
    /// That times `1 + slowdown × (n − 1)` with n answers under way.
    pub(crate) slowdown: f64,
    /// Answers under way at once.
    pub(crate) slots: usize,
}

impl Speed {
    /// As fast as a test in real time wants it.
    pub(crate) const FAST: Self = Self {
        overhead: Duration::from_millis(2),
        per_prompt_token: Duration::from_micros(50),
        per_token: Duration::from_millis(1),
        slowdown: 0.0,
        slots: 2,
    };
}

/// Tokens that its chat template adds to a prompt.
pub(crate) const TEMPLATE_TOKENS: u64 = 20;

/// The engine. Dropping it closes everything.
pub(crate) struct Engine {
    addr: SocketAddr,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

struct State {
    speed: Speed,
    slots: Semaphore,
    prefill: tokio::sync::Mutex<()>,
    running: AtomicU32,
    /// Chats, each with its prompt and completion tokens.
    chats: Mutex<Vec<Chat>>,
    /// Whether `/props` tells the slots.
    tells_slots: bool,
    /// Tokens of a word from this chat on.
    tokens_per_word: fn(usize) -> u64,
}

/// A chat it was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Chat {
    /// The request.
    pub(crate) body: Value,
    /// Tokens of its prompt.
    pub(crate) prompt_tokens: u64,
    /// Tokens of its answer.
    pub(crate) completion_tokens: u64,
}

impl Engine {
    /// Listens on a free port of 127.0.0.1; a word is a token.
    pub(crate) async fn start(speed: Speed, tells_slots: bool) -> Self {
        Self::start_with(speed, tells_slots, |_| 1).await
    }

    /// The same, with tokens per word by the number of the chat.
    pub(crate) async fn start_with(
        speed: Speed,
        tells_slots: bool,
        tokens_per_word: fn(usize) -> u64,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let state = Arc::new(State {
            speed,
            slots: Semaphore::new(speed.slots),
            prefill: tokio::sync::Mutex::default(),
            running: AtomicU32::new(0),
            chats: Mutex::default(),
            tells_slots,
            tokens_per_word,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&state)));
        Self { addr, state, _tasks: tasks }
    }

    /// Its URL, as a configuration has it.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Chats so far.
    pub(crate) fn chats(&self) -> Vec<Chat> {
        self.state.chats.lock().unwrap().clone()
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let state = Arc::clone(&state);
        connections.spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&state), request));
            // An error is the client's close.
            _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

type Body = BoxBody<Bytes, Infallible>;

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    if request.method() != Method::POST {
        let known = path == "/props" && state.tells_slots;
        let body = if known { json!({"total_slots": state.speed.slots}).to_string() } else { String::new() };
        let status = if known { 200 } else { 404 };
        return Ok(Response::builder().status(status).body(Full::new(body.into()).boxed()).unwrap());
    }
    let body: Value =
        serde_json::from_slice(&request.into_body().collect().await.unwrap().to_bytes()).unwrap();
    let (events, receiver) = mpsc::unbounded_channel();
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
        let event: String = receiver.recv().await?;
        Some((Ok(Frame::data(Bytes::from(event))), receiver))
    });
    tokio::spawn(generate(state, body, events));
    let answer = Response::builder().header("content-type", "text/event-stream");
    Ok(answer.body(StreamBody::new(stream).boxed()).unwrap())
}

async fn generate(state: Arc<State>, body: Value, events: mpsc::UnboundedSender<String>) {
    let words = body["messages"][0]["content"].as_str().unwrap().split_whitespace().count() as u64;
    let completion_tokens = body["max_tokens"].as_u64().unwrap();
    let prompt_tokens = {
        let mut chats = state.chats.lock().unwrap();
        let prompt_tokens = TEMPLATE_TOKENS + words * (state.tokens_per_word)(chats.len());
        chats.push(Chat { body, prompt_tokens, completion_tokens });
        prompt_tokens
    };
    let speed = &state.speed;
    let _slot = state.slots.acquire().await.unwrap();
    // Waits end on whole ticks of the clock; later waits count from when they should have ended.
    let mut at = {
        let _turn = state.prefill.lock().await;
        let prefill = speed.per_prompt_token * u32::try_from(prompt_tokens).unwrap();
        let at = Instant::now() + speed.overhead + prefill;
        sleep_until(at).await;
        at
    };
    let _running = Running::begin(&state.running);
    for n in 0..completion_tokens {
        if n > 0 {
            let beside = f64::from(state.running.load(Ordering::Relaxed) - 1);
            at += speed.per_token.mul_f64(1.0 + speed.slowdown * beside);
            sleep_until(at).await;
        }
        let event = json!({"choices": [{"index": 0, "delta": {"content": "x"}}]});
        // A client that left stops it, as servers do.
        if events.send(format!("data: {event}\n\n")).is_err() {
            return;
        }
    }
    let usage = json!({"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}});
    _ = events.send(format!("data: {usage}\n\ndata: [DONE]\n\n"));
}

/// An answer under way.
struct Running<'a>(&'a AtomicU32);

impl<'a> Running<'a> {
    fn begin(running: &'a AtomicU32) -> Self {
        running.fetch_add(1, Ordering::Relaxed);
        Self(running)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

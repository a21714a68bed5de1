//! The access log: one line per request of a client, written when the last byte of its answer has passed, or was not
//! wanted any more. No prompt, no answer, no key, no query.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::Serialize;
use tokio::time::Instant;

use super::respond::{ResponseBody, X_CEMA_ATTEMPTS, X_CEMA_DESTINATION};
use super::stack::Answers;
use crate::telemetry::json_log::JsonLog;

/// Longest path that is written down; of longer ones their beginning.
const PATH_CHARS_MAX: usize = 256;

/// Stands in the place of a status where the client left before there was an answer, as elsewhere.
const CLIENT_GONE: u16 = 499;

/// With a request whose handler is to leave an [`AccessNote`].
#[derive(Debug, Clone, Copy)]
pub(super) struct AccessWanted;

/// What a handler knows of a request that its answer does not show.
#[derive(Debug, Clone)]
pub(super) struct AccessNote {
    /// Name of the client's key.
    pub(super) key: Option<Arc<str>>,
    /// The model as the client named it.
    pub(super) model: Arc<str>,
    /// Whether it asked for a stream.
    pub(super) stream: bool,
}

/// Has every answer of `A` written down.
#[derive(Debug, Clone)]
pub struct Logged<A> {
    inner: A,
    log: JsonLog,
}

impl<A> Logged<A> {
    /// Writes to `log`, unless that is off.
    #[must_use]
    pub const fn new(inner: A, log: JsonLog) -> Self {
        Self { inner, log }
    }
}

impl<A: Answers + Sync> Answers for Logged<A> {
    async fn answer(self, mut request: Request<Incoming>, id: HeaderValue) -> Response<ResponseBody> {
        if !self.log.is_on() {
            return self.inner.answer(request, id).await;
        }
        request.extensions_mut().insert(AccessWanted);
        let line = Line::new(&request, &id);
        let mut pending = Pending { log: self.log, line: Some(line), began: Instant::now() };
        let mut response = self.inner.answer(request, id).await;
        if let Some(line) = &mut pending.line {
            line.head_s = Some(pending.began.elapsed().as_secs_f64());
            line.describe(&response);
        }
        response.extensions_mut().remove::<AccessNote>();
        response.map(|body| LoggedBody { body, pending }.boxed_unsync())
    }
}

/// One line of the log.
#[derive(Debug, Serialize)]
struct Line {
    kind: &'static str,
    id: String,
    method: String,
    path: String,
    bytes_in: Option<u64>,
    status: u16,
    key: Option<Arc<str>>,
    model: Option<Arc<str>>,
    stream: bool,
    destination: Option<String>,
    attempts: Option<u32>,
    head_s: Option<f64>,
    /// Until the last byte.
    seconds: f64,
    bytes_out: u64,
    /// Whether all of it was taken.
    whole: bool,
}

impl Line {
    fn new(request: &Request<Incoming>, id: &HeaderValue) -> Self {
        let length = request.headers().get(header::CONTENT_LENGTH);
        Self {
            kind: "access",
            id: id.to_str().unwrap_or_default().to_owned(),
            method: request.method().as_str().to_owned(),
            path: request.uri().path().chars().take(PATH_CHARS_MAX).collect(),
            bytes_in: length.and_then(|value| value.to_str().ok()?.parse().ok()),
            status: CLIENT_GONE,
            key: None,
            model: None,
            stream: false,
            destination: None,
            attempts: None,
            head_s: None,
            seconds: 0.0,
            bytes_out: 0,
            whole: false,
        }
    }

    fn describe(&mut self, response: &Response<ResponseBody>) {
        let header = |name| response.headers().get(name)?.to_str().ok();
        self.status = response.status().as_u16();
        self.whole = response.body().is_end_stream();
        self.destination = header(X_CEMA_DESTINATION).map(str::to_owned);
        self.attempts = header(X_CEMA_ATTEMPTS).and_then(|value| value.parse().ok());
        if let Some(AccessNote { key, model, stream }) = response.extensions().get::<AccessNote>() {
            (self.key, self.model, self.stream) = (key.clone(), Some(Arc::clone(model)), *stream);
        }
    }
}

/// A line that is written when this is dropped.
struct Pending {
    log: JsonLog,
    /// Taken at the end.
    line: Option<Line>,
    began: Instant,
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(mut line) = self.line.take() {
            line.seconds = self.began.elapsed().as_secs_f64();
            self.log.record(move || line);
        }
    }
}

/// An answer's body on its way, counted.
struct LoggedBody {
    body: ResponseBody,
    pending: Pending,
}

impl Body for LoggedBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let is_over = self.body.is_end_stream();
        if let Some(line) = &mut self.pending.line {
            match &polled {
                Poll::Ready(Some(Ok(frame))) => {
                    line.bytes_out += frame.data_ref().map_or(0, |data| data.len() as u64);
                    line.whole |= is_over;
                }
                Poll::Ready(None) => line.whole = true,
                Poll::Ready(Some(Err(_))) | Poll::Pending => {}
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

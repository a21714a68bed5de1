//! The way back of an answer under way: a body that passes bytes on as they come and keeps the books.
//!
//! It holds no buffer of its own beyond what was held before commitment, spawns nothing and copies
//! nothing: a slow client stops the reading, and TCP stops the endpoint.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep_until};

use super::attempt::Streaming;
use super::record::{Outcome, Record};
use crate::endpoint::Timeouts;
use crate::endpoint::echo::ModelEcho;
use crate::endpoint::meter::StreamMeter;
use crate::scheduler::Lease;
use crate::units::Tokens;

/// Sent while a committed stream has no content: keeps clients and proxies from giving up. One line, no
/// blank line after it: some clients take `comment + blank line` for an event.
const PING: &[u8] = b": ping\n";
/// What a client reads when a committed stream breaks.
const BROKEN: &str = "the endpoint broke off the stream";
const STALLED: &str = "the endpoint stopped sending";

/// The body could not be completed; the connection is aborted so that the client notices.
#[derive(Debug, thiserror::Error)]
#[error("the answer was cut: {0}")]
pub struct Cut(&'static str);

/// The body of an answer under way.
#[derive(Debug)]
pub struct RelayBody {
    stream: Streaming,
    timer: Pin<Box<Sleep>>,
    limits: Timeouts,
    state: State,
    echo: Option<ModelEcho>,
    books: Option<Books>,
}

/// What must be closed when the answer is over.
#[derive(Debug)]
pub(super) struct Books {
    pub(super) record: Record,
    pub(super) _lease: Lease,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Passing,
    /// The error event is out; the abort comes next.
    Cutting(&'static str),
    Over,
}

impl RelayBody {
    pub(super) fn new(stream: Streaming, echo: Option<ModelEcho>, books: Books, limits: Timeouts) -> Self {
        let timer = Box::pin(sleep_until(Instant::now() + limits.idle));
        let mut body = Self { stream, timer, limits, state: State::Passing, echo, books: Some(books) };
        body.rearm();
        body
    }

    fn has_content(&self) -> bool {
        self.stream.meter.as_ref().is_none_or(|meter| meter.has_content())
    }

    /// The next moment at which silence means something: a stall, or the time for a ping.
    fn rearm(&mut self) {
        let now = Instant::now();
        let at = if self.has_content() {
            now + self.limits.idle
        } else {
            (now + self.limits.commit_after).min(self.stream.began + self.limits.first_token)
        };
        self.timer.as_mut().reset(at);
    }

    fn pass(&mut self, data: Bytes) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let data = match &mut self.echo {
            Some(echo) => echo.push(&data),
            None => data,
        };
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn note_first_content(&mut self) {
        if self.has_content()
            && let Some(books) = &mut self.books
        {
            books.record.first_content();
        }
    }

    /// Ends a committed stream that failed: an error event on a fresh line, then an aborted body.
    fn cut(&mut self, why: &'static str, outcome: Outcome) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        self.close_books(outcome);
        if self.stream.meter.is_none() {
            self.state = State::Over;
            return Poll::Ready(Some(Err(Cut(why))));
        }
        self.state = State::Cutting(why);
        let fresh_line = if self.is_between_events() { "" } else { "\n\n" };
        let event = serde_json::json!({"error": {
            "message": why, "type": "upstream_error", "param": null, "code": "stream_interrupted",
        }});
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(format!("{fresh_line}data: {event}\n\n"))))))
    }

    fn close_books(&mut self, outcome: Outcome) {
        if let Some(mut books) = self.books.take() {
            if let Some(meter) = &self.stream.meter {
                books.record.count(meter.usage(), Some(Tokens(meter.completion_tokens() as f64)));
            }
            books.record.end(outcome);
        }
    }

    /// The stream ended as HTTP has it; an error event in it makes it a failure all the same.
    fn ended(&mut self) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if let Some(meter) = &mut self.stream.meter {
            meter.finish();
        }
        let is_error = self.stream.meter.as_ref().is_some_and(|meter| meter.error().is_some());
        self.close_books(if is_error { Outcome::Failed } else { Outcome::Ok });
        self.state = State::Over;
        let tail = self.echo.as_mut().map(ModelEcho::finish).filter(|tail| !tail.is_empty());
        Poll::Ready(tail.map(|tail| Ok(Frame::data(tail))))
    }

    fn is_between_events(&self) -> bool {
        self.stream.meter.as_ref().is_some_and(StreamMeter::is_between_events)
    }

    fn silent(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if self.timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        let waits_for_content = !self.has_content();
        if waits_for_content && Instant::now() < self.stream.began + self.limits.first_token {
            self.rearm();
            // Polled once more so that the timer wakes this task.
            let _ = self.timer.as_mut().poll(cx);
            return if self.is_between_events() {
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(PING)))))
            } else {
                Poll::Pending
            };
        }
        self.cut(STALLED, Outcome::Failed)
    }
}

impl Body for RelayBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let this = &mut *self;
        match this.state {
            State::Over => return Poll::Ready(None),
            State::Cutting(why) => {
                this.state = State::Over;
                return Poll::Ready(Some(Err(Cut(why))));
            }
            State::Passing => {}
        }
        if !this.stream.held.is_empty() {
            this.note_first_content();
            let held = std::mem::take(&mut this.stream.held).freeze();
            return this.pass(held);
        }
        loop {
            match Pin::new(&mut this.stream.rest).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    let Ok(data) = frame.into_data() else { continue };
                    if let Some(meter) = &mut this.stream.meter {
                        meter.push(&data);
                    }
                    this.note_first_content();
                    this.rearm();
                    return this.pass(data);
                }
                Poll::Ready(Some(Err(_))) => return this.cut(BROKEN, Outcome::Failed),
                Poll::Ready(None) => return this.ended(),
                Poll::Pending => return this.silent(cx),
            }
        }
    }
}

impl Drop for RelayBody {
    /// The client left. After `[DONE]` it has all it wanted.
    fn drop(&mut self) {
        let is_complete = self.stream.meter.as_ref().is_some_and(|meter| meter.is_done());
        self.close_books(if is_complete { Outcome::Ok } else { Outcome::ClientGone });
    }
}

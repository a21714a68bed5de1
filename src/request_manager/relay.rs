//! The way back of an answer under way: a body that passes bytes on as they come and keeps the books.
//!
//! It holds no buffer of its own beyond what was held before commitment, spawns nothing and copies
//! nothing: a slow client stops the reading, and TCP stops the endpoint.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::attempt::{Rest, Streaming};
use super::failure::{Failure, is_about_the_router};
use super::record::{Outcome, Record};
use crate::endpoint::answer::Accounts;
use crate::endpoint::echo::ModelEcho;
use crate::endpoint::meter::StreamMeter;
use crate::endpoint::upstream_error::UpstreamError;
use crate::endpoint::whole_lines::WholeLines;
use crate::profiler::node::{UnderWay, Verdict};
use crate::scheduler::Lease;
use crate::units::Tokens;

/// Sent while a committed stream has no content: keeps clients and proxies from giving up. One line, no
/// blank line after it: some clients take `comment + blank line` for an event.
const PING: &[u8] = b": ping\n";
/// Time between the error event of a broken stream and the abort, in which the event gets on its way: an
/// abort throws away what has not been written.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// What a client reads when a committed stream breaks.
const BROKEN: &str = "the endpoint broke off the stream";
const ENDED_EARLY: &str = "the endpoint ended the stream before its answer was complete";
const STALLED: &str = "the endpoint stopped sending";
const REFUSED: &str = "the endpoint failed";
const STOPPED: &str = "the router is stopping";

/// The body could not be completed; the connection is aborted so that the client notices.
#[derive(Debug, thiserror::Error)]
#[error("the answer was cut: {0}")]
pub struct Cut(&'static str);

/// The body of an answer under way.
#[derive(Debug)]
pub struct RelayBody {
    stream: Streaming,
    timer: Pin<Box<Sleep>>,
    /// When silence means something; the timer goes off then or before.
    due: Instant,
    state: State,
    passing: Passing,
    books: Option<Books>,
    /// The end of the time that the router gives answers when it stops.
    give_up: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// How bytes go on to the client.
#[derive(Debug)]
enum Passing {
    /// As they come: no event stream.
    Plain,
    /// In whole lines.
    Lines(WholeLines),
    /// In whole lines with another model name.
    Echo(ModelEcho),
}

impl Passing {
    fn push(&mut self, data: Bytes) -> Bytes {
        match self {
            Self::Plain => data,
            Self::Lines(lines) => lines.push(data),
            Self::Echo(echo) => echo.push(&data),
        }
    }

    fn finish(&mut self) -> Bytes {
        match self {
            Self::Plain => Bytes::new(),
            Self::Lines(lines) => lines.finish(),
            Self::Echo(echo) => echo.finish(),
        }
    }

    const fn is_events(&self) -> bool {
        !matches!(self, Self::Plain)
    }
}

/// What must be closed when the answer is over.
#[derive(Debug)]
pub(super) struct Books {
    pub(super) record: Record,
    pub(super) under_way: UnderWay,
    pub(super) lease: Lease,
}

/// The in-band error that ends a committed stream.
struct LastWords {
    message: String,
    kind: String,
    param: Option<String>,
    code: Option<String>,
}

impl LastWords {
    fn upstream(message: impl Into<String>) -> Self {
        let (message, kind) = (message.into(), "upstream_error".to_owned());
        Self { message, kind, param: None, code: Some("stream_interrupted".to_owned()) }
    }

    /// What an endpoint refused the request with, as a status would have told it: clients know a context
    /// overflow by its code and words.
    fn of(failure: &Failure) -> Self {
        match failure {
            Failure::Answered { error, .. } if !is_about_the_router(error.status) => {
                let UpstreamError { message, kind, param, code, .. } = error.clone();
                Self { message, kind, param, code }
            }
            failure => Self::upstream(format!("{REFUSED}: {}", failure.kind())),
        }
    }

    fn to_event(&self) -> String {
        let Self { message, kind, param, code } = self;
        let error =
            serde_json::json!({"error": {"message": message, "type": kind, "param": param, "code": code}});
        format!("data: {error}\n\n")
    }
}

#[derive(Debug, Clone, Copy)]
enum State {
    Passing,
    /// The error event is out; the abort comes next.
    Cutting(&'static str),
    Over,
}

impl RelayBody {
    /// `echo` is the model name that events are to show; `None` = as the endpoint wrote it. `give_up` ends it when
    /// the router has no more time.
    pub(super) fn new(
        stream: Streaming,
        echo: Option<Arc<str>>,
        books: Books,
        give_up: CancellationToken,
    ) -> Self {
        let passing = match (&stream.meter, echo) {
            (None, _) => Passing::Plain,
            (Some(_), None) => Passing::Lines(WholeLines::default()),
            (Some(_), Some(model)) => Passing::Echo(ModelEcho::new(model)),
        };
        let due = Instant::now() + stream.limits.idle;
        let timer = Box::pin(sleep_until(due));
        let state = State::Passing;
        // A token of its own: streams do not meet at its lock.
        let give_up = Box::pin(give_up.child_token().cancelled_owned());
        let mut body = Self { stream, timer, due, state, passing, books: Some(books), give_up };
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
            now + self.stream.limits.idle
        } else {
            (now + self.stream.limits.commit_after).min(self.stream.began + self.stream.limits.first_token)
        };
        self.due = at;
        // A timer that goes off too early is set again then: cheaper than at every piece of a stream.
        if at < self.timer.deadline() {
            self.timer.as_mut().reset(at);
        }
    }

    /// More of the stream has come.
    fn take(&mut self, data: Bytes) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if let Some(meter) = &mut self.stream.meter {
            meter.push(&data);
        }
        self.note_first_content();
        self.rearm();
        let passed = self.pass(data);
        Poll::Ready(Some(Ok(Frame::data(passed))))
    }

    fn pass(&mut self, data: Bytes) -> Bytes {
        let lines = self.passing.push(data);
        if self.passing.is_events() { self.stream.filter.push(lines) } else { lines }
    }

    fn pass_the_rest(&mut self) -> Bytes {
        let lines = self.passing.finish();
        if !self.passing.is_events() {
            return lines;
        }
        let (passed, open) = (self.stream.filter.push(lines), self.stream.filter.finish());
        if open.is_empty() { passed } else { [passed, open].concat().into() }
    }

    fn note_first_content(&mut self) {
        if self.has_content()
            && let Some(books) = &mut self.books
        {
            if books.record.first_content() {
                books.lease.answering();
            }
            if let Some(meter) = &self.stream.meter {
                books.record.events(meter.content_events());
            }
            books.under_way.answering();
        }
    }

    /// Ends a committed stream that failed: an error event, then an aborted body. After `[DONE]` nothing was to
    /// come any more, and nothing is wrong.
    fn cut(&mut self, why: &'static str) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if self.stream.meter.as_ref().is_some_and(StreamMeter::is_done) {
            self.stream.rest = Rest::Nothing;
            return self.ended();
        }
        self.cut_with(why, Outcome::Failed, &LastWords::upstream(why))
    }

    /// The same where not even a good head came.
    fn refused(&mut self, failure: &Failure) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if let Some(books) = &mut self.books {
            books.under_way.judge(failure.verdict());
            books.record.failed_attempt(failure.reason());
        }
        self.cut_with(REFUSED, Outcome::Failed, &LastWords::of(failure))
    }

    /// The router ends before the answer does.
    fn stopped(&mut self) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let kind = "server_error".to_owned();
        let words = LastWords { kind, ..LastWords::upstream("the router is stopping: try again") };
        self.cut_with(STOPPED, Outcome::Stopped, &words)
    }

    fn cut_with(
        &mut self,
        why: &'static str,
        outcome: Outcome,
        words: &LastWords,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if let (Outcome::Failed, Some(books)) = (outcome, &self.books) {
            books.record.warn_of_cut(why);
        }
        self.close_books(outcome);
        self.stream.rest = Rest::Nothing;
        if self.stream.meter.is_none() {
            self.state = State::Over;
            return Poll::Ready(Some(Err(Cut(why))));
        }
        self.timer.as_mut().reset(Instant::now() + LAST_WORDS);
        self.state = State::Cutting(why);
        let fresh_line = self.stream.filter.fresh_line();
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(format!("{fresh_line}{}", words.to_event()))))))
    }

    fn close_books(&mut self, outcome: Outcome) {
        if let Some(mut books) = self.books.take() {
            if let Some(meter) = &self.stream.meter {
                let accounts = Accounts { usage: meter.usage(), timings: meter.timings() };
                books.record.count(accounts, Some(Tokens(meter.completion_tokens() as f64)));
            }
            match outcome {
                Outcome::Ok => books.under_way.judge(Verdict::Fine),
                Outcome::Failed => books.under_way.judge(Verdict::Failed),
                // That says nothing of the endpoint.
                Outcome::ClientGone | Outcome::Rejected | Outcome::Stopped => {}
            }
            books.record.end(outcome);
        }
    }

    /// The stream ended as HTTP has it. An error event in it makes it a failure all the same, and so does
    /// an answer that is not complete: that is what proxies make of a server that died.
    fn ended(&mut self) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let mut outcome = Outcome::Ok;
        if let Some(meter) = &mut self.stream.meter {
            meter.finish();
            if meter.error().is_some() {
                outcome = Outcome::Failed;
            } else if !meter.is_done() && !meter.is_finished() {
                return self.cut(ENDED_EARLY);
            }
        }
        self.close_books(outcome);
        self.state = State::Over;
        let tail = Some(self.pass_the_rest()).filter(|tail| !tail.is_empty());
        Poll::Ready(tail.map(|tail| Ok(Frame::data(tail))))
    }

    /// Whether a comment may be sent now: outside of events whose start the client has.
    fn is_between_events(&self) -> bool {
        self.stream.meter.as_ref().is_some_and(StreamMeter::is_between_events)
    }

    /// Nothing has come for now, as after every piece of a stream: the time to look whether it is to go on.
    fn waits(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let is_done = self.stream.meter.as_ref().is_some_and(StreamMeter::is_done);
        if !is_done && self.give_up.as_mut().poll(cx).is_ready() {
            return self.stopped();
        }
        self.silent(cx)
    }

    fn silent(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        ready!(self.timer.as_mut().poll(cx));
        if Instant::now() < self.due {
            self.timer.as_mut().reset(self.due);
            ready!(self.timer.as_mut().poll(cx));
        }
        let waits_for_content = !self.has_content();
        if waits_for_content && Instant::now() < self.stream.began + self.stream.limits.first_token {
            self.rearm();
            self.timer.as_mut().reset(self.due);
            // Polled once more so that the timer wakes this task.
            let _ = self.timer.as_mut().poll(cx);
            return if self.is_between_events() {
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(PING)))))
            } else {
                Poll::Pending
            };
        }
        self.cut(STALLED)
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
                ready!(this.timer.as_mut().poll(cx));
                this.state = State::Over;
                return Poll::Ready(Some(Err(Cut(why))));
            }
            State::Passing => {}
        }
        if !this.stream.held.is_empty() {
            this.note_first_content();
            let held = std::mem::take(&mut this.stream.held).freeze();
            return Poll::Ready(Some(Ok(Frame::data(this.pass(held)))));
        }
        loop {
            match &mut this.stream.rest {
                Rest::Head(head) => match head.as_mut().poll(cx) {
                    Poll::Ready(Ok(body)) => this.stream.rest = Rest::Body(body),
                    Poll::Ready(Err(failure)) => return this.refused(&failure),
                    Poll::Pending => return this.waits(cx),
                },
                Rest::Body(body) => match Pin::new(body).poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => {
                        let Ok(data) = frame.into_data() else { continue };
                        return this.take(data);
                    }
                    Poll::Ready(Some(Err(_))) => return this.cut(BROKEN),
                    Poll::Ready(None) => return this.ended(),
                    Poll::Pending => return this.waits(cx),
                },
                Rest::Nothing => return Poll::Ready(None),
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

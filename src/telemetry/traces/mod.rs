//! Traces of requests for an OpenTelemetry collector.
//!
//! A request that is sampled notes its spans and hands them over together when it is over. The hand-over never waits: a
//! bounded queue takes them, and what does not fit is dropped and counted. Whoever holds the other end sends them
//! ([`otlp`] says in which form).

mod context;
pub mod otlp;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::Instant;

use context::TraceContext;

/// Whether this binary can export traces: cargo feature `otlp`.
pub const IS_BUILT_IN: bool = cfg!(feature = "otlp");

/// Traces that may wait to be sent.
const QUEUE_MAX: usize = 1_024;
/// Spans of one trace; a request has about six.
const SPANS_MAX: usize = 64;

/// The way traces go; clones share it. One that is off takes none.
#[derive(Debug, Clone, Default)]
pub struct Tracer {
    on: Option<Arc<Queue>>,
}

#[derive(Debug)]
struct Queue {
    traces: Sender<Vec<Span>>,
    /// Share of requests that are traced where their client does not say, 0 to 1.
    sample: f64,
    dropped: IntCounter,
}

/// Where finished traces come out.
#[derive(Debug)]
pub struct TraceInbox {
    /// The spans of one request each.
    pub traces: Receiver<Vec<Span>>,
    /// Spans that a collector took.
    pub exported: IntCounter,
    /// Spans that could not be sent.
    pub failed: IntCounter,
}

/// What a span is about, as OTLP numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// Work within the router.
    Internal = 1,
    /// A client's request.
    Server = 2,
    /// A request to an endpoint.
    Client = 3,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Words.
    Text(Cow<'static, str>),
    /// A count.
    Int(i64),
    /// A figure.
    Double(f64),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

/// Attributes by name.
pub type Attributes = Vec<(&'static str, Value)>;

/// One finished span.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    trace_id: u128,
    span_id: u64,
    parent: Option<u64>,
    name: String,
    kind: SpanKind,
    start: SystemTime,
    end: SystemTime,
    attributes: Attributes,
    /// What went wrong, in a word.
    error: Option<&'static str>,
}

/// Something the router did for a request.
#[derive(Debug)]
pub struct Part {
    /// Its name.
    pub name: &'static str,
    /// When it began.
    pub from: Instant,
    /// When it was over.
    pub to: Instant,
    /// What is known of it.
    pub attributes: Attributes,
}

/// What a span was and what came of it.
#[derive(Debug)]
pub struct Ending {
    /// Its name.
    pub name: String,
    /// What is known of it.
    pub attributes: Attributes,
    /// What went wrong, in a word.
    pub error: Option<&'static str>,
}

/// The trace of one request. Dropped without an end, it was never there.
#[derive(Debug)]
pub struct RequestTrace {
    queue: Arc<Queue>,
    context: TraceContext,
    /// The span of the request itself.
    root: u64,
    began: (SystemTime, Instant),
    /// The call under way: its span and when it began.
    call: Option<(u64, Instant)>,
    spans: Vec<Span>,
}

impl Tracer {
    /// A tracer of `sample` (0 to 1) of all requests whose clients do not say whether they are traced.
    ///
    /// # Errors
    /// When its metrics are registered already.
    pub fn start(sample: f64, registry: &Registry) -> prometheus::Result<(Self, TraceInbox)> {
        let spans = IntCounterVec::new(
            Opts::new("cema_trace_spans_total", "Spans of traced requests by what became of them."),
            &["outcome"],
        )?;
        registry.register(Box::new(spans.clone()))?;
        let [exported, failed, dropped] =
            ["exported", "failed", "dropped"].map(|outcome| spans.with_label_values(&[outcome]));
        let (sender, traces) = channel(QUEUE_MAX);
        let queue = Queue { traces: sender, sample, dropped };
        Ok((Self { on: Some(Arc::new(queue)) }, TraceInbox { traces, exported, failed }))
    }

    /// Begins the trace of a request that came with `traceparent`; `None` where it is not sampled.
    #[must_use]
    pub fn begin<'h>(&self, traceparent: impl FnOnce() -> Option<&'h [u8]>) -> Option<RequestTrace> {
        let queue = self.on.as_ref().filter(|_| IS_BUILT_IN)?;
        let given = traceparent().and_then(TraceContext::parse);
        let is_sampled = given.map_or_else(|| rand::random::<f64>() < queue.sample, |given| given.is_sampled);
        is_sampled.then(|| RequestTrace {
            queue: Arc::clone(queue),
            context: given.unwrap_or_else(TraceContext::new),
            root: context::span_id(),
            began: (SystemTime::now(), Instant::now()),
            call: None,
            spans: Vec::new(),
        })
    }
}

impl RequestTrace {
    /// When it began.
    #[must_use]
    pub const fn began(&self) -> Instant {
        self.began.1
    }

    /// A finished part of the request, done by the router, with parts of its own.
    pub fn part(&mut self, part: Part, inner: impl IntoIterator<Item = Part>) {
        let span_id = context::span_id();
        let parts = [(span_id, self.root, part)].into_iter();
        for (id, parent, part) in
            parts.chain(inner.into_iter().map(|part| (context::span_id(), span_id, part)))
        {
            let Part { name, from, to, attributes } = part;
            let ending = Ending { name: name.to_owned(), attributes, error: None };
            self.note((id, Some(parent)), SpanKind::Internal, (from, to), ending);
        }
    }

    /// A call to an endpoint begins: the `traceparent` it is sent with.
    pub fn begin_call(&mut self, at: Instant) -> String {
        let span_id = context::span_id();
        self.call = Some((span_id, at));
        self.context.traceparent(span_id)
    }

    /// The call under way is over, if there is one.
    pub fn end_call(&mut self, at: Instant, ending: impl FnOnce() -> Ending) {
        if let Some((span_id, from)) = self.call.take() {
            self.note((span_id, Some(self.root)), SpanKind::Client, (from, at), ending());
        }
    }

    /// The request is over; its spans are handed over.
    pub fn end(mut self, at: Instant, ending: Ending) {
        let ids = (self.root, self.context.parent);
        let began = self.began.1;
        // The request itself has room always.
        self.spans.truncate(SPANS_MAX - 1);
        self.note(ids, SpanKind::Server, (began, at), ending);
        let n_spans = self.spans.len() as u64;
        if self.queue.traces.try_send(std::mem::take(&mut self.spans)).is_err() {
            self.queue.dropped.inc_by(n_spans);
        }
    }

    fn note(
        &mut self,
        (span_id, parent): (u64, Option<u64>),
        kind: SpanKind,
        (from, to): (Instant, Instant),
        Ending { name, attributes, error }: Ending,
    ) {
        if self.spans.len() < SPANS_MAX {
            let (trace_id, start, end) = (self.context.trace_id, self.time(from), self.time(to));
            self.spans.push(Span { trace_id, span_id, parent, name, kind, start, end, attributes, error });
        }
    }

    /// The time of day at `at`.
    fn time(&self, at: Instant) -> SystemTime {
        let (system, instant) = self.began;
        match at.checked_duration_since(instant) {
            Some(since) => system + since,
            None => system - instant.duration_since(at),
        }
    }
}

fn unix_nanos(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn ending(name: &str) -> Ending {
        Ending { name: name.to_owned(), attributes: Vec::new(), error: None }
    }

    #[tokio::test]
    async fn a_trace_is_that_of_its_client_and_calls_continue_it() {
        let (tracer, mut inbox) = Tracer::start(0.0, &Registry::new()).unwrap();
        let mut trace = tracer.begin(|| Some(PARENT.as_bytes())).unwrap();
        let now = Instant::now();
        let part =
            |name, s| Part { name, from: now, to: now + Duration::from_secs(s), attributes: Vec::new() };
        trace.part(part("plan", 1), [part("window", 0)]);
        let sent = trace.begin_call(now);
        trace.end_call(now, || ending("chat m"));
        trace.end(now, ending("chat auto"));
        let spans = inbox.traces.recv().await.unwrap();
        let [plan, window, call, root] = spans.as_slice() else { panic!("{spans:?}") };
        assert!(spans.iter().all(|span| span.trace_id == 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736));
        assert_eq!((root.kind, root.parent), (SpanKind::Server, Some(0x00f0_67aa_0ba9_02b7)));
        assert_eq!((plan.kind, plan.parent), (SpanKind::Internal, Some(root.span_id)));
        assert_eq!((window.kind, window.parent), (SpanKind::Internal, Some(plan.span_id)));
        assert_eq!((call.kind, call.parent), (SpanKind::Client, Some(root.span_id)));
        assert_eq!(plan.end.duration_since(plan.start).unwrap(), Duration::from_secs(1));
        assert_eq!(sent, format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{:016x}-01", call.span_id));
    }

    #[test]
    fn clients_decide_and_otherwise_the_share() {
        let traced = |sample: f64, given: Option<&str>| {
            let (tracer, _inbox) = Tracer::start(sample, &Registry::new()).unwrap();
            tracer.begin(|| given.map(str::as_bytes)).is_some()
        };
        assert!(traced(0.0, Some(PARENT)) && !traced(1.0, Some(&PARENT.replace("-01", "-00"))));
        assert!(traced(1.0, None) && !traced(0.0, None));
        // What is no trace context is none.
        assert!(traced(1.0, Some("00-1-2-00")) && !traced(0.0, Some("00-1-2-01")));
        assert!(Tracer::default().begin(|| Some(PARENT.as_bytes())).is_none());
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let registry = Registry::new();
        let (tracer, _inbox) = Tracer::start(1.0, &registry).unwrap();
        for _ in 0..QUEUE_MAX + 3 {
            tracer.begin(|| None).unwrap().end(Instant::now(), ending("chat m"));
        }
        let families = registry.gather();
        let dropped =
            families[0].get_metric().iter().find(|m| m.get_label()[0].value() == "dropped").unwrap();
        assert!((dropped.get_counter().get_value() - 3.0).abs() < 1e-9);
    }

    #[tokio::test]
    async fn a_trace_is_bounded_and_keeps_its_request() {
        let (tracer, mut inbox) = Tracer::start(1.0, &Registry::new()).unwrap();
        let mut trace = tracer.begin(|| None).unwrap();
        let now = Instant::now();
        let part = || Part { name: "plan", from: now, to: now, attributes: Vec::new() };
        (0..100).for_each(|_| trace.part(part(), []));
        trace.end(now, ending("chat m"));
        let spans = inbox.traces.recv().await.unwrap();
        assert_eq!((spans.len(), spans[SPANS_MAX - 1].kind), (SPANS_MAX, SpanKind::Server));
    }
}

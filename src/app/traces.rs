//! Sends traces to a collector: in batches, from a task of its own, without waiting for anything else.

use std::time::Duration;

use anyhow::Context as _;
use prometheus::Registry;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::TracingConfig;
use crate::endpoint::page::PageClient;
use crate::telemetry::traces::{Span, TraceInbox, Tracer, otlp};

/// Spans sent at once.
const BATCH_MAX: usize = 512;
/// Longest wait for a batch to fill.
const BATCH_WAIT: Duration = Duration::from_secs(1);
/// Time for a collector to take a batch; what it does not take is lost.
const POST_LIMIT: Duration = Duration::from_secs(5);
/// The same for the last one.
const LAST_POST_LIMIT: Duration = Duration::from_secs(1);

/// The other end of a tracer.
pub(super) struct Exporter {
    params: TracingConfig,
    client: PageClient,
    inbox: TraceInbox,
    /// Whether the last batch was lost, which is said once.
    is_failing: bool,
}

/// A tracer and what sends its traces; one that is off where none are configured.
pub(super) fn start(
    params: Option<&TracingConfig>,
    registry: &Registry,
) -> anyhow::Result<(Tracer, Option<Exporter>)> {
    let Some(params) = params.cloned() else { return Ok((Tracer::default(), None)) };
    let client =
        PageClient::new([&params.traces]).context("cannot set up TLS for `tracing.otlp_endpoint`")?;
    let (tracer, inbox) = Tracer::start(params.sample, registry)?;
    info!(collector = %params.traces, sample = params.sample, "traces are on");
    Ok((tracer, Some(Exporter { params, client, inbox, is_failing: false })))
}

impl Exporter {
    /// Sends what comes until `end`, and then what is left.
    pub(super) async fn run(mut self, end: CancellationToken) {
        while let Some(spans) = self.batch(&end).await {
            let limit = if end.is_cancelled() { LAST_POST_LIMIT } else { POST_LIMIT };
            self.send(spans, limit).await;
        }
    }

    /// The next batch; `None` at the end.
    async fn batch(&mut self, end: &CancellationToken) -> Option<Vec<Span>> {
        let traces = &mut self.inbox.traces;
        let mut spans = tokio::select! {
            first = traces.recv() => first?,
            () = end.cancelled() => traces.try_recv().ok()?,
        };
        let until = Instant::now() + BATCH_WAIT;
        while spans.len() < BATCH_MAX {
            let next = tokio::select! {
                next = timeout_at(until, traces.recv()) => next.ok().flatten(),
                () = end.cancelled() => traces.try_recv().ok(),
            };
            let Some(next) = next else { break };
            spans.extend(next);
        }
        Some(spans)
    }

    async fn send(&mut self, spans: Vec<Span>, limit: Duration) {
        let body = otlp::export_request(&spans).to_string();
        let sent = self.client.post_json(&self.params.traces, body, limit).await;
        let outcome = if sent.is_ok() { &self.inbox.exported } else { &self.inbox.failed };
        outcome.inc_by(spans.len() as u64);
        let was_failing = std::mem::replace(&mut self.is_failing, sent.is_err());
        match sent {
            Err(error) if !was_failing => {
                let collector = &self.params.traces;
                warn!(%collector, %error, "traces are lost; requests go on without");
            }
            Ok(()) if was_failing => info!("traces arrive again"),
            _ => {}
        }
    }
}

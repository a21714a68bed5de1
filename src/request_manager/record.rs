//! The record of one request: what was predicted, what happened, and the metrics of it.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::key_budget::KeyUse;
use super::metrics::RequestMetrics;
use crate::domain::{Destination, DestinationOrd, RequestEstimate, RoutingRequest};
use crate::endpoint::answer::Usage;
use crate::scheduler::Placement;
use crate::units::{Seconds, Tokens, Usd};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Answered whole.
    Ok,
    /// Refused before it had a destination.
    Rejected,
    /// Its destinations failed it.
    Failed,
    /// Its client left.
    ClientGone,
    /// The router stopped before its answer was complete.
    Stopped,
}

impl Outcome {
    /// Metric label.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Rejected => "rejected",
            Self::Failed | Self::Stopped => "failed",
            Self::ClientGone => "client_gone",
        }
    }
}

/// What was sent where.
#[derive(Debug, Clone)]
pub(super) struct Dispatch {
    pub(super) destinations: Arc<[Destination]>,
    pub(super) ord: DestinationOrd,
    pub(super) estimate: RequestEstimate,
    pub(super) completion: Tokens,
    pub(super) at: Instant,
}

impl Dispatch {
    pub(super) fn destination(&self) -> &Destination {
        &self.destinations[self.ord.idx()]
    }
}

/// The record of one request. Dropped without an end, its client left.
#[derive(Debug)]
pub(super) struct Record {
    metrics: Arc<RequestMetrics>,
    request: Arc<RoutingRequest>,
    pub(super) stream: bool,
    arrived: Instant,
    dispatch: Option<Dispatch>,
    attempts: u32,
    first_content: Option<Instant>,
    prompt: Option<Tokens>,
    completion: Option<Tokens>,
    is_over: bool,
    client: Option<KeyUse>,
}

impl Record {
    pub(super) fn begin(metrics: Arc<RequestMetrics>, request: Arc<RoutingRequest>, stream: bool) -> Self {
        let arrived = Instant::now();
        Self {
            metrics,
            request,
            stream,
            arrived,
            dispatch: None,
            attempts: 0,
            first_content: None,
            prompt: None,
            completion: None,
            is_over: false,
            client: None,
        }
    }

    /// Whom the request is charged to.
    pub(super) fn set_client(&mut self, client: Option<KeyUse>) {
        self.client = client;
    }

    /// The answer's bytes; the client's key is in use until they are gone.
    pub(super) fn kept_by(&mut self, body: Bytes) -> Bytes {
        match self.client.take() {
            Some(client) => client.kept_by(body),
            None => body,
        }
    }

    pub(super) fn request_id(&self) -> &str {
        &self.request.id
    }

    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The request goes to a destination.
    pub(super) fn place(&mut self, placement: &Placement, destinations: &Arc<[Destination]>) {
        self.attempts += 1;
        self.dispatch = Some(Dispatch {
            destinations: Arc::clone(destinations),
            ord: placement.planned.destination,
            estimate: placement.planned.estimate,
            completion: placement.planned.completion,
            at: Instant::now(),
        });
    }

    /// The endpoint failed a stream that was with the client already.
    pub(super) fn failed_attempt(&self, reason: &str) {
        self.metrics.failed_attempt(reason);
    }

    /// Content has come; only the first time counts, and is told.
    pub(super) fn first_content(&mut self) -> bool {
        let is_first = self.first_content.is_none();
        if is_first {
            self.first_content = Some(Instant::now());
        }
        is_first
    }

    /// What the endpoint counted, or what was seen of the completion where it did not count.
    pub(super) fn count(&mut self, usage: Option<Usage>, seen: Option<Tokens>) {
        self.prompt =
            usage.map(|u| Tokens(u.prompt_tokens as f64)).or(seen.map(|_| self.request.prompt_tokens));
        self.completion = usage.map(|u| Tokens(u.completion_tokens as f64)).or(seen);
    }

    /// The request is over.
    pub(super) fn end(&mut self, outcome: Outcome) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let now = Instant::now();
        let since_arrival = |at: Instant| Seconds(at.duration_since(self.arrived).as_secs_f64());
        let finished = Finished {
            dispatch: self.dispatch.as_ref(),
            outcome,
            stream: self.stream,
            duration: since_arrival(now),
            to_first_content: self.first_content.map(since_arrival),
            execution: self.dispatch.as_ref().map(|d| Seconds(now.duration_since(d.at).as_secs_f64())),
            prompt: self.prompt,
            completion: self.completion,
        };
        self.metrics.finished(&finished);
        if let Some(client) = &self.client
            && let Some(cost) = self.cost(outcome)
        {
            client.charge(cost);
        }
    }

    /// What the request cost, whatever became of it. Where an answer did not say how long it was, what was
    /// expected of it: an endpoint that does not count is not free.
    fn cost(&self, outcome: Outcome) -> Option<Usd> {
        let dispatch = self.dispatch.as_ref()?;
        let (prompt, completion) = match (self.prompt, self.completion) {
            (Some(prompt), Some(completion)) => (prompt, completion),
            _ if outcome == Outcome::Ok => (self.request.prompt_tokens, dispatch.completion),
            _ => return None,
        };
        Some(dispatch.destination().price.charge(prompt, completion))
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.end(Outcome::ClientGone);
    }
}

/// A finished request as metrics see it.
#[derive(Debug)]
pub(super) struct Finished<'a> {
    pub(super) dispatch: Option<&'a Dispatch>,
    pub(super) outcome: Outcome,
    pub(super) stream: bool,
    pub(super) duration: Seconds,
    pub(super) to_first_content: Option<Seconds>,
    /// From dispatch to the last byte.
    pub(super) execution: Option<Seconds>,
    pub(super) prompt: Option<Tokens>,
    pub(super) completion: Option<Tokens>,
}

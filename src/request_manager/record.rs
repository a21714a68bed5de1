//! The record of one request: what was predicted, what happened, and the metrics of it.

mod line;

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;
use tracing::warn;

use super::key_budget::KeyUse;
use super::metrics::RequestMetrics;
use super::traced::Traced;
use super::{Call, World};
use crate::domain::{Destination, DestinationOrd, PrefixChain, RequestEstimate, RoutingRequest, Work};
use crate::endpoint::answer::Accounts;
use crate::profiler::power::{EnergyShare, ExpectedWork};
use crate::profiler::prefix::{PrefixFound, PrefixVisit};
use crate::profiler::quality::feedback::{AnsweredRequest, TrialSlice};
use crate::profiler::speed::{Answered, Expected, Flight};
use crate::scheduler::Placement;
use crate::scheduler::switchback::{Ending, Realised, Trial};
use crate::telemetry::json_log::JsonLog;
use crate::units::{Joules, Seconds, Tokens, Usd};

use line::{RequestLine, short_sha256};

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
    /// Number of the plan.
    pub(super) plan: u64,
    pub(super) prompt: Tokens,
    /// Of the prompt, expected in its cache.
    pub(super) cached: Tokens,
    pub(super) completion: Tokens,
    pub(super) work: Work,
    /// When a greedy choice at its first plan would have had it done, from `at`.
    pub(super) greedy_left: Option<Seconds>,
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
    log: JsonLog,
    request: Arc<RoutingRequest>,
    pub(super) stream: bool,
    arrived: Instant,
    dispatch: Option<Dispatch>,
    /// Of the energy of the node it is at.
    energy: Option<EnergyShare>,
    attempts: u32,
    first_content: Option<Instant>,
    prompt: Option<Tokens>,
    /// Of the prompt, in the cache of its endpoint, where it tells.
    cached: Option<Tokens>,
    completion: Option<Tokens>,
    /// What its endpoint is measured by.
    answered: Answered,
    flight: Option<Flight>,
    prefixes: PrefixChain,
    visit: Option<PrefixVisit>,
    is_over: bool,
    client: Option<KeyUse>,
    /// Its part in the comparison of policies that take turns.
    trial: Option<Box<Trial>>,
    /// Of what was asked, where it is written down.
    prompt_sha256: Option<String>,
    /// What feedback finds of it.
    answered_request: Option<Arc<AnsweredRequest>>,
    /// Its trace.
    pub(super) trace: Traced,
}

impl Record {
    pub(super) fn begin(
        (metrics, log): (Arc<RequestMetrics>, JsonLog),
        request: Arc<RoutingRequest>,
        stream: bool,
    ) -> Self {
        let arrived = Instant::now();
        Self {
            metrics,
            log,
            request,
            stream,
            arrived,
            dispatch: None,
            energy: None,
            attempts: 0,
            first_content: None,
            prompt: None,
            cached: None,
            completion: None,
            answered: Answered::default(),
            flight: None,
            prefixes: PrefixChain::default(),
            visit: None,
            is_over: false,
            client: None,
            trial: None,
            prompt_sha256: None,
            answered_request: None,
            trace: Traced::default(),
        }
    }

    /// The text that its quality is predicted from, of which the decision log has a hash.
    pub(super) fn set_text(&mut self, text: &str) {
        if self.log.is_on() && !text.is_empty() {
            self.prompt_sha256 = Some(short_sha256(text));
        }
    }

    /// Whom the request is charged to.
    pub(super) fn set_client(&mut self, client: Option<KeyUse>) {
        self.client = client;
    }

    /// What its prompt begins with.
    pub(super) fn set_prefixes(&mut self, prefixes: PrefixChain) {
        self.prefixes = prefixes;
    }

    /// The request has a part in a comparison of policies.
    pub(super) fn set_trial(&mut self, trial: Option<Box<Trial>>) {
        self.trial = trial;
    }

    /// What becomes of it says nothing of a policy.
    pub(super) fn leave_trial(&mut self) {
        self.trial = None;
    }

    /// Where it belongs in the comparison of policies, if it counts there.
    pub(super) fn trial_slice(&self) -> Option<TrialSlice> {
        self.trial.as_ref().and_then(|trial| trial.slice())
    }

    /// Feedback may be given on it from now on.
    pub(super) fn set_answered(&mut self, answered: Arc<AnsweredRequest>) {
        self.answered_request = Some(answered);
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

    /// The request goes to a destination at `now`.
    pub(super) fn place(
        &mut self,
        now: Instant,
        placement: &Placement,
        destinations: &Arc<[Destination]>,
        world: &World,
    ) {
        self.attempts += 1;
        if let Some(trial) = self.trial.as_mut().filter(|_| self.attempts == 1) {
            trial.placed(placement.policy);
        }
        let planned = &placement.planned;
        let estimate = &planned.estimate;
        let until = if self.stream { planned.first_content } else { estimate.completion };
        let prompt = self.request.prompt_tokens;
        let visit = world.prefixes.begin(planned.destination, &self.prefixes);
        let expected = Expected {
            wait: (until - planned.network).max(Seconds::ZERO),
            finish: estimate.completion,
            prompt,
            completion: planned.completion,
            network: planned.network,
            is_stream: self.stream,
            known: visit.known(),
            cached: planned.cached,
        };
        self.visit = Some(visit);
        // What it had elsewhere ends first.
        self.flight = None;
        self.flight = Some(world.speeds.begin(now, planned.destination, expected));
        let expected = ExpectedWork {
            tokens: prompt + planned.completion,
            duration: estimate.completion.max(estimate.service),
        };
        let id = Arc::clone(&self.request.id);
        self.energy = Some(world.power.begin(now, id, planned.destination, expected));
        self.dispatch = Some(Dispatch {
            destinations: Arc::clone(destinations),
            ord: planned.destination,
            estimate: planned.estimate,
            plan: placement.plan,
            prompt,
            cached: planned.cached,
            completion: planned.completion,
            work: planned.work,
            greedy_left: placement.greedy_left,
            at: now,
        });
    }

    /// The request is about to be sent where it was placed; its trace says so, to the endpoint as well.
    pub(super) fn begin_call(&mut self, placement: &Placement, call: &mut Call, world: &World) {
        if let (true, Some(dispatch)) = (self.trace.is_on(), &self.dispatch) {
            let provider = world.pool.spec(dispatch.destination().endpoint).kind.as_str();
            call.headers = self.trace.placed(placement, (dispatch, provider), &call.headers);
        }
    }

    /// The endpoint failed the request before any of its answer was with the client; what it drew it has drawn.
    pub(super) fn attempt_over(&mut self, reason: &'static str) {
        self.energy = None;
        self.trace.attempt_failed(reason);
    }

    /// The endpoint failed a stream that was with the client already.
    pub(super) fn failed_attempt(&self, reason: &str) {
        self.metrics.failed_attempt(reason);
    }

    /// An answer that the client has begun to read could not be completed.
    pub(super) fn warn_of_cut(&self, why: &str) {
        let destination = self.dispatch.as_ref().map(|of| of.destinations[of.ord.idx()].id.as_str());
        warn!(request_id = self.request_id(), destination, why, "an answer under way was cut");
    }

    /// Content has come; only the first time counts, and is told.
    pub(super) fn first_content(&mut self) -> bool {
        let is_first = self.first_content.is_none();
        if is_first {
            self.first_content = Some(Instant::now());
            if let Some(flight) = &mut self.flight {
                flight.first_content();
            }
            self.prompt_read();
        }
        is_first
    }

    /// Its endpoint has read the prompt, and has it in its cache if it has one.
    fn prompt_read(&mut self) {
        if let Some(visit) = &mut self.visit {
            // Its answer is with the client from now on: there is no other visit.
            visit.read(&std::mem::take(&mut self.prefixes));
        }
    }

    /// So many events with content have come.
    pub(super) fn events(&mut self, n_events: u64) {
        self.answered.events = n_events;
        if let Some(flight) = &mut self.flight {
            flight.events(n_events);
        }
    }

    /// What the endpoint counted, or what was seen of the completion where it did not count.
    pub(super) fn count(&mut self, accounts: Accounts, seen: Option<Tokens>) {
        let Accounts { usage, timings } = accounts;
        self.prompt =
            usage.map(|u| Tokens(u.prompt_tokens as f64)).or(seen.map(|_| self.request.prompt_tokens));
        self.completion = usage.map(|u| Tokens(u.completion_tokens as f64)).or(seen);
        self.answered.counted_prompt = usage.map(|u| Tokens(u.prompt_tokens as f64));
        let read = timings.filter(|_| self.request.choices == 1).map(|timings| timings.prompt.0);
        let not_read = self.answered.counted_prompt.zip(read).map(|(counted, read)| counted - read);
        let cached = usage.and_then(|u| u.cached_tokens).map(|n| Tokens(n as f64));
        self.cached = cached.or(not_read).map(|cached| cached.max(Tokens::ZERO));
        let not_read = self.cached.unwrap_or(Tokens::ZERO);
        self.answered.prompt = self.prompt.map(|prompt| (prompt - not_read).max(Tokens::ZERO));
        self.answered.tells_cached = self.cached.is_some();
        self.answered.completion = self.completion;
        self.answered.timings = timings;
        self.answered.choices = self.request.choices;
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
            cached: self.cached,
            completion: self.completion,
        };
        self.metrics.finished(&finished);
        self.trace.end(now, (&self.request.id, self.attempts), &finished);
        if self.log.is_on() {
            let mut line = RequestLine::new(&self.request.id, self.attempts, &finished);
            line.prompt_sha256 = self.prompt_sha256.take();
            self.log.record(move || line);
        }
        let modelled = finished.modelled_joules();
        // Before a meter can tell of it.
        if let Some(trial) = self.trial.take() {
            let ending = self.ending(outcome, modelled, finished.duration);
            trial.end(&ending, self.dispatch.as_ref().map(|of| of.ord));
        }
        if let Some(energy) = self.energy.take() {
            energy.end(now, finished.tokens(), modelled);
        }
        if outcome == Outcome::Ok {
            self.learn_of_cache();
        }
        if let Some(flight) = self.flight.take()
            && outcome == Outcome::Ok
        {
            flight.finish(now, &self.answered);
        }
        self.close_for_feedback(outcome);
        if let Some(client) = &self.client
            && let Some(cost) = self.cost(outcome)
        {
            client.charge(cost);
        }
    }

    /// What the answer came to, for whoever gives feedback on it.
    fn close_for_feedback(&self, outcome: Outcome) {
        let Some(answered) = &self.answered_request else { return };
        match outcome {
            Outcome::Ok => answered.read(self.completion, self.cost(outcome)),
            // It may have read enough to say something.
            Outcome::ClientGone => answered.read(None, None),
            Outcome::Rejected | Outcome::Failed | Outcome::Stopped => answered.broke(),
        }
    }

    /// It was answered: what its endpoint had in its cache, and has there now.
    fn learn_of_cache(&mut self) {
        self.prompt_read();
        if let (Some(visit), Some(counted), Some(cached)) =
            (&self.visit, self.answered.counted_prompt, self.cached)
        {
            visit.found(&PrefixFound { counted, cached, estimated: self.request.prompt_tokens });
        }
    }

    /// What it came to, for the comparison of policies.
    fn ending(&self, outcome: Outcome, modelled: Option<Joules>, latency: Seconds) -> Ending {
        let realised = |dispatch: &Dispatch| Realised {
            quality: dispatch.estimate.quality,
            usd: self.cost(outcome).unwrap_or(dispatch.estimate.usd),
            joules: modelled.unwrap_or(dispatch.estimate.joules),
            latency,
        };
        match outcome {
            Outcome::Ok => self.dispatch.as_ref().map_or(Ending::Void, |of| Ending::Answered(realised(of))),
            Outcome::Rejected | Outcome::Failed => Ending::Failed,
            Outcome::ClientGone => Ending::Left,
            Outcome::Stopped => Ending::Void,
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

/// A finished request: what was predicted of it (in its dispatch) and what came of it.
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
    pub(super) cached: Option<Tokens>,
    pub(super) completion: Option<Tokens>,
}

impl Finished<'_> {
    /// Prompt and completion, where they were counted.
    fn tokens(&self) -> Option<Tokens> {
        Some(self.prompt? + self.completion?)
    }

    /// What an answered request drew by Eq. 3. The model's energy is proportional to work, so the estimate is scaled
    /// to the tokens that were counted.
    pub(super) fn modelled_joules(&self) -> Option<Joules> {
        let dispatch = self.dispatch.filter(|_| self.outcome == Outcome::Ok)?;
        let share = |actual: Tokens, predicted: Tokens| {
            if predicted.0 > 0.0 { actual.0 / predicted.0 } else { 1.0 }
        };
        let Work { prefill, decode } = dispatch.work;
        let actual_s = prefill.0 * share(self.prompt?, dispatch.prompt)
            + decode.0 * share(self.completion?, dispatch.completion);
        let predicted_s = dispatch.work.total().0;
        let scale = if predicted_s > 0.0 { actual_s / predicted_s } else { 1.0 };
        Some(Joules((dispatch.estimate.joules.0 * scale).max(0.0)))
    }
}

//! The request manager (paper III-A): admission, dispatch with fail-over, and the way back.
//!
//! [`RequestManager::serve`] is the life of one request: place it, try its destination, fail over inside
//! the legal set until content has come, and hand the answer back with everything that keeps the books
//! right once the last byte has passed.

pub mod admission;
mod answer_head;
mod attempt;
mod download;
mod error;
mod failure;
pub mod key_budget;
mod metrics;
mod pulse;
mod record;
mod relay;
mod traced;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use http_body_util::Full;
use prometheus::Registry;
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::domain::{
    ApiCall, CachedPrefix, Destination, DestinationOrd, EndpointOrd, PrefixChain, RequestEstimate,
    RoutingRequest,
};
use crate::endpoint::EndpointPool;
use crate::endpoint::echo::echo_model;
use crate::profiler::engine::ModelLoads;
use crate::profiler::network::NetworkProfiler;
use crate::profiler::node::{Absence, FleetHealth, Leave, UnderWay, Verdict};
use crate::profiler::power::PowerProfiler;
use crate::profiler::prefix::PrefixProfiler;
use crate::profiler::quality::feedback::{AnsweredRequest, Feedback, Given, KeptPrompt};
use crate::profiler::speed::SpeedProfiler;
use crate::scheduler::switchback::Switchback;
use crate::scheduler::{NoDestination, PlaceError, Placement, Scheduler};
use crate::telemetry::traces::Tracer;
use crate::units::Seconds;

use attempt::{Answer, Attempt, UsageInjection};
use failure::{Failure, Tried, is_about_the_router};
use key_budget::KeyUse;
use metrics::RequestMetrics;
use record::{Outcome, Record};

use relay::Books;

pub use answer_head::PassedHead;
pub(crate) use answer_head::names_event_stream;
pub use error::ServeError;
pub use failure::{ComeBack, FailureKind};
pub use pulse::Pulse;
pub use relay::RelayBody;
pub use traced::Traced;

/// One admitted request with what it takes to send it.
pub struct Call {
    /// What routing knows of it.
    pub request: Arc<RoutingRequest>,
    /// What its quality is predicted from.
    pub text: Arc<str>,
    /// What its prompt begins with, for prefix caches.
    pub prefixes: PrefixChain,
    /// What is called.
    pub kind: ApiCall,
    /// Whether the client asked for server-sent events.
    pub stream: bool,
    /// Headers for the endpoint.
    pub headers: Arc<[(HeaderName, HeaderValue)]>,
    /// What the answer's `model` is to say; `None` = as the endpoint wrote it.
    pub echo_model: Option<Arc<str>>,
    /// The use of its client's API key; `None` where the router is open.
    pub client: Option<KeyUse>,
    /// Name of that key.
    pub owner: Option<Arc<str>>,
    /// Its trace.
    pub trace: Traced,
    /// The body with the model called by the name an endpoint knows it by.
    pub body_for: Box<dyn Fn(&str) -> Bytes + Send + Sync>,
}

/// An answer on its way to the client, a 200.
#[derive(Debug)]
pub struct Served {
    /// How it was routed.
    pub routing: Routing,
    /// What clients see of the endpoint's own head.
    pub head: PassedHead,
    /// The body.
    pub body: ServedBody,
}

/// The body of an answer.
#[derive(Debug)]
pub enum ServedBody {
    /// All there.
    Whole(Full<Bytes>),
    /// Still coming.
    Relayed(Box<RelayBody>),
}

/// What clients are told of the routing of their request.
#[derive(Debug, Clone)]
pub struct Routing {
    /// The fleet.
    pub destinations: Arc<[Destination]>,
    /// Where it went.
    pub ord: DestinationOrd,
    /// Number of the plan.
    pub plan: u64,
    /// Name of the policy that made it.
    pub policy: &'static str,
    /// Requests planned together.
    pub batch_size: usize,
    /// Time from arrival to departure.
    pub waited: Seconds,
    /// Destinations tried.
    pub attempts: u32,
    /// What was predicted.
    pub estimate: RequestEstimate,
}

/// An answer that may be committed, with what must be kept until it is over.
struct Answered {
    placement: Placement,
    answer: Answer,
    under_way: UnderWay,
}

/// The request manager. Clones share its parts.
#[derive(Clone)]
pub struct RequestManager {
    scheduler: Scheduler,
    world: Arc<World>,
    usage: UsageInjection,
    limits: ServeLimits,
    metrics: Arc<RequestMetrics>,
    tracer: Tracer,
}

/// What bounds the work for requests.
#[derive(Debug, Clone)]
pub struct ServeLimits {
    /// Endpoints that one request is sent to at most.
    pub max_attempts: u32,
    /// Cancelled when the router stops and has no more time: nothing is waited for any longer.
    pub give_up: CancellationToken,
}

/// The endpoints and what is known of them. Clones share everything.
#[derive(Debug, Clone)]
pub struct World {
    /// The way to the endpoints.
    pub pool: Arc<EndpointPool>,
    /// Their health, which outcomes of requests are part of.
    pub health: FleetHealth,
    /// Their nodes' power, which requests have shares in.
    pub power: PowerProfiler,
    /// How fast they are.
    pub speeds: SpeedProfiler,
    /// What their prefix caches hold, which prompts that were read are part of.
    pub prefixes: PrefixProfiler,
    /// Which of their models are loaded, which first answers are part of.
    pub loads: ModelLoads,
    /// The paths to them, which transfers are part of.
    pub paths: NetworkProfiler,
    /// What clients say of answers, which answers that have begun are part of.
    pub feedback: Feedback,
}

impl RequestManager {
    /// Puts the manager together.
    ///
    /// # Errors
    /// When its metrics are registered already.
    pub fn new(
        scheduler: Scheduler,
        world: World,
        limits: ServeLimits,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let metrics = Arc::new(RequestMetrics::register(registry, scheduler.destinations())?);
        let usage = UsageInjection::new(&world.pool);
        let tracer = Tracer::default();
        Ok(Self { scheduler, world: Arc::new(world), usage, limits, metrics, tracer })
    }

    /// The manager, with requests traced by `tracer`.
    #[must_use]
    pub fn traced_by(self, tracer: Tracer) -> Self {
        Self { tracer, ..self }
    }

    /// The trace of a request for `model`, as its client names it, that goes on with these headers.
    #[must_use]
    pub fn trace(&self, kind: ApiCall, model: &str, headers: &[(HeaderName, HeaderValue)]) -> Traced {
        Traced::begin(&self.tracer, (kind, model), headers)
    }

    /// A manager that goes on with another handle to the same scheduler and other limits.
    #[must_use]
    pub fn reconfigured(&self, scheduler: Scheduler, limits: ServeLimits) -> Self {
        Self { scheduler, limits, ..self.clone() }
    }

    /// What tells when the last request is over.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        Pulse::of(&self.metrics)
    }

    /// The next best destination of a request placed lately; worked out only when asked for.
    #[must_use]
    pub fn runner_up(&self, request_id: &str) -> Option<&Destination> {
        let (ord, _) = self.scheduler.decisions().find(request_id)?.runner_up(request_id)?;
        self.scheduler.destinations().get(ord.idx())
    }

    /// The destinations, in order.
    #[must_use]
    pub const fn destinations(&self) -> &Arc<[Destination]> {
        self.scheduler.destinations()
    }

    /// The books of policies that take turns, where they do.
    #[must_use]
    pub const fn switchback(&self) -> Option<&Switchback> {
        self.scheduler.switchback()
    }

    /// What each destination is expected to have cached of a prompt.
    #[must_use]
    pub fn expected_cached(&self, prefixes: &PrefixChain) -> CachedPrefix {
        self.world.prefixes.expected(prefixes)
    }

    /// Counts a request refused before it was placed.
    pub fn count_rejected(&self, reason: &'static str) {
        self.metrics.rejected(reason);
    }

    /// Serves one request. Dropping the future cancels it everywhere.
    ///
    /// # Errors
    /// When no endpoint answered it; nothing has been sent to the client then.
    pub async fn serve(&self, mut call: Call) -> Result<Served, ServeError> {
        let mut record = Record::begin(
            (Arc::clone(&self.metrics), self.scheduler.log().clone()),
            Arc::clone(&call.request),
            call.stream,
        );
        record.set_client(call.client.take());
        record.trace = std::mem::take(&mut call.trace);
        record.set_prefixes(std::mem::take(&mut call.prefixes));
        record.set_trial(self.scheduler.begin_trial(&call.request));
        let text = std::mem::replace(&mut call.text, "".into());
        record.set_text(&text);
        let is_kept = call.kind != ApiCall::Embeddings && self.world.feedback.is_on();
        let prompt = is_kept.then(|| KeptPrompt::of(&text));
        let served = {
            // In its place: too large to be moved about.
            let mut sending = pin!(self.place_and_send(&mut call, text, &mut record));
            tokio::select! {
                biased;
                served = &mut sending => served,
                () = self.limits.give_up.cancelled() => {
                    Err(ServeError::Unplaced { error: PlaceError::Closed, come_back: None })
                }
            }
        };
        match served {
            Ok(answered) => {
                if let Some(prompt) = prompt {
                    self.keep(&call, &answered, &mut record, prompt);
                }
                Ok(self.hand_over(answered, record, call.echo_model))
            }
            Err(error) => {
                if !error.is_a_failure() {
                    record.leave_trial();
                }
                record.end(match &error {
                    ServeError::Unplaced { error, .. } => {
                        self.metrics.rejected(error.reason());
                        Outcome::Rejected
                    }
                    ServeError::Failed { .. } => Outcome::Failed,
                });
                Err(error)
            }
        }
    }

    /// Feedback may be given on the answer from now on: its client may be faster than its end.
    fn keep(&self, call: &Call, answered: &Answered, record: &mut Record, prompt: KeptPrompt) {
        let planned = &answered.placement.planned;
        let kept = Arc::new(AnsweredRequest::new(
            (Arc::clone(&call.request.id), call.owner.clone()),
            (planned.destination, planned.estimate.quality),
            prompt,
            record.trial_slice(),
        ));
        record.set_answered(Arc::clone(&kept));
        self.world.feedback.keep(kept);
    }

    /// Takes in what clients say of answers, as long as there are requests.
    pub fn follow_feedback(
        &self,
        given: broadcast::Receiver<Given>,
    ) -> impl Future<Output = ()> + Send + use<> {
        pulse::follow_feedback(Arc::downgrade(&self.metrics), given)
    }

    async fn place_and_send(
        &self,
        call: &mut Call,
        text: Arc<str>,
        record: &mut Record,
    ) -> Result<Answered, ServeError> {
        let mut tried = Tried::default();
        let mut last = None;
        let queued = self.metrics.queued();
        let placed = self.scheduler.place(Arc::clone(&call.request), text).await;
        drop(queued);
        let mut placement = placed.map_err(|error| self.unplaced(error, &mut tried))?;
        loop {
            let ord = placement.planned.destination;
            match self.world.health.begin(self.endpoint_of(ord)) {
                Ok(under_way) => {
                    let now = Instant::now();
                    record.place(now, &placement, self.scheduler.destinations(), &self.world);
                    record.begin_call(&placement, call, &self.world);
                    match self.attempt(now, call, &placement, under_way).await {
                        Ok((answer, under_way)) => return Ok(Answered { placement, answer, under_way }),
                        Err(failure) => {
                            record.attempt_over(failure.reason());
                            self.note_failed(call, &placement, record.attempts(), &failure);
                            let routing = Box::new(self.routing(&placement, record.attempts()));
                            let may_go_on =
                                failure.may_fail_over() && record.attempts() < self.limits.max_attempts;
                            tried.failed(ord, &failure, self.wait_after(&failure));
                            let kind = failure.kind();
                            if !may_go_on {
                                return Err(ServeError::Failed {
                                    kind: self.concluded(kind, &tried),
                                    routing,
                                });
                            }
                            last = Some((kind, routing));
                        }
                    }
                }
                // It was planned before that was known; nothing is sent, and it is no attempt.
                Err(absence) => tried.absent(ord, absence),
            }
            placement = match self.scheduler.place_again(placement.lease, ord).await {
                Ok(next) => next,
                Err(error) => {
                    let unplaced = self.unplaced(error, &mut tried);
                    // What a destination did tells more than that nothing else was left.
                    return Err(match last {
                        Some((kind, routing)) => {
                            ServeError::Failed { kind: self.concluded(kind, &tried), routing }
                        }
                        None => unplaced,
                    });
                }
            };
        }
    }

    fn endpoint_of(&self, ord: DestinationOrd) -> EndpointOrd {
        self.scheduler.destinations()[ord.idx()].endpoint
    }

    async fn attempt(
        &self,
        now: Instant,
        call: &Call,
        placement: &Placement,
        mut under_way: UnderWay,
    ) -> Result<(Answer, UnderWay), Failure> {
        let ord = placement.planned.destination;
        let destination = &self.scheduler.destinations()[ord.idx()];
        match Attempt::new(now, &self.world, &self.usage, call, (ord, destination)).run().await {
            Ok(answer) => Ok((answer, under_way)),
            Err(failure) => {
                under_way.judge(failure.verdict());
                Err(failure)
            }
        }
    }

    fn note_failed(&self, call: &Call, placement: &Placement, attempt: u32, failure: &Failure) {
        let destination = &self.scheduler.destinations()[placement.planned.destination.idx()];
        self.metrics.failed_attempt(failure.reason());
        failure.tell((&call.request.id, destination.id.as_str()), attempt);
    }

    /// The wait that an endpoint asked for by failing so.
    fn wait_after(&self, failure: &Failure) -> Duration {
        match failure.verdict() {
            Verdict::Wait(_, wait) => self.world.health.wait_told(wait),
            Verdict::Fine | Verdict::Failed | Verdict::Unreachable => Duration::ZERO,
        }
    }

    /// No destination, or none any more; `tried` learns of those that are back after a while.
    fn unplaced(&self, error: PlaceError, tried: &mut Tried) -> ServeError {
        if let PlaceError::Impossible(NoDestination::Unavailable { down, loading, draining, returning }) =
            &error
        {
            for ord in returning {
                let gone = || Absence { leave: Leave::CircuitOpen, back_in: None };
                tried.absent(*ord, self.world.health.absence(self.endpoint_of(*ord)).unwrap_or_else(gone));
            }
            if down + loading + draining > 0 {
                tried.down();
            }
        }
        ServeError::Unplaced { error, come_back: tried.come_back() }
    }

    /// The last failure; where every destination said wait, with the earliest return of any.
    fn concluded(&self, kind: FailureKind, tried: &Tried) -> FailureKind {
        match (kind, tried.come_back()) {
            (FailureKind::Answered { mut error, should_retry, .. }, Some(back)) if tried.only_waits() => {
                error.status = if back.is_contended {
                    StatusCode::TOO_MANY_REQUESTS
                } else {
                    StatusCode::SERVICE_UNAVAILABLE
                };
                FailureKind::Answered { error, retry_after: Some(back.wait), should_retry }
            }
            (FailureKind::Answered { error, retry_after, should_retry: None }, _)
                if is_about_the_router(error.status) && tried.may_mend() =>
            {
                FailureKind::Answered { error, retry_after, should_retry: Some(true) }
            }
            (kind, _) => kind,
        }
    }

    fn routing(&self, placement: &Placement, attempts: u32) -> Routing {
        Routing {
            destinations: Arc::clone(self.scheduler.destinations()),
            ord: placement.planned.destination,
            plan: placement.plan,
            policy: placement.policy,
            batch_size: placement.batch_size,
            waited: placement.waited,
            attempts,
            estimate: placement.planned.estimate,
        }
    }

    fn hand_over(&self, answered: Answered, mut record: Record, echo: Option<Arc<str>>) -> Served {
        let Answered { placement, answer, mut under_way } = answered;
        let routing = self.routing(&placement, record.attempts());
        debug!(
            request_id = record.request_id(),
            destination = routing.destination().id.as_str(),
            "answering"
        );
        match answer {
            Answer::Whole { head, body, accounts } => {
                record.count(accounts, None);
                record.end(Outcome::Ok);
                under_way.judge(Verdict::Fine);
                drop(placement.lease);
                let body = echo.map_or_else(|| body.clone(), |model| echo_model(&body, &model));
                let body = record.kept_by(body);
                Served { routing, head, body: ServedBody::Whole(Full::new(body)) }
            }
            Answer::Streaming { head, stream } => {
                let books = Books { record, under_way, lease: placement.lease };
                let body = RelayBody::new(*stream, echo, books, self.limits.give_up.clone());
                Served { routing, head, body: ServedBody::Relayed(Box::new(body)) }
            }
        }
    }
}

impl Routing {
    /// The destination.
    #[must_use]
    pub fn destination(&self) -> &Destination {
        &self.destinations[self.ord.idx()]
    }
}

//! The request manager (paper III-A): admission, dispatch with fail-over, and the way back.
//!
//! [`RequestManager::serve`] is the life of one request: place it, try its destination, fail over inside
//! the legal set until content has come, and hand the answer back with everything that keeps the books
//! right once the last byte has passed.

pub mod admission;
mod attempt;
pub mod key_budget;
mod metrics;
mod record;
mod relay;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::Full;
use prometheus::Registry;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::domain::{ApiCall, Destination, DestinationOrd, RequestEstimate, RoutingRequest};
use crate::endpoint::EndpointPool;
use crate::endpoint::echo::echo_model;
use crate::endpoint::upstream_error::UpstreamError;
use crate::profiler::node::FleetHealth;
use crate::scheduler::{PlaceError, Placement, Scheduler};
use crate::units::Seconds;

use attempt::{Answer, Attempt, Failure};
use key_budget::KeyUse;
use metrics::RequestMetrics;
use record::{Outcome, Record};

use relay::Books;

pub(crate) use attempt::names_event_stream;
pub use relay::RelayBody;

/// Destinations one request may be sent to, the first included.
const ATTEMPTS_MAX: u32 = 6;

/// One admitted request with what it takes to send it.
pub struct Call {
    /// What routing knows of it.
    pub request: Arc<RoutingRequest>,
    /// What its quality is predicted from.
    pub text: String,
    /// What is called.
    pub kind: ApiCall,
    /// Whether the client asked for server-sent events.
    pub stream: bool,
    /// Headers for the endpoint.
    pub headers: HeaderMap,
    /// What the answer's `model` is to say; `None` = as the endpoint wrote it.
    pub echo_model: Option<Arc<str>>,
    /// The use of its client's API key; `None` where the router is open.
    pub client: Option<KeyUse>,
    /// The body with the model called by the name an endpoint knows it by.
    pub body_for: Box<dyn Fn(&str) -> Bytes + Send + Sync>,
}

/// An answer on its way to the client.
#[derive(Debug)]
pub struct Served {
    /// How it was routed.
    pub routing: Routing,
    /// Status of the endpoint's answer.
    pub status: StatusCode,
    /// Headers of the endpoint's answer that clients may see.
    pub headers: HeaderMap,
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
    /// Requests planned together.
    pub batch_size: usize,
    /// Time from arrival to departure.
    pub waited: Seconds,
    /// Destinations tried.
    pub attempts: u32,
    /// What was predicted.
    pub estimate: RequestEstimate,
}

/// Why a request was not answered by an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It got no destination.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Its destinations failed it; the last failure.
    #[error("{} destination(s) failed, the last one: {kind}", routing.attempts)]
    Failed {
        /// How it was routed last.
        routing: Box<Routing>,
        /// What went wrong.
        kind: FailureKind,
    },
}

/// What an endpoint did wrong, in terms a client may see.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FailureKind {
    /// It could not be reached or broke off.
    #[error("it could not be reached")]
    Unreachable,
    /// It took too long.
    #[error("it did not answer in time")]
    TimedOut,
    /// It answered with something that is no answer.
    #[error("it gave an unusable answer: {0}")]
    Unusable(String),
    /// It answered with an error.
    #[error("it answered {}: {}", error.status, error.message)]
    Answered {
        /// Its status and words, without anything that names the endpoint.
        error: UpstreamError,
        /// How long it asked to wait.
        retry_after: Option<std::time::Duration>,
    },
}

/// The request manager. Clones share its parts.
#[derive(Clone)]
pub struct RequestManager {
    scheduler: Scheduler,
    pool: Arc<EndpointPool>,
    health: FleetHealth,
    metrics: Arc<RequestMetrics>,
}

impl RequestManager {
    /// Puts the manager together.
    ///
    /// # Errors
    /// When its metrics are registered already.
    pub fn new(
        scheduler: Scheduler,
        pool: Arc<EndpointPool>,
        health: FleetHealth,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let metrics = Arc::new(RequestMetrics::register(registry, scheduler.destinations())?);
        Ok(Self { scheduler, pool, health, metrics })
    }

    /// The next best destination of a request placed lately; worked out only when asked for.
    #[must_use]
    pub fn runner_up(&self, request_id: &str) -> Option<&Destination> {
        let ord = self.scheduler.decisions().find(request_id)?.runner_up(request_id)?;
        self.scheduler.destinations().get(ord.idx())
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
        let mut record = Record::begin(Arc::clone(&self.metrics), Arc::clone(&call.request), call.stream);
        record.set_client(call.client.take());
        let outcome = self.place_and_send(&call, &mut record).await;
        match outcome {
            Ok((placement, answer)) => Ok(self.hand_over(placement, answer, record, call.echo_model)),
            Err(error) => {
                record.end(match &error {
                    ServeError::Place(_) => Outcome::Rejected,
                    ServeError::Failed { .. } => Outcome::Failed,
                });
                Err(error)
            }
        }
    }

    async fn place_and_send(
        &self,
        call: &Call,
        record: &mut Record,
    ) -> Result<(Placement, Answer), ServeError> {
        let placed = self.scheduler.place(Arc::clone(&call.request), call.text.clone()).await;
        let mut placement = placed.inspect_err(|error| self.metrics.rejected(error.reason()))?;
        loop {
            record.place(&placement, self.scheduler.destinations());
            let failure = match self.attempt(call, &placement).await {
                Ok(answer) => return Ok((placement, answer)),
                Err(failure) => failure,
            };
            let failed = placement.planned.destination;
            let attempts = record.attempts();
            self.metrics.failed_attempt(failure.reason());
            warn!(
                request_id = &*call.request.id,
                destination = self.scheduler.destinations()[failed.idx()].id.as_str(),
                attempt = attempts,
                reason = failure.reason(),
                "attempt failed"
            );
            let routing = Box::new(self.routing(&placement, attempts));
            let error = ServeError::Failed { routing, kind: failure.kind() };
            if !failure.may_fail_over() || attempts >= ATTEMPTS_MAX {
                return Err(error);
            }
            placement = match self.scheduler.place_again(placement.lease, failed).await {
                Ok(next) => next,
                // The failure tells more than that nothing else was left.
                Err(_) => return Err(error),
            };
        }
    }

    async fn attempt(&self, call: &Call, placement: &Placement) -> Result<Answer, Failure> {
        let destination = &self.scheduler.destinations()[placement.planned.destination.idx()];
        let under_way = self.health.begin(destination.endpoint);
        let attempt = Attempt { call, pool: &self.pool, destination, began: Instant::now(), under_way };
        let result = attempt.run().await;
        if let Err(Failure::Connect) = &result {
            self.health.report_unreachable(destination.endpoint);
        }
        result
    }

    fn routing(&self, placement: &Placement, attempts: u32) -> Routing {
        Routing {
            destinations: Arc::clone(self.scheduler.destinations()),
            ord: placement.planned.destination,
            plan: placement.plan,
            batch_size: placement.batch_size,
            waited: placement.waited,
            attempts,
            estimate: placement.planned.estimate,
        }
    }

    fn hand_over(
        &self,
        placement: Placement,
        answer: Answer,
        mut record: Record,
        echo: Option<Arc<str>>,
    ) -> Served {
        let routing = self.routing(&placement, record.attempts());
        debug!(
            request_id = record.request_id(),
            destination = routing.destination().id.as_str(),
            "answering"
        );
        match answer {
            Answer::Whole { status, headers, body, usage } => {
                record.count(usage, None);
                record.end(Outcome::Ok);
                drop(placement.lease);
                let body = echo.map_or_else(|| body.clone(), |model| echo_model(&body, &model));
                let body = record.kept_by(body);
                Served { routing, status, headers, body: ServedBody::Whole(Full::new(body)) }
            }
            Answer::Streaming { status, headers, stream } => {
                let books = Books { record, _lease: placement.lease };
                let body = RelayBody::new(*stream, echo, books, *self.pool.timeouts());
                Served { routing, status, headers, body: ServedBody::Relayed(Box::new(body)) }
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

//! The request scheduler (paper III-C): the async shell around the planner.
//!
//! The planner stands behind a lock, and whoever brings an event sees to what follows ([`live_planner`]); a task
//! keeps the time ([`clock`]) and a thread solves plans that need a search ([`solver`]). Requests come in
//! through [`Scheduler::place`] and leave with a [`Placement`], whose [`Lease`] tells the planner, by being
//! dropped, that they are over.

pub mod arms;
mod clock;
mod decision_record;
pub mod decisions;
mod live_planner;
mod metrics;
mod solver;
pub mod switchback;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus::Registry;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::Instant;

use crate::domain::{
    Availability, Destination, DestinationOrd, DestinationState, FleetView, Prediction, QualitySource,
    RoutingRequest, Weights,
};
use crate::planning::{
    Alternation, Arrival, PlanParams, Planned, Planner, PlannerParams, Rejection, Ticket, WindowClose,
};
use crate::profiler::quality::{Predicting, QualityService};
use crate::routing::RoutingPolicy;
use crate::telemetry::json_log::JsonLog;
use crate::units::Seconds;

pub use crate::routing::NoDestination;

use arms::{Arm, Arms, PolicyArm};
use clock::Clock;
use decision_record::PlanLog;
use decisions::DecisionRing;
use live_planner::{Arrived, LivePlanner, Placed, Sent, Surroundings};
use metrics::{FleetGauges, SchedulerMetrics};
use switchback::report::Report;
use switchback::{Switchback, SwitchbackGauges, Trial};

/// How the scheduler is set up.
#[derive(Debug, Clone, Copy)]
pub struct SchedulerParams {
    /// Gathering, holding, default weights.
    pub planner: PlannerParams,
    /// Models and seed of every plan.
    pub plan: PlanParams,
    /// Thread CPU time of one plan.
    pub budget: Duration,
    /// Longest wait for an embedding in an adaptive window.
    pub embed_wait: Duration,
    /// Requests that may wait at once.
    pub max_queued: usize,
    /// Longest wait for a destination.
    pub request_deadline: Seconds,
}

/// Why a request got no destination.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlaceError {
    /// As many requests wait as may.
    #[error("the queue is full ({max_queued} requests waiting)")]
    QueueFull {
        /// The bound.
        max_queued: usize,
    },
    /// No destination may serve it.
    #[error(transparent)]
    Impossible(#[from] NoDestination),
    /// Its deadline passed in the queue.
    #[error("no destination had room within {waited_s:.1} s")]
    Expired {
        /// How long it waited.
        waited_s: f64,
    },
    /// The policy could not decide.
    #[error("the routing policy could not decide: {0}")]
    Undecided(String),
    /// The scheduler is shutting down.
    #[error("the router is shutting down")]
    Closed,
}

/// Where a request goes, and its lease there.
#[derive(Debug)]
pub struct Placement {
    /// Destination and predicted terms.
    pub planned: Planned,
    /// Number of the plan.
    pub plan: u64,
    /// Name of the policy that made it.
    pub policy: &'static str,
    /// Time from arrival to departure.
    pub waited: Seconds,
    /// Of that, after its first plan, because the places it was planned to were taken.
    pub held: Seconds,
    /// Requests planned together.
    pub batch_size: usize,
    /// When a greedy choice at its first plan would have had it done, from now; known with time term `sum`.
    pub greedy_left: Option<Seconds>,
    /// Drop it when the request is over.
    pub lease: Lease,
}

/// A request's place in the planner. Dropping it says the request is over, whatever its outcome.
#[derive(Debug)]
pub struct Lease {
    arrival: Arrival,
    planner: Arc<LivePlanner>,
}

impl Lease {
    /// The first content of the answer has come.
    pub fn answering(&self) {
        self.planner.answering(self.arrival.ticket);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.planner.finish(self.arrival.ticket);
    }
}

/// Handle to the scheduler; clones share it.
#[derive(Clone)]
pub struct Scheduler {
    planner: Arc<LivePlanner>,
    queue: Arc<Semaphore>,
    next_ticket: Arc<AtomicU64>,
    params: SchedulerParams,
    destinations: Arc<[Destination]>,
    quality: QualityService,
    decisions: DecisionRing,
    log: JsonLog,
    /// Where policies take turns.
    switchback: Option<Switchback>,
}

impl Scheduler {
    /// Sets up the scheduler; the returned future is its clock and ends when every handle is gone.
    ///
    /// # Errors
    /// When the metrics are registered already or the solver's thread cannot be started.
    pub fn new(
        params: SchedulerParams,
        policy: Box<dyn RoutingPolicy + Send + Sync>,
        fleet: Fleet,
        registry: &Registry,
    ) -> anyhow::Result<(Self, impl Future<Output = ()> + Send + use<>)> {
        let gather = params.planner.gather;
        let only = PolicyArm { policy, plan: params.plan, gather, pays_prices: true };
        Self::alternating(params, (vec![only], None), fleet, registry)
    }

    /// The same where several policies take turns, as `alternation` says, at least one.
    ///
    /// # Errors
    /// When the metrics are registered already or the thread of a solver cannot be started.
    pub fn alternating(
        params: SchedulerParams,
        (policies, alternation): (Vec<PolicyArm>, Option<Alternation>),
        fleet: Fleet,
        registry: &Registry,
    ) -> anyhow::Result<(Self, impl Future<Output = ()> + Send + use<>)> {
        let (arms, threads): (Vec<_>, Vec<_>) =
            policies.into_iter().map(|policy| Arm::new(policy, params.budget)).unzip();
        let (handle, clock) = Self::with_arms(params, Arms::new(arms, alternation), fleet, registry)?;
        for threaded in threads.into_iter().flatten() {
            threaded.start(Arc::downgrade(&handle.planner))?;
        }
        Ok((handle, clock))
    }

    /// A handle that goes on with other parameters and policies, over the same fleet, waiting requests and books.
    /// Policies that take turns are not for it: they are set up anew.
    ///
    /// # Errors
    /// When the thread of a solver cannot be started; everything stays as it was then.
    pub fn reconfigured(&self, params: SchedulerParams, policies: Vec<PolicyArm>) -> std::io::Result<Self> {
        let (arms, threads): (Vec<_>, Vec<_>) =
            policies.into_iter().map(|policy| Arm::new(policy, params.budget)).unzip();
        for threaded in threads.into_iter().flatten() {
            threaded.start(Arc::downgrade(&self.planner))?;
        }
        self.planner.reconfigure(params.planner, Arms::new(arms, None));
        let queue = if params.max_queued == self.params.max_queued {
            Arc::clone(&self.queue)
        } else {
            Arc::new(Semaphore::new(params.max_queued))
        };
        Ok(Self { queue, params, ..self.clone() })
    }

    /// The same around any way of solving.
    fn with_arms(
        params: SchedulerParams,
        arms: Arms,
        fleet: Fleet,
        registry: &Registry,
    ) -> prometheus::Result<(Self, impl Future<Output = ()> + Send + use<>)> {
        let Fleet { destinations, health, view, quality, log, with_situations } = fleet;
        let decisions = DecisionRing::default();
        let epoch = Instant::now();
        let switchback = arms.alternation().map(|of| Switchback::new(of, arms.names(), epoch));
        let surroundings = Surroundings {
            metrics: SchedulerMetrics::register(registry, &arms.names())?,
            arms,
            decisions: decisions.clone(),
            log: PlanLog { log: log.clone(), with_situations },
            health: health.clone(),
            view: view.clone(),
        };
        let planner = Planner::new(params.planner, Arc::clone(&destinations), Seconds::ZERO);
        let planner = Arc::new(LivePlanner::new(planner, surroundings, epoch));
        registry.register(Box::new(FleetGauges::new(&planner, &destinations)?))?;
        if let Some(switchback) = &switchback {
            let gauges = SwitchbackGauges::new(switchback.clone(), Arc::downgrade(&planner))?;
            registry.register(Box::new(gauges))?;
        }
        let clock = Clock::new(&planner, epoch, (health, view));
        let handle = Self {
            planner,
            queue: Arc::new(Semaphore::new(params.max_queued)),
            next_ticket: Arc::new(AtomicU64::new(1)),
            params,
            destinations,
            quality,
            decisions,
            log,
            switchback,
        };
        Ok((handle, clock.run()))
    }

    /// The destinations, in order.
    #[must_use]
    pub const fn destinations(&self) -> &Arc<[Destination]> {
        &self.destinations
    }

    /// The state of every destination now, in order.
    #[must_use]
    pub fn states(&self) -> Vec<DestinationState> {
        self.planner.look(|context, _| context.states.clone())
    }

    /// Weights of requests that bring none of their own.
    #[must_use]
    pub const fn weights(&self) -> Weights {
        self.params.planner.weights
    }

    /// Where plans and requests are written down.
    #[must_use]
    pub const fn log(&self) -> &JsonLog {
        &self.log
    }

    /// The books of policies that take turns, where they do.
    #[must_use]
    pub const fn switchback(&self) -> Option<&Switchback> {
        self.switchback.as_ref()
    }

    /// What the policies that take turns have come to, where they do.
    #[must_use]
    pub fn switchback_report(&self) -> Option<Report> {
        let scales = self.planner.look(|context, _| context.scales);
        self.switchback.as_ref().map(|switchback| switchback.report(scales))
    }

    /// The part of a request that has just arrived in the comparison of policies that take turns.
    #[must_use]
    pub fn begin_trial(&self, request: &RoutingRequest) -> Option<Box<Trial>> {
        let weights = request.weights.unwrap_or(self.params.planner.weights);
        self.switchback.as_ref().map(|switchback| Box::new(switchback.begin(&request.id, weights)))
    }

    /// Recent plans.
    #[must_use]
    pub const fn decisions(&self) -> &DecisionRing {
        &self.decisions
    }

    /// Waits until the planner has found `request` a destination. `text` is what its quality is
    /// predicted from.
    ///
    /// Cancel-safe: dropping the future takes the request out of the waiting set.
    ///
    /// # Errors
    /// See [`PlaceError`].
    pub async fn place(&self, request: Arc<RoutingRequest>, text: Arc<str>) -> Result<Placement, PlaceError> {
        let _permit = Arc::clone(&self.queue)
            .try_acquire_owned()
            .map_err(|_| PlaceError::QueueFull { max_queued: self.params.max_queued })?;
        let now = self.planner.now();
        let (prediction, pending) = self.begin_prediction(now, &request, text)?;
        let arrival = Arrival {
            ticket: Ticket(self.next_ticket.fetch_add(1, Ordering::Relaxed)),
            request,
            prediction,
            awaiting_until: pending.as_ref().map(|_| now + self.embed_wait()),
            arrived: now,
            expires: now + self.params.request_deadline,
            excluded: Vec::new(),
        };
        let lease = Lease { arrival, planner: Arc::clone(&self.planner) };
        self.await_reply(lease, pending).await
    }

    /// Finds another destination for a request that `failed` could not serve: the best legal one that
    /// has not failed it yet. Nothing is gathered; it has done its waiting. Nor does the bound on waiting
    /// requests apply: it gives up a place at `failed`, and those are bounded by `max_inflight`.
    ///
    /// # Errors
    /// See [`PlaceError`].
    pub async fn place_again(
        &self,
        mut lease: Lease,
        failed: DestinationOrd,
    ) -> Result<Placement, PlaceError> {
        lease.arrival.excluded.push(failed);
        self.await_reply(lease, None).await
    }

    async fn await_reply(
        &self,
        mut lease: Lease,
        mut pending: Option<oneshot::Receiver<Prediction>>,
    ) -> Result<Placement, PlaceError> {
        let mut answer = match self.planner.arrive(lease.arrival.clone())? {
            Arrived::Settled(placed) => return self.placement(placed, lease),
            Arrived::Held(answer) => answer,
        };
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => {
                    return self.placement(answer.map_err(|_| PlaceError::Closed)?, lease);
                }
                prediction = awaited(&mut pending) => {
                    pending = None;
                    if let Some(prediction) = prediction.map(Arc::new) {
                        // For another destination, should the first one fail.
                        lease.arrival.prediction = Arc::clone(&prediction);
                        self.planner.predicted(lease.arrival.ticket, prediction);
                    }
                }
            }
        }
    }

    fn placement(&self, placed: Placed, lease: Lease) -> Result<Placement, PlaceError> {
        let Sent { planned, plan, policy, waited, held, batch_size, greedy_left } = placed?;
        self.quality.record_source(planned.source);
        Ok(Placement { planned, plan, policy, waited, held, batch_size, greedy_left, lease })
    }

    /// The prior prediction, and a better one under way where it is worth having.
    fn begin_prediction(
        &self,
        now: Seconds,
        request: &RoutingRequest,
        text: Arc<str>,
    ) -> Result<(Arc<Prediction>, Option<oneshot::Receiver<Prediction>>), PlaceError> {
        let n_legal = self.planner.legal_set(now, request)?.len();
        let weights = request.weights.unwrap_or(self.params.planner.weights);
        let matters = weights.quality > 0.0 || request.constraints.min_quality.is_some();
        if n_legal < 2 || !matters || text.is_empty() {
            return Ok((self.quality.prior(QualitySource::Skipped), None));
        }
        Ok(match self.quality.predict(text) {
            Predicting::Known(prediction) => (prediction, None),
            Predicting::Pending(receiver) => (self.quality.prior(QualitySource::Late), Some(receiver)),
        })
    }

    fn embed_wait(&self) -> Seconds {
        let wait = Seconds(self.params.embed_wait.as_secs_f64());
        let window = self.params.planner.window;
        if window.close == WindowClose::Fixed { wait.max(window.max_wait) } else { wait }
    }
}

/// The prediction under way, `None` if it was given up; never ready where there is none.
async fn awaited(pending: &mut Option<oneshot::Receiver<Prediction>>) -> Option<Prediction> {
    match pending {
        Some(receiver) => receiver.await.ok(),
        None => std::future::pending().await,
    }
}

/// What the scheduler schedules over.
pub struct Fleet {
    /// D in order.
    pub destinations: Arc<[Destination]>,
    /// State of every endpoint.
    pub health: watch::Receiver<Arc<[Availability]>>,
    /// Figures measured since the start.
    pub view: watch::Receiver<Arc<FleetView>>,
    /// Predicted quality and lengths.
    pub quality: QualityService,
    /// Where plans are written down.
    pub log: JsonLog,
    /// Whether they are written with all it takes to make them again.
    pub with_situations: bool,
}

fn availability_of(destination: &Destination, health: &[Availability]) -> Availability {
    health.get(destination.endpoint.idx()).copied().unwrap_or(Availability::Down)
}

impl PlaceError {
    /// Whether it says something of the router or its fleet, not of the request, and not that the router stops.
    #[must_use]
    pub const fn is_a_failure(&self) -> bool {
        match self {
            Self::QueueFull { .. } | Self::Expired { .. } | Self::Undecided(_) => true,
            Self::Closed => false,
            Self::Impossible(reason) => matches!(
                reason,
                NoDestination::Unavailable { .. }
                    | NoDestination::AllTried { .. }
                    | NoDestination::Deadline { .. }
            ),
        }
    }

    /// Metric label.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::QueueFull { .. } => "queue_full",
            Self::Expired { .. } => "expired",
            Self::Undecided(_) => "undecided",
            Self::Closed => "shutting_down",
            Self::Impossible(reason) => match reason {
                NoDestination::UnknownModel { .. } => "unknown_model",
                NoDestination::MissingCapability { .. } => "capability",
                NoDestination::ContextTooSmall { .. } => "context",
                NoDestination::Placement { .. } => "placement",
                NoDestination::QualityFloor { .. } => "quality_floor",
                NoDestination::Unavailable { .. } => "unavailable",
                NoDestination::AllTried { .. } => "all_tried",
                NoDestination::Deadline { .. } => "deadline",
            },
        }
    }
}

impl From<Rejection> for PlaceError {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::Impossible(reason) => Self::Impossible(reason),
            Rejection::Expired { waited } => Self::Expired { waited_s: waited.0 },
            Rejection::Undecided(reason) => Self::Undecided(reason),
        }
    }
}

//! The planner at work: events go in under a lock, and whoever brings one sees to what follows from it.
//!
//! An arrival that can leave at once leaves in the task that brought it, without a hand-over. What needs a search
//! goes to the solver's thread, which takes its plan in here by itself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use tracing::{debug, error};

use super::arms::Arms;
use super::decision_record::PlanLog;
use super::decisions::DecisionRing;
use super::metrics::SchedulerMetrics;
use super::solver::SolveOutcome;
use super::{PlaceError, availability_of};
use crate::domain::{Availability, FleetView, Prediction, RoutingContext, RoutingRequest};
use crate::planning::{Action, Arrival, Planned, Planner, PlannerParams, Rejection, Step, Ticket};
use crate::routing::{LegalSet, NoDestination};
use crate::units::Seconds;

/// A placement on its way to the request's own task.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) planned: Planned,
    pub(super) plan: u64,
    pub(super) policy: &'static str,
    pub(super) waited: Seconds,
    pub(super) batch_size: usize,
    pub(super) greedy_left: Option<Seconds>,
}

/// What became of a request.
pub(super) type Placed = Result<Sent, Rejection>;

/// What an arrival comes to.
#[derive(Debug)]
pub(super) enum Arrived {
    /// It is placed, or refused.
    Settled(Placed),
    /// It waits.
    Held(oneshot::Receiver<Placed>),
}

/// The waiting set in numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitingSet {
    pub(super) n_held: usize,
    /// So far.
    pub(super) n_rebinds: u64,
}

/// The planner and its surroundings; one per router.
pub(super) struct LivePlanner {
    state: Mutex<State>,
    epoch: Instant,
    /// Wakes the clock's task when it has to look sooner, or when the scheduler is gone.
    nudge: Arc<Notify>,
}

struct State {
    planner: Planner,
    arms: Arms,
    metrics: SchedulerMetrics,
    decisions: DecisionRing,
    log: PlanLog,
    health: watch::Receiver<Arc<[Availability]>>,
    view: watch::Receiver<Arc<FleetView>>,
    replies: BTreeMap<Ticket, oneshot::Sender<Placed>>,
    /// The request whose arrival is being seen to.
    arriving: Option<(Ticket, Option<Placed>)>,
    /// When there is something to do without an event.
    due: Option<Seconds>,
    /// When the clock's task looks again.
    alarm: Option<Seconds>,
    is_closed: bool,
}

/// What the planner is surrounded by.
pub(super) struct Surroundings {
    pub(super) arms: Arms,
    pub(super) metrics: SchedulerMetrics,
    pub(super) decisions: DecisionRing,
    pub(super) log: PlanLog,
    pub(super) health: watch::Receiver<Arc<[Availability]>>,
    pub(super) view: watch::Receiver<Arc<FleetView>>,
}

impl LivePlanner {
    pub(super) fn new(planner: Planner, surroundings: Surroundings, epoch: Instant) -> Self {
        let Surroundings { arms, metrics, decisions, log, mut health, mut view } = surroundings;
        health.mark_changed();
        view.mark_changed();
        let state = State {
            planner,
            arms,
            metrics,
            decisions,
            log,
            health,
            view,
            replies: BTreeMap::new(),
            arriving: None,
            due: None,
            alarm: None,
            is_closed: false,
        };
        Self { state: Mutex::new(state), epoch, nudge: Arc::default() }
    }

    /// Seconds since the scheduler's beginning.
    pub(super) fn now(&self) -> Seconds {
        Seconds(self.epoch.elapsed().as_secs_f64())
    }

    /// Where a request may go as things stand, whatever its predicted quality.
    pub(super) fn legal_set(
        &self,
        now: Seconds,
        request: &RoutingRequest,
    ) -> Result<LegalSet, NoDestination> {
        let mut state = self.lock();
        state.take_news(now);
        state.planner.legal_set(request)
    }

    /// A request joins the waiting set (again, if it fails over).
    pub(super) fn arrive(&self, arrival: Arrival) -> Result<Arrived, PlaceError> {
        let ticket = arrival.ticket;
        let mut state = self.lock();
        if state.is_closed {
            return Err(PlaceError::Closed);
        }
        let now = self.now();
        state.take_news(now);
        state.arriving = Some((ticket, None));
        state.take_turns(now);
        state.planner.arrive(now, arrival);
        self.turn(&mut state, now);
        if let Some((_, Some(placed))) = state.arriving.take() {
            return Ok(Arrived::Settled(placed));
        }
        let (reply, answer) = oneshot::channel();
        state.replies.insert(ticket, reply);
        Ok(Arrived::Held(answer))
    }

    /// A better prediction for a waiting request is there.
    pub(super) fn predicted(&self, ticket: Ticket, prediction: Arc<Prediction>) {
        let mut state = self.lock();
        let now = self.now();
        state.planner.predicted(now, ticket, prediction);
        self.turn(&mut state, now);
    }

    /// The first content of a request's answer has come. Nothing follows from it but better books.
    pub(super) fn answering(&self, ticket: Ticket) {
        let mut state = self.lock();
        state.planner.answering(self.now(), ticket);
    }

    /// A request is over, whatever its outcome.
    pub(super) fn finish(&self, ticket: Ticket) {
        let mut state = self.lock();
        state.replies.remove(&ticket);
        let now = self.now();
        state.planner.finish(now, ticket);
        self.turn(&mut state, now);
    }

    /// The solver's thread is done with a plan.
    pub(super) fn solved(&self, outcome: SolveOutcome) {
        let mut state = self.lock();
        // What is down by now must not be sent to.
        let now = self.now();
        state.take_news(now);
        state.take_outcome(now, outcome);
        self.turn(&mut state, now);
    }

    /// Goes on with other parameters and policies; nobody loses its place, and a plan under way is taken in when it is
    /// there.
    pub(super) fn reconfigure(&self, params: PlannerParams, arms: Arms) {
        let mut state = self.lock();
        let now = self.now();
        state.take_news(now);
        let pays_prices = arms.current().pays_prices;
        state.arms = arms;
        state.planner.reconfigure(now, params, pays_prices);
        self.turn(&mut state, now);
    }

    /// Looks at the fleet as it is now.
    pub(super) fn look<T>(&self, at: impl FnOnce(&RoutingContext, WaitingSet) -> T) -> T {
        let mut state = self.lock();
        let waiting = WaitingSet { n_held: state.planner.n_held(), n_rebinds: state.planner.n_rebinds() };
        at(state.planner.context(self.now()), waiting)
    }

    /// The time has come, or there is news of the fleet. Returns the time of the next look.
    pub(super) fn tick(&self) -> Option<Seconds> {
        let mut state = self.lock();
        let now = self.now();
        state.take_news(now);
        self.turn(&mut state, now);
        state.alarm = state.due;
        state.due
    }

    /// Answers everybody who waits, and everybody who comes.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.replies.clear();
    }

    pub(super) const fn nudge(&self) -> &Arc<Notify> {
        &self.nudge
    }

    /// Lets the planner act until it waits for an event or for the time.
    fn turn(&self, state: &mut State, mut now: Seconds) {
        loop {
            let mut actions = Vec::new();
            let turn_ends = state.take_turns(now);
            let step = state.planner.step(now, &mut actions);
            let policy = state.arms.current().name;
            state.perform(policy, actions);
            match step {
                Step::Wait(due) => {
                    state.due = due.into_iter().chain(turn_ends).reduce(Seconds::min);
                    break;
                }
                Step::Solve(job) => match state.arms.current().solver.solve(job) {
                    Some(outcome) => {
                        now = self.now();
                        state.take_outcome(now, outcome);
                    }
                    None => {
                        state.due = None;
                        break;
                    }
                },
            }
        }
        let is_sooner = |due: Seconds| state.alarm.is_none_or(|alarm| due.0 < alarm.0);
        if state.due.is_some_and(is_sooner) {
            self.nudge.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LivePlanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LivePlanner").finish_non_exhaustive()
    }
}

impl Drop for LivePlanner {
    fn drop(&mut self) {
        self.nudge.notify_one();
    }
}

impl State {
    /// Takes in what the profiler has published since.
    fn take_news(&mut self, now: Seconds) {
        if self.view.has_changed().unwrap_or(false) {
            let view = Arc::clone(&self.view.borrow_and_update());
            self.planner.set_view(now, &view);
        }
        if !self.health.has_changed().unwrap_or(false) {
            return;
        }
        let health = Arc::clone(&self.health.borrow_and_update());
        let destinations = self.planner.destinations().iter();
        let availability: Vec<Availability> = destinations.map(|d| availability_of(d, &health)).collect();
        self.planner.set_availability(&availability);
    }

    /// Lets whoever has its turn plan. When the next one has, `None` = never.
    fn take_turns(&mut self, now: Seconds) -> Option<Seconds> {
        self.arms.take_turns(now, &mut self.planner)
    }

    fn take_outcome(&mut self, now: Seconds, outcome: SolveOutcome) {
        let mut actions = Vec::new();
        match outcome {
            Ok(solved) => {
                self.planner.commit(now, &solved.plan, &mut actions);
                debug!(
                    plan = solved.plan.number,
                    n_requests = solved.plan.planned.len(),
                    n_leaving = actions.len(),
                    solve_ms = solved.took.as_secs_f64() * 1e3,
                    "planned"
                );
                self.metrics.plan(&solved);
                self.log.plan(&solved);
                self.perform(solved.policy, actions);
                self.decisions.push(now, solved);
            }
            Err(reason) => {
                error!(%reason, "no decision");
                self.planner.abandon(now, &reason.to_string(), &mut actions);
                let policy = self.arms.current().name;
                self.perform(policy, actions);
            }
        }
    }

    /// What a plan of `policy` comes to.
    fn perform(&mut self, policy: &'static str, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { planned, plan, waited, gathered, held, batch_size, greedy_left } => {
                    self.metrics.sent(gathered, held);
                    let ticket = planned.ticket;
                    self.settle(ticket, Ok(Sent { planned, plan, policy, waited, batch_size, greedy_left }));
                }
                Action::Reject { ticket, reason } => self.settle(ticket, Err(reason)),
            }
        }
    }

    fn settle(&mut self, ticket: Ticket, placed: Placed) {
        match &mut self.arriving {
            Some((arriving, outcome)) if *arriving == ticket => *outcome = Some(placed),
            _ => {
                if let Some(reply) = self.replies.remove(&ticket) {
                    // A client that left drops its lease, which takes the request off the books.
                    let _ = reply.send(placed);
                }
            }
        }
    }
}

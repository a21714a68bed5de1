//! The scheduler's task: turns events and timers into planner calls, and the planner's actions into
//! replies.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, error};

use super::availability_of;
use super::decisions::DecisionRing;
use super::metrics::SchedulerMetrics;
use super::solver::SolveOutcome;
use crate::domain::{Availability, Prediction};
use crate::planning::{Action, Arrival, PlanJob, Planned, Planner, Rejection, Step, Ticket};
use crate::units::Seconds;

/// Events taken in before the planner is asked again, so that a burst is one plan.
const EVENTS_PER_TURN: usize = 1024;

/// What can happen to the planner.
#[derive(Debug)]
pub(super) enum Event {
    /// A request joins the waiting set (again, if it fails over).
    Arrived {
        /// The request.
        arrival: Arrival,
        /// Where its placement goes.
        reply: oneshot::Sender<Result<Sent, Rejection>>,
    },
    /// A better prediction is there.
    Predicted {
        /// The request.
        ticket: Ticket,
        /// Its prediction.
        prediction: Arc<Prediction>,
    },
    /// A request is over.
    Over {
        /// The request.
        ticket: Ticket,
    },
}

/// A placement on its way to the request's own task.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) planned: Planned,
    pub(super) plan: u64,
    pub(super) waited: Seconds,
    pub(super) batch_size: usize,
}

/// The clock and the health the task follows.
#[derive(Debug)]
pub(super) struct Surroundings {
    pub(super) epoch: Instant,
    pub(super) health: watch::Receiver<Arc<[Availability]>>,
}

/// The task's state. `S` takes a job and delivers its outcome later.
pub(super) struct SchedulerTask<S> {
    planner: Planner,
    submit: S,
    metrics: SchedulerMetrics,
    decisions: DecisionRing,
    surroundings: Surroundings,
    replies: HashMap<Ticket, oneshot::Sender<Result<Sent, Rejection>>>,
}

impl<S: Fn(PlanJob) -> oneshot::Receiver<SolveOutcome>> SchedulerTask<S> {
    pub(super) fn new(
        planner: Planner,
        submit: S,
        metrics: SchedulerMetrics,
        decisions: DecisionRing,
        surroundings: Surroundings,
    ) -> Self {
        Self { planner, submit, metrics, decisions, surroundings, replies: HashMap::new() }
    }

    /// Runs until every handle to the scheduler is gone.
    pub(super) async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Event>) {
        let mut solving: Option<oneshot::Receiver<SolveOutcome>> = None;
        self.take_health();
        loop {
            let wakeup = self.turn(&mut solving).map(|at| self.instant(at));
            tokio::select! {
                // Cancel-safe: recv, changed and sleep lose nothing when another arm wins.
                event = inbox.recv() => match event {
                    Some(event) => self.take_events(event, &mut inbox),
                    None => return,
                },
                outcome = solved(&mut solving) => {
                    solving = None;
                    // What is down by now must not be sent to.
                    if self.surroundings.health.has_changed().unwrap_or(false) {
                        self.take_health();
                    }
                    self.take_outcome(outcome);
                }
                changed = self.surroundings.health.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.take_health();
                }
                () = sleep_or_never(wakeup) => {}
            }
        }
    }

    /// Lets the planner act; gives the time of the next turn without an event.
    fn turn(&mut self, solving: &mut Option<oneshot::Receiver<SolveOutcome>>) -> Option<Seconds> {
        let now = self.now();
        let mut actions = Vec::new();
        let step = self.planner.step(now, &mut actions);
        self.perform(actions);
        self.metrics.fleet(&self.planner.context(now), self.planner.n_held());
        match step {
            Step::Wait(until) => until,
            Step::Solve(job) => {
                *solving = Some((self.submit)(*job));
                None
            }
        }
    }

    fn take_events(&mut self, first: Event, inbox: &mut mpsc::UnboundedReceiver<Event>) {
        self.take_event(first);
        for _ in 1..EVENTS_PER_TURN {
            match inbox.try_recv() {
                Ok(event) => self.take_event(event),
                Err(_) => return,
            }
        }
    }

    fn take_event(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Arrived { arrival, reply } => {
                self.replies.insert(arrival.ticket, reply);
                self.planner.arrive(now, arrival);
            }
            Event::Predicted { ticket, prediction } => self.planner.predicted(now, ticket, prediction),
            Event::Over { ticket } => {
                self.replies.remove(&ticket);
                self.planner.finish(now, ticket);
            }
        }
    }

    fn take_health(&mut self) {
        let health = Arc::clone(&self.surroundings.health.borrow_and_update());
        let destinations = self.planner.destinations().iter();
        let availability = destinations.map(|d| availability_of(d, &health)).collect();
        self.planner.set_availability(availability);
    }

    fn take_outcome(&mut self, outcome: Option<SolveOutcome>) {
        let now = self.now();
        let mut actions = Vec::new();
        match outcome {
            Some(Ok(solved)) => {
                self.planner.commit(now, &solved.plan, &mut actions);
                debug!(
                    plan = solved.plan.number,
                    n_requests = solved.plan.planned.len(),
                    n_leaving = actions.len(),
                    solve_ms = solved.took.as_secs_f64() * 1e3,
                    "planned"
                );
                self.metrics.plan(&solved.plan, solved.took);
                self.decisions.push(solved);
            }
            Some(Err(reason)) => {
                error!(%reason, "the policy could not decide");
                self.planner.abandon(now, &reason.to_string(), &mut actions);
            }
            None => {
                error!("the solver thread is gone");
                self.planner.abandon(now, "the solver stopped", &mut actions);
            }
        }
        self.perform(actions);
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { planned, plan, waited, gathered, held, batch_size } => {
                    self.metrics.sent(gathered, held);
                    if let Some(reply) = self.replies.remove(&planned.ticket) {
                        // A client that left has dropped its lease, which takes the request off the books.
                        let _ = reply.send(Ok(Sent { planned, plan, waited, batch_size }));
                    }
                }
                Action::Reject { ticket, reason } => {
                    if let Some(reply) = self.replies.remove(&ticket) {
                        let _ = reply.send(Err(reason));
                    }
                }
            }
        }
    }

    fn now(&self) -> Seconds {
        Seconds(self.surroundings.epoch.elapsed().as_secs_f64())
    }

    /// The first instant at which [`SchedulerTask::now`] is not before `at`.
    fn instant(&self, at: Seconds) -> Instant {
        const ROUNDING: Duration = Duration::from_nanos(1);
        self.surroundings.epoch + Duration::from_secs_f64(at.0.max(0.0)) + ROUNDING
    }
}

async fn solved(solving: &mut Option<oneshot::Receiver<SolveOutcome>>) -> Option<SolveOutcome> {
    match solving {
        Some(receiver) => receiver.await.ok(),
        None => std::future::pending().await,
    }
}

async fn sleep_or_never(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

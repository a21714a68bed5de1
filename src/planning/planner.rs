//! The planner's state machine: who waits, who runs, when a window closes, what leaves.
//!
//! Every held request says itself when it wants to be planned ([`Held::plan_at`]); the next plan is made
//! when the first of them does, or when something changes (a request finishes, health changes) that those who were
//! passed over wait for. A plan is for up to `max_requests`, in the order in which they take slots; what it places
//! where it cannot start yet is passed over and planned again. Its own waiting goes from `max_ms` (its prompt may wait
//! in a free slot) over `any_slot_after_ms` (any free slot will do) to `max_hold_ms` (the queue of its planned
//! destination's engine, else any queue with room).

mod deadlines;
mod switching;

use std::sync::Arc;

use super::held::{Batch, Held, HeldSet, OrderKey, OrderPlace, Stage};
use super::messages::{Action, Arrival, Rejection, Step, Ticket};
use super::params::{WindowClose, WindowOrder, WindowParams};
use super::plan::{Plan, PlanJob, Planned, Waiting};
use super::price::PriceParams;
use super::situation::Situation;
use crate::domain::{
    Availability, CompletionModel, Destination, FleetView, ModelTarget, Prediction, RoutingContext,
    RoutingRequest, Weights,
};
use crate::routing::{LegalSet, NoDestination, legal_set};
use crate::units::Seconds;

/// Arrivals after a plan are gathered until this long after it, where something of it is left: one that finds nothing
/// waiting and nothing running waits for nobody.
const COALESCE: Seconds = Seconds(0.002);
/// How many seconds of service a second of waiting is worth in the `shortest` order.
const AGEING: f64 = 0.3;
/// `max_hold_ms: auto` is this many times the time scale T_ref, but at most [`AUTO_HOLD_MAX`].
const AUTO_HOLD_SCALES: f64 = 2.0;
/// See [`AUTO_HOLD_SCALES`].
const AUTO_HOLD_MAX: Seconds = Seconds(15.0);
/// A request does not leave for a destination where its prompt would not begin to be read within a round trip
/// and this.
const READING_SOON: Seconds = Seconds(0.1);

/// Requests of one rolling plan; those behind them in the order are planned anew before they could start.
const ROLLING_PLAN_MAX: usize = 64;

/// What stays the same while the planner runs.
#[derive(Debug, Clone, Copy)]
pub struct PlannerParams {
    /// Gathering and holding.
    pub window: WindowParams,
    /// Whether the policy gains from company; a per-request policy never gathers in an adaptive window.
    pub gather: bool,
    /// Weights of requests that bring none.
    pub weights: Weights,
    /// How outstanding work drains and completion is predicted.
    pub completion: CompletionModel,
    /// How congestion is priced; `None` = not at all.
    pub prices: Option<PriceParams>,
    /// Whether a request is refused once no legal destination is predicted to meet its deadline.
    pub refuses_infeasible: bool,
}

/// How the configured window and policy gather.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gathering {
    /// Each request at once.
    None,
    /// Rolling: planned at every event, held while its place is taken.
    Adaptive,
    /// Closed by time or count.
    Fixed,
}

impl Gathering {
    fn of(params: &PlannerParams) -> Self {
        match (params.window.max_wait.0 > 0.0, params.window.close, params.gather) {
            (true, WindowClose::Fixed, _) => Self::Fixed,
            (true, WindowClose::Adaptive, true) => Self::Adaptive,
            _ => Self::None,
        }
    }
}

/// The planner.
#[derive(Debug)]
pub struct Planner {
    params: PlannerParams,
    gathering: Gathering,
    situation: Situation,
    held: HeldSet,
    /// Whether a plan is under way; there is one at most.
    is_solving: bool,
    /// Whether a place may have become free, or have gone, since the last plan was begun.
    has_changed: bool,
    /// Whether destinations went out of service: some who were passed over may have none left.
    has_lost: bool,
    /// After whom to go on with those who were passed over before the last change; `None` = nothing has changed.
    visit: Option<Option<OrderPlace>>,
    n_plans: u64,
    /// When the last plan was begun.
    planned_at: Option<Seconds>,
    n_sent: u64,
    n_rebinds: u64,
}

impl Planner {
    /// A planner over `destinations` (all ready), with nothing waiting and nothing in flight.
    #[must_use]
    pub fn new(params: PlannerParams, destinations: Arc<[Destination]>, now: Seconds) -> Self {
        Self {
            params,
            gathering: Gathering::of(&params),
            situation: Situation::new(&params, destinations, now),
            held: HeldSet::default(),
            is_solving: false,
            has_changed: false,
            has_lost: false,
            visit: None,
            n_plans: 0,
            planned_at: None,
            n_sent: 0,
            n_rebinds: 0,
        }
    }

    /// A request arrived, or needs another destination because one failed it before any content.
    pub fn arrive(&mut self, now: Seconds, arrival: Arrival) {
        self.finish(now, arrival.ticket);
        let (stage, plan_at) = if arrival.is_failing_over() {
            (Stage::PassedOver, now)
        } else if self.gathering == Gathering::Fixed {
            (Stage::Gathering, self.open_window(now).unwrap_or(now + self.params.window.max_wait))
        } else {
            let gathered = self.gathered(now);
            (Stage::Gathering, arrival.awaiting_until.map_or(gathered, |until| until.max(gathered)))
        };
        self.held.insert(Held {
            key: self.order_key(&arrival),
            arrival,
            stage,
            plan_at: Some(plan_at),
            alone: false,
            passed_over: None,
            planned: None,
            greedy_done: None,
            look_at: None,
        });
    }

    /// The prediction of a waiting request is there.
    pub fn predicted(&mut self, now: Seconds, ticket: Ticket, prediction: Arc<Prediction>) {
        let Some(mut held) = self.held.remove(ticket) else { return };
        held.arrival.prediction = prediction;
        held.arrival.awaiting_until = None;
        if self.gathering != Gathering::Fixed && held.stage == Stage::Gathering {
            held.plan_at = Some(self.gathered(now));
        }
        held.key = self.order_key(&held.arrival);
        self.held.insert(held);
    }

    /// A request is over, whatever its outcome: it finished, failed for good, or its client left.
    pub fn finish(&mut self, now: Seconds, ticket: Ticket) {
        self.let_go(now, ticket);
        self.has_changed |= self.situation.finish(now, ticket);
    }

    /// The health of the fleet changed; one entry per destination.
    pub fn set_availability(&mut self, availability: &[Availability]) {
        self.has_lost |= self.situation.set_availability(availability);
        self.has_changed |= self.has_lost;
    }

    /// The first content of a request's answer has come.
    pub fn answering(&mut self, now: Seconds, ticket: Ticket) {
        self.situation.answering(now, ticket);
    }

    /// The profiler sees the fleet like this from `now` on; what is dispatched keeps its predicted work.
    pub fn set_view(&mut self, now: Seconds, view: &FleetView) {
        // There may be more places.
        self.has_changed |= self.situation.set_view(now, view);
    }

    /// The destinations, in order.
    #[must_use]
    pub const fn destinations(&self) -> &Arc<[Destination]> {
        self.situation.destinations()
    }

    /// Where a request may go as things stand, whatever its predicted quality.
    ///
    /// # Errors
    /// The constraint that leaves nothing.
    pub fn legal_set(&self, request: &RoutingRequest) -> Result<LegalSet, NoDestination> {
        legal_set(request, None, self.situation.latest(), &[])
    }

    /// Requests waiting.
    #[must_use]
    pub fn n_held(&self) -> usize {
        self.held.len()
    }

    /// How often a later plan sent a waiting request elsewhere than the one before, so far.
    #[must_use]
    pub const fn n_rebinds(&self) -> u64 {
        self.n_rebinds
    }

    /// The fleet as of `now`: what a plan made now would see.
    pub fn context(&mut self, now: Seconds) -> &RoutingContext {
        self.situation.at(now)
    }

    /// Says what to do at `now`. Requests whose time is up come back as rejections in `actions`.
    pub fn step(&mut self, now: Seconds, actions: &mut Vec<Action>) -> Step {
        if self.held.len() == 0 {
            // As after most events.
            self.has_changed &= self.is_solving;
            return Step::Wait(None);
        }
        while let Some(ticket) = self.held.expired(now) {
            if let Some(held) = self.let_go(now, ticket) {
                let reason = Rejection::Expired { waited: now - held.arrival.arrived };
                actions.push(Action::Reject { ticket, reason });
            }
        }
        self.look_at_deadlines(now, actions);
        while !self.is_solving {
            let due = self.due_together(now);
            if due.is_empty() {
                break;
            }
            let tickets = self.keep_feasible(now, due, actions);
            if !tickets.is_empty() {
                return Step::Solve(Box::new(self.take(now, &tickets)));
            }
        }
        Step::Wait(self.held.next_due(self.is_solving))
    }

    /// Takes in a solved plan: what can start leaves, the rest is held and planned again later.
    pub fn commit(&mut self, now: Seconds, plan: &Plan, actions: &mut Vec<Action>) {
        if let Some(solved) = &plan.solved {
            self.situation.learn(&solved.problem);
        }
        for (ticket, reason) in &plan.impossible {
            if self.let_go(now, *ticket).is_some() {
                let reason = Rejection::Impossible(reason.clone());
                actions.push(Action::Reject { ticket: *ticket, reason });
            }
        }
        let mut has_sent = false;
        // In the order of the rows, which is that of taking slots.
        for planned in &plan.planned {
            if self.may_leave(now, planned) {
                actions.extend(self.send(now, plan, planned));
                has_sent = true;
            } else {
                self.bind(now, planned);
            }
        }
        self.hold_the_rest(now, has_sent);
    }

    /// The policy could not decide on the plan under way. Each of its requests gets a plan of its own, so
    /// that one does not take the others along; one that had its own is answered with `reason`.
    pub fn abandon(&mut self, now: Seconds, reason: &str, actions: &mut Vec<Action>) {
        self.is_solving = false;
        for ticket in self.held.solving() {
            if self.held.get(ticket).is_some_and(|held| held.alone) {
                self.let_go(now, ticket);
                let reason = Rejection::Undecided(reason.to_owned());
                actions.push(Action::Reject { ticket, reason });
            } else {
                self.held.change(ticket, |held| {
                    (held.stage, held.plan_at, held.alone) = (Stage::PassedOver, Some(now), true);
                });
            }
        }
    }

    /// When the window that gathers now closes, if one does.
    fn open_window(&self, now: Seconds) -> Option<Seconds> {
        self.held.newest_gathering()?.plan_at.filter(|at| at.0 > now.0)
    }

    /// When whoever comes `now` has been gathered, outside a fixed window.
    fn gathered(&self, now: Seconds) -> Seconds {
        let is_idle = self.held.len() == 0 && self.situation.is_idle();
        match (self.gathering, self.planned_at) {
            (Gathering::Adaptive, Some(at)) if !is_idle => {
                now.max(at + COALESCE.min(self.params.window.max_wait))
            }
            _ => now,
        }
    }

    /// Its place in the order of taking slots. To come a second later counts like 0.3 s of service more, which is
    /// ageing that does not have to be counted again as time goes by.
    fn order_key(&self, arrival: &Arrival) -> OrderKey {
        let (request, arrived) = (&arrival.request, arrival.arrived);
        let deadline = request.constraints.deadline.map_or(Seconds(f64::INFINITY), |d| arrived + d);
        if self.params.window.order == WindowOrder::Fifo {
            return OrderKey::new(deadline, arrived.0);
        }
        let is_model = |d: &Destination| match &request.target {
            ModelTarget::Any => true,
            ModelTarget::Named(name) => d.model == *name,
        };
        let of_model = self.situation.latest().iter().zip(&arrival.prediction.completion_tokens);
        let services = of_model
            .filter(|((_, d, _), _)| is_model(d))
            .map(|((ord, d, _), tokens)| request.work((ord, &d.throughput), *tokens).total());
        let least = services.reduce(Seconds::min).unwrap_or(Seconds::ZERO);
        OrderKey::new(deadline, least.0 + AGEING * arrived.0)
    }

    /// Who is planned together now, in the order of taking slots; nobody while nobody wants it, nothing has changed
    /// and no batch is full.
    fn due_together(&mut self, now: Seconds) -> Vec<Ticket> {
        let n_max = match self.gathering {
            Gathering::Adaptive => self.params.window.max_requests.min(ROLLING_PLAN_MAX),
            Gathering::None | Gathering::Fixed => self.params.window.max_requests,
        };
        let is_full = self.gathering != Gathering::None && self.held.n_ready() >= n_max;
        let is_visiting = self.is_visiting(now);
        let mut wanting = self.held.wanting(now).peekable();
        if !is_full && wanting.peek().is_none() && !is_visiting {
            return Vec::new();
        }
        let is_alone = |ticket: &Ticket| self.held.get(*ticket).is_some_and(|held| held.alone);
        if let Some(first) = wanting.peek().copied().filter(is_alone) {
            return vec![first];
        }
        let joins_early = is_full || self.gathering != Gathering::Fixed;
        let early = joins_early.then(|| self.held.ready()).into_iter().flatten();
        let mut batch = Batch::new(n_max, self.held.len());
        for ticket in wanting.chain(early).take(2 * n_max) {
            batch.offer(&self.held, ticket);
        }
        // Nobody who was passed over gains from a plan in which nothing can leave.
        if is_visiting || self.has_room(now) {
            let from = self.visit.flatten();
            let mut last = from;
            for place in self.held.in_order(from).take(2 * n_max) {
                if batch.is_full() {
                    break;
                }
                batch.offer(&self.held, place.1);
                last = Some(place);
            }
            if is_visiting {
                self.visit = batch.is_full().then_some(last);
            }
        }
        batch.in_order()
    }

    /// Whether those who were passed over are being gone through, because something has changed since.
    fn is_visiting(&mut self, now: Seconds) -> bool {
        if std::mem::take(&mut self.has_changed) {
            self.visit = Some(None);
        }
        if !(self.held.has_passed_over() && (self.has_lost || self.has_room(now))) {
            self.visit = None;
        }
        self.has_lost &= self.visit.is_some();
        self.visit.is_some()
    }

    /// Whether anything could leave for anywhere: into a slot, or into an engine's queue once somebody has waited
    /// long enough for that.
    fn has_room(&self, now: Seconds) -> bool {
        let patience = self.engine_queue_after();
        let queues = self.held.oldest().is_some_and(|held| held.arrival.has_waited(now, patience));
        self.situation.has_room(!queues)
    }

    /// The job that plans `tickets`.
    fn take(&mut self, now: Seconds, tickets: &[Ticket]) -> PlanJob {
        let context = self.situation.at(now).clone();
        let (any_slot_after, hold) = (self.any_slot_after(), self.hold());
        let mut waiting = Vec::with_capacity(tickets.len());
        let mut time = None;
        for ticket in tickets {
            self.held.change(*ticket, |held| held.stage = Stage::Solving);
            let Some(held) = self.held.get(*ticket) else { continue };
            time = held.time_term();
            waiting.push(Waiting {
                ticket: *ticket,
                request: Arc::clone(&held.arrival.request),
                prediction: Arc::clone(&held.arrival.prediction),
                excluded: held.arrival.excluded.clone(),
                waited: now - held.arrival.arrived,
                takes_any_slot: any_slot_after.is_some_and(|after| held.arrival.has_waited(now, after)),
                takes_any_room: held.arrival.has_waited(now, hold),
            });
        }
        self.is_solving = true;
        self.n_plans += 1;
        self.planned_at = Some(now);
        let (number, first_request_number) = (self.n_plans, self.n_sent);
        let completion = self.params.completion;
        PlanJob { number, taken_at: now, first_request_number, waiting, context, completion, time }
    }

    /// Whether a planned request goes now: its destination starts it at once, or the request has waited its
    /// time and the destination's queue takes it.
    fn may_leave(&mut self, now: Seconds, planned: &Planned) -> bool {
        let places = self.situation.places(now, planned.destination);
        let Some(held) = self.held.get(planned.ticket) else { return false };
        let has_room = if held.arrival.has_waited(now, self.engine_queue_after()) {
            places.in_queue > 0
        } else {
            let is_read_soon = places.read_in.0 <= places.rtt.0 + READING_SOON.0;
            places.in_slots > 0 && (is_read_soon || held.arrival.has_waited(now, self.params.window.max_wait))
        };
        // It may have gone out of service while the plan was made.
        has_room && places.takes_work
    }

    /// Waiting time after which a request joins the queue of its planned destination's engine.
    fn engine_queue_after(&self) -> Seconds {
        match self.gathering {
            Gathering::Adaptive => self.hold(),
            Gathering::None | Gathering::Fixed => Seconds::ZERO,
        }
    }

    /// Waiting time after which a request no longer waits for a slot while another destination has a free
    /// one; `None` where batches go to the engines' queues as planned.
    fn any_slot_after(&self) -> Option<Seconds> {
        let after = self.params.window.any_slot_after.unwrap_or(Seconds(f64::INFINITY));
        (self.gathering == Gathering::Adaptive).then(|| after.min(self.hold()))
    }

    /// Waiting time after which a request no longer waits for a full destination while another has room.
    fn hold(&self) -> Seconds {
        let auto = Seconds(AUTO_HOLD_SCALES * self.situation.scales().time.0).min(AUTO_HOLD_MAX);
        match self.gathering {
            Gathering::None => Seconds::ZERO,
            Gathering::Adaptive | Gathering::Fixed => {
                self.params.window.max_hold.unwrap_or(auto).max(self.params.window.max_wait)
            }
        }
    }

    fn send(&mut self, now: Seconds, plan: &Plan, planned: &Planned) -> Option<Action> {
        let held = self.let_go(now, planned.ticket)?;
        let arrived = held.arrival.arrived;
        let held_since = held.passed_over.map_or(now, |(since, _)| since);
        self.situation.dispatch(now, planned);
        self.n_sent += 1;
        let greedy_done = held.greedy_done.or(planned.greedy_finish.map(|finish| now + finish));
        Some(Action::Send {
            planned: planned.clone(),
            plan: plan.number,
            waited: now - arrived,
            gathered: (!held.arrival.is_failing_over()).then(|| held_since - arrived),
            held: now - held_since,
            batch_size: plan.planned.len(),
            greedy_left: greedy_done.map(|done| done - now),
        })
    }

    /// A planned request that does not leave is spoken for where it is planned.
    fn bind(&mut self, now: Seconds, planned: &Planned) {
        let d = planned.destination;
        let Some(before) = self.held.get(planned.ticket).map(|held| held.planned) else { return };
        if before != Some(d) {
            self.n_rebinds += u64::from(before.is_some());
            self.situation.speak_for(now, before, Some(d));
        }
        self.held.change(planned.ticket, |held| {
            held.planned = Some(d);
            held.greedy_done = held.greedy_done.or(planned.greedy_finish.map(|finish| now + finish));
        });
    }

    /// Ends the plan under way; `has_sent` = some of its requests left.
    fn hold_the_rest(&mut self, now: Seconds, has_sent: bool) {
        self.is_solving = false;
        let (any_slot_after, hold) = (self.any_slot_after(), self.hold());
        let read_after = (self.gathering == Gathering::Adaptive).then_some(self.params.window.max_wait);
        let n_sent = self.n_sent;
        for ticket in self.held.solving() {
            self.held.change(ticket, |held| {
                let arrived = held.arrival.arrived;
                let milestones = [read_after, any_slot_after, Some(hold)];
                // Others of the plan took the room it was planned to; there may be more elsewhere.
                let patience = any_slot_after.map_or(hold, |after| after.min(hold));
                let plans_again = has_sent && held.arrival.has_waited(now, patience);
                let ahead = milestones.into_iter().flatten().map(|after| arrived + after);
                let next = ahead.filter(|at| at.0 > now.0).reduce(Seconds::min);
                held.plan_at = if plans_again { Some(now) } else { next };
                (held.stage, held.alone) = (Stage::PassedOver, false);
                held.passed_over.get_or_insert((now, n_sent));
            });
        }
        self.held.promote(self.n_sent, u64::from(self.params.window.max_overtakes));
    }

    /// Takes a request out of the waiting set.
    fn let_go(&mut self, now: Seconds, ticket: Ticket) -> Option<Held> {
        let held = self.held.remove(ticket)?;
        self.situation.speak_for(now, held.planned, None);
        Some(held)
    }
}

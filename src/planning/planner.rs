//! The planner's state machine: who waits, who runs, when a window closes, what leaves.
//!
//! Every held request says itself when it wants to be planned ([`Held::plan_at`]); the next plan is made
//! when the first of them does, for up to `max_requests` of those that may join it. What a plan places
//! where it cannot go yet is passed over: it wants a plan again when something changes (a request
//! finishes, health changes) or when its own waiting reaches `max_ms` (any free slot will do, else the
//! queue of its planned destination) and then `max_hold_ms` (any queue with room will do).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::messages::{Action, Arrival, Rejection, Step, Ticket};
use super::params::{WindowClose, WindowOrder, WindowParams};
use super::plan::{Plan, PlanJob, Planned, Waiting};
use super::scales::ScalesAverage;
use crate::domain::{
    Availability, BacklogLedger, CompletionModel, Destination, DestinationOrd, DestinationState, FleetView,
    Outstanding, Prediction, RoutingContext, RoutingRequest, SlotLoad, Weights,
};
use crate::routing::{LegalSet, NoDestination, legal_set};
use crate::units::Seconds;

/// Arrivals of the same instant are gathered this long before an adaptive plan is made.
const COALESCE: Seconds = Seconds(0.002);
/// How many seconds of service a second of waiting is worth in the `shortest` order.
const AGEING: f64 = 0.3;
/// `max_hold_ms: auto` is this many times the time scale T_ref, but at most [`AUTO_HOLD_MAX`].
const AUTO_HOLD_SCALES: f64 = 2.0;
/// See [`AUTO_HOLD_SCALES`].
const AUTO_HOLD_MAX: Seconds = Seconds(15.0);

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

/// Where a held request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Not planned yet.
    Gathering,
    /// Part of the plan under way.
    Solving,
    /// Planned where it cannot go yet, or failing over.
    PassedOver,
}

#[derive(Debug)]
struct Held {
    arrival: Arrival,
    stage: Stage,
    /// When it wants to be planned; `None` = when something changes.
    plan_at: Option<Seconds>,
    /// A plan with others could not be decided: the next one is its own.
    alone: bool,
    /// When it was first passed over.
    held_since: Option<Seconds>,
}

impl Held {
    fn wants_plan(&self, now: Seconds) -> bool {
        self.stage != Stage::Solving && self.plan_at.is_some_and(|at| at.0 <= now.0)
    }

    /// Whether it is new and nothing is to be waited for but company.
    fn is_gathered(&self, now: Seconds) -> bool {
        self.stage == Stage::Gathering && self.arrival.has_final_prediction(now)
    }
}

/// The planner.
#[derive(Debug)]
pub struct Planner {
    params: PlannerParams,
    gathering: Gathering,
    /// The fleet; backlog, requests in flight and scales as of the last look at it.
    context: RoutingContext,
    ledger: BacklogLedger,
    /// What others have at each destination.
    elsewhere: Vec<SlotLoad>,
    scales: ScalesAverage,
    held: BTreeMap<Ticket, Held>,
    running: BTreeMap<Ticket, Outstanding>,
    /// Whether a plan is under way; there is one at most.
    is_solving: bool,
    /// Whether a place may have become free, or have gone, since the last plan was begun.
    has_changed: bool,
    n_plans: u64,
    n_routed: u64,
}

impl Planner {
    /// A planner over `destinations` (all ready), with nothing waiting and nothing in flight.
    #[must_use]
    pub fn new(params: PlannerParams, destinations: Arc<[Destination]>, now: Seconds) -> Self {
        let throughputs = destinations.iter().map(|d| d.throughput);
        let ledger = BacklogLedger::new(params.completion, throughputs, now);
        let gathering = match (params.window.max_wait.0 > 0.0, params.window.close, params.gather) {
            (true, WindowClose::Fixed, _) => Gathering::Fixed,
            (true, WindowClose::Adaptive, true) => Gathering::Adaptive,
            _ => Gathering::None,
        };
        let scales = ScalesAverage::from_fleet(&destinations);
        let elsewhere = vec![SlotLoad::EMPTY; destinations.len()];
        let context = RoutingContext {
            states: vec![DestinationState::idle(); destinations.len()],
            destinations,
            weights: params.weights,
            scales: scales.current(),
        };
        Self {
            params,
            gathering,
            context,
            ledger,
            elsewhere,
            scales,
            held: BTreeMap::new(),
            running: BTreeMap::new(),
            is_solving: false,
            has_changed: false,
            n_plans: 0,
            n_routed: 0,
        }
    }

    /// A request arrived, or needs another destination because one failed it before any content.
    pub fn arrive(&mut self, now: Seconds, arrival: Arrival) {
        self.release(now, arrival.ticket);
        let (stage, plan_at) = if arrival.is_failing_over() {
            (Stage::PassedOver, now)
        } else if self.gathering == Gathering::Fixed {
            (Stage::Gathering, self.open_window(now).unwrap_or(now + self.params.window.max_wait))
        } else {
            let coalesced = now.max(arrival.arrived + self.coalescing());
            (Stage::Gathering, arrival.awaiting_until.map_or(coalesced, |until| until.max(coalesced)))
        };
        self.held.insert(
            arrival.ticket,
            Held { arrival, stage, plan_at: Some(plan_at), alone: false, held_since: None },
        );
    }

    /// The prediction of a waiting request is there.
    pub fn predicted(&mut self, now: Seconds, ticket: Ticket, prediction: Arc<Prediction>) {
        let plan_sooner = self.gathering != Gathering::Fixed;
        let coalescing = self.coalescing();
        let Some(held) = self.held.get_mut(&ticket) else { return };
        held.arrival.prediction = prediction;
        held.arrival.awaiting_until = None;
        if plan_sooner && held.stage == Stage::Gathering {
            held.plan_at = Some(now.max(held.arrival.arrived + coalescing));
        }
    }

    /// A request is over, whatever its outcome: it finished, failed for good, or its client left.
    pub fn finish(&mut self, now: Seconds, ticket: Ticket) {
        self.held.remove(&ticket);
        self.release(now, ticket);
    }

    /// The health of the fleet changed; one entry per destination.
    pub fn set_availability(&mut self, availability: &[Availability]) {
        let states = &mut self.context.states;
        if availability.len() != states.len() {
            return;
        }
        for (state, now) in states.iter_mut().zip(availability) {
            self.has_changed |= state.availability != *now;
            state.availability = *now;
        }
    }

    /// The first content of a request's answer has come.
    pub fn answering(&mut self, now: Seconds, ticket: Ticket) {
        if let Some(outstanding) = self.running.get(&ticket) {
            self.ledger.answering(now, outstanding);
        }
    }

    /// The profiler sees the fleet like this from `now` on; what is dispatched keeps its predicted work.
    pub fn set_view(&mut self, now: Seconds, view: &FleetView) {
        let n = self.context.states.len();
        if (view.destinations.len(), view.moments.len()) != (n, n) {
            return;
        }
        self.context.destinations = Arc::clone(&view.destinations);
        for (d, (destination, moment)) in
            (0u32..).map(DestinationOrd).zip(view.destinations.iter().zip(&view.moments))
        {
            self.ledger.set_figures(now, d, destination.throughput, moment.pace);
            let state = &mut self.context.states[d.idx()];
            (state.pace, state.warm_up) = (moment.pace, moment.warm_up);
            self.elsewhere[d.idx()] = moment.elsewhere;
        }
        // There may be more places.
        self.has_changed = true;
    }

    /// The destinations, in order.
    #[must_use]
    pub const fn destinations(&self) -> &Arc<[Destination]> {
        &self.context.destinations
    }

    /// Where a request may go as things stand, whatever its predicted quality.
    ///
    /// # Errors
    /// The constraint that leaves nothing.
    pub fn legal_set(&self, request: &RoutingRequest) -> Result<LegalSet, NoDestination> {
        legal_set(request, None, &self.context, &[])
    }

    /// Requests waiting.
    #[must_use]
    pub fn n_held(&self) -> usize {
        self.held.len()
    }

    /// The fleet as of `now`: what a plan made now would see.
    pub fn context(&mut self, now: Seconds) -> &RoutingContext {
        let destinations = self.context.destinations.iter().zip(&self.elsewhere);
        for ((d, state), (destination, elsewhere)) in
            (0u32..).map(DestinationOrd).zip(&mut self.context.states).zip(destinations)
        {
            state.inflight = self.ledger.inflight(d);
            state.load = self.ledger.load(now, d);
            state.backlog = self.ledger.backlog(now, d);
            if elsewhere.outstanding() > 0 {
                state.load = state.load.with(elsewhere);
                state.backlog += Seconds(elsewhere.drain_time(&destination.throughput).0 / state.pace);
            }
        }
        self.context.scales = self.scales.current();
        &self.context
    }

    /// Says what to do at `now`. Requests whose time is up come back as rejections in `actions`.
    pub fn step(&mut self, now: Seconds, actions: &mut Vec<Action>) -> Step {
        if self.held.is_empty() {
            // As after most events.
            self.has_changed &= self.is_solving;
            return Step::Wait(None);
        }
        self.expire(now, actions);
        if !self.is_solving {
            if std::mem::take(&mut self.has_changed) {
                let passed_over = self.held.values_mut().filter(|held| held.stage == Stage::PassedOver);
                passed_over.for_each(|held| held.plan_at = Some(now));
            }
            let tickets = self.due_together(now);
            if !tickets.is_empty() {
                return Step::Solve(Box::new(self.take(now, &tickets)));
            }
        }
        Step::Wait(self.next_due())
    }

    /// Takes in a solved plan: what can start leaves, the rest is held and planned again later.
    pub fn commit(&mut self, now: Seconds, plan: &Plan, actions: &mut Vec<Action>) {
        if let Some(solved) = &plan.solved {
            self.scales.observe(&solved.problem);
        }
        for (ticket, reason) in &plan.impossible {
            if self.held.remove(ticket).is_some() {
                let reason = Rejection::Impossible(reason.clone());
                actions.push(Action::Reject { ticket: *ticket, reason });
            }
        }
        let mut has_sent = false;
        for planned in self.release_order(now, plan) {
            if self.may_leave(now, planned) {
                actions.push(self.send(now, plan, planned));
                has_sent = true;
            }
        }
        self.hold_the_rest(now, has_sent);
    }

    /// The policy could not decide on the plan under way. Each of its requests gets a plan of its own, so
    /// that one does not take the others along; one that had its own is answered with `reason`.
    pub fn abandon(&mut self, now: Seconds, reason: &str, actions: &mut Vec<Action>) {
        self.is_solving = false;
        self.held.retain(|ticket, held| {
            if held.stage != Stage::Solving {
                return true;
            }
            (held.stage, held.plan_at) = (Stage::PassedOver, Some(now));
            let was_alone = std::mem::replace(&mut held.alone, true);
            if was_alone {
                let reason = Rejection::Undecided(reason.to_owned());
                actions.push(Action::Reject { ticket: *ticket, reason });
            }
            !was_alone
        });
    }

    /// When the window that gathers now closes, if one does.
    fn open_window(&self, now: Seconds) -> Option<Seconds> {
        let newest = self.held.values().rev().find(|held| held.stage == Stage::Gathering)?;
        newest.plan_at.filter(|at| at.0 > now.0)
    }

    /// How long same-instant arrivals are gathered outside a fixed window.
    fn coalescing(&self) -> Seconds {
        match self.gathering {
            Gathering::None => Seconds::ZERO,
            Gathering::Adaptive | Gathering::Fixed => COALESCE.min(self.params.window.max_wait),
        }
    }

    /// Who is planned together now, oldest first: those that want it and, up to `max_requests`, those that
    /// may as well. Nobody while nobody wants it and no batch is full.
    fn due_together(&self, now: Seconds) -> Vec<Ticket> {
        let n_max = self.params.window.max_requests;
        let n_gathered = self.held.values().filter(|held| held.is_gathered(now)).count();
        let is_full = self.gathering != Gathering::None && n_gathered >= n_max;
        if !is_full && !self.held.values().any(|held| held.wants_plan(now)) {
            return Vec::new();
        }
        let joins_early = is_full || self.gathering != Gathering::Fixed;
        let rank = |held: &Held| match held.stage {
            _ if held.wants_plan(now) => Some(0),
            Stage::Gathering if joins_early && held.is_gathered(now) => Some(1),
            Stage::PassedOver => Some(2),
            Stage::Gathering | Stage::Solving => None,
        };
        let mut ranked: Vec<(u8, Ticket, bool)> =
            self.held.iter().filter_map(|(ticket, held)| Some((rank(held)?, *ticket, held.alone))).collect();
        ranked.sort_unstable();
        let is_alone = ranked.first().is_some_and(|(.., alone)| *alone);
        let n_together = if is_alone { 1 } else { n_max };
        let together = ranked.into_iter().filter(|(.., alone)| *alone == is_alone);
        let mut tickets: Vec<Ticket> = together.map(|(_, ticket, _)| ticket).take(n_together).collect();
        tickets.sort_unstable();
        tickets
    }

    /// The job that plans `tickets`.
    fn take(&mut self, now: Seconds, tickets: &[Ticket]) -> PlanJob {
        let context = self.context(now).clone();
        let (any_slot_after, any_room_after) = (self.any_slot_after(), self.any_room_after());
        let mut waiting = Vec::with_capacity(tickets.len());
        for ticket in tickets {
            let Some(held) = self.held.get_mut(ticket) else { continue };
            held.stage = Stage::Solving;
            waiting.push(Waiting {
                ticket: *ticket,
                request: Arc::clone(&held.arrival.request),
                prediction: Arc::clone(&held.arrival.prediction),
                excluded: held.arrival.excluded.clone(),
                waited: now - held.arrival.arrived,
                takes_any_slot: any_slot_after.is_some_and(|after| held.arrival.has_waited(now, after)),
                takes_any_room: held.arrival.has_waited(now, any_room_after),
            });
        }
        self.is_solving = true;
        self.n_plans += 1;
        let (number, first_request_number) = (self.n_plans, self.n_routed);
        let completion = self.params.completion;
        PlanJob { number, taken_at: now, first_request_number, waiting, context, completion }
    }

    /// The next time at which [`Planner::step`] has something to do without an event.
    fn next_due(&self) -> Option<Seconds> {
        let due = |held: &Held| match held.plan_at {
            Some(at) if !self.is_solving => at.min(held.arrival.expires),
            _ => held.arrival.expires,
        };
        self.held.values().filter(|held| held.stage != Stage::Solving).map(due).reduce(Seconds::min)
    }

    fn expire(&mut self, now: Seconds, actions: &mut Vec<Action>) {
        self.held.retain(|ticket, held| {
            let is_due = held.stage != Stage::Solving && held.arrival.expires.0 <= now.0;
            if is_due {
                let reason = Rejection::Expired { waited: now - held.arrival.arrived };
                actions.push(Action::Reject { ticket: *ticket, reason });
            }
            !is_due
        });
    }

    /// Placed requests that still wait, in the order in which they may take slots: by deadline, then as
    /// configured.
    fn release_order<'p>(&self, now: Seconds, plan: &'p Plan) -> Vec<&'p Planned> {
        let key = |planned: &Planned| {
            let arrival = &self.held.get(&planned.ticket)?.arrival;
            let deadline_s =
                arrival.request.constraints.deadline.map_or(f64::INFINITY, |d| (arrival.arrived + d).0);
            let age_s = (now - arrival.arrived).0;
            Some(match self.params.window.order {
                WindowOrder::Shortest => (deadline_s, planned.estimate.service.0 - AGEING * age_s),
                WindowOrder::Fifo => (deadline_s, -age_s),
            })
        };
        let mut keyed: Vec<((f64, f64), &Planned)> =
            plan.planned.iter().filter_map(|planned| Some((key(planned)?, planned))).collect();
        keyed.sort_by(|((a, b), _), ((c, d), _)| a.total_cmp(c).then(b.total_cmp(d)));
        keyed.into_iter().map(|(_, planned)| planned).collect()
    }

    /// Whether a planned request goes now: its destination can start it, or the request has waited its
    /// time and the destination's queue takes it.
    fn may_leave(&self, now: Seconds, planned: &Planned) -> bool {
        let d = planned.destination;
        let (Some(held), Some(destination)) =
            (self.held.get(&planned.ticket), self.context.destinations.get(d.idx()))
        else {
            return false;
        };
        let inflight = self.ledger.inflight(d);
        let has_room = if held.arrival.has_waited(now, self.engine_queue_after()) {
            inflight < destination.max_inflight
        } else {
            let n_elsewhere = self.elsewhere[d.idx()].outstanding();
            inflight.saturating_add(n_elsewhere) < destination.throughput.max_concurrency
        };
        // It may have gone out of service while the plan was made.
        has_room && self.context.states[d.idx()].availability.takes_work()
    }

    /// Waiting time after which a request joins the queue of its planned destination's engine.
    fn engine_queue_after(&self) -> Seconds {
        match self.gathering {
            Gathering::Adaptive => self.params.window.max_wait,
            Gathering::None | Gathering::Fixed => Seconds::ZERO,
        }
    }

    /// Waiting time after which a request no longer waits for a slot while another destination has a free
    /// one; `None` where batches go to the engines' queues as planned.
    fn any_slot_after(&self) -> Option<Seconds> {
        (self.gathering == Gathering::Adaptive).then_some(self.params.window.max_wait)
    }

    /// Waiting time after which a request no longer waits for a full destination while another has room.
    fn any_room_after(&self) -> Seconds {
        let auto = Seconds(AUTO_HOLD_SCALES * self.scales.current().time.0).min(AUTO_HOLD_MAX);
        match self.gathering {
            Gathering::None => Seconds::ZERO,
            Gathering::Adaptive | Gathering::Fixed => {
                self.params.window.max_hold.unwrap_or(auto).max(self.params.window.max_wait)
            }
        }
    }

    fn send(&mut self, now: Seconds, plan: &Plan, planned: &Planned) -> Action {
        let held = self.held.remove(&planned.ticket);
        let arrived = held.as_ref().map_or(now, |held| held.arrival.arrived);
        let is_first = held.as_ref().is_some_and(|held| !held.arrival.is_failing_over());
        let held_since = held.and_then(|held| held.held_since).unwrap_or(now);
        if let Some(outstanding) = self.ledger.dispatch(now, planned.destination, planned.work) {
            self.running.insert(planned.ticket, outstanding);
        }
        self.n_routed += 1;
        Action::Send {
            planned: planned.clone(),
            plan: plan.number,
            waited: now - arrived,
            gathered: is_first.then(|| held_since - arrived),
            held: now - held_since,
            batch_size: plan.planned.len(),
        }
    }

    /// Ends the plan under way; `has_sent` = some of its requests left.
    fn hold_the_rest(&mut self, now: Seconds, has_sent: bool) {
        self.is_solving = false;
        let (queue_after, any_room_after) = (self.engine_queue_after(), self.any_room_after());
        for held in self.held.values_mut().filter(|held| held.stage == Stage::Solving) {
            let arrived = held.arrival.arrived;
            let milestones = [arrived + queue_after, arrived + any_room_after];
            // Others of the plan took the room it was planned to; there may be more elsewhere.
            let plans_again = has_sent && held.arrival.has_waited(now, queue_after.min(any_room_after));
            let next = milestones.into_iter().filter(|at| at.0 > now.0).reduce(Seconds::min);
            held.plan_at = if plans_again { Some(now) } else { next };
            (held.stage, held.alone) = (Stage::PassedOver, false);
            held.held_since.get_or_insert(now);
        }
    }

    /// Takes a running request off the books.
    fn release(&mut self, now: Seconds, ticket: Ticket) {
        let Some(outstanding) = self.running.remove(&ticket) else { return };
        self.ledger.finish(now, outstanding);
        self.has_changed = true;
    }
}

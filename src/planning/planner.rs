//! The planner's state machine: who waits, who runs, when a window closes, what leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::params::{WindowClose, WindowOrder, WindowParams};
use super::plan::{Plan, PlanJob, Planned, Waiting};
use super::scales::ScalesAverage;
use crate::domain::{
    Availability, BacklogLedger, Destination, DestinationOrd, DestinationState, Prediction, RoutingContext,
    RoutingRequest, Weights,
};
use crate::routing::NoDestination;
use crate::units::Seconds;

/// Arrivals of the same instant are gathered this long before an adaptive plan is made.
const COALESCE: Seconds = Seconds(0.002);
/// How many seconds of service a second of waiting is worth in the `shortest` order.
const AGEING: f64 = 0.3;

/// Identity of a request inside the planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What stays the same while the planner runs.
#[derive(Debug, Clone, Copy)]
pub struct PlannerParams {
    /// Gathering and holding.
    pub window: WindowParams,
    /// Whether the policy gains from company; a per-request policy never gathers in an adaptive window.
    pub gather: bool,
    /// Weights of requests that bring none.
    pub weights: Weights,
}

/// A request that joins the waiting set.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Its identity.
    pub ticket: Ticket,
    /// What routing knows of it.
    pub request: Arc<RoutingRequest>,
    /// The prediction to plan with unless a better one comes in time.
    pub prediction: Arc<Prediction>,
    /// Until when a better prediction may come; `None` = `prediction` is final.
    pub awaiting_until: Option<Seconds>,
    /// When it came in.
    pub arrived: Seconds,
    /// When it is answered with an error if nothing could take it.
    pub expires: Seconds,
    /// Destinations that failed it already. Not empty = it is failing over and has done its waiting.
    pub excluded: Vec<DestinationOrd>,
}

impl Arrival {
    fn is_failing_over(&self) -> bool {
        !self.excluded.is_empty()
    }

    fn has_final_prediction(&self, now: Seconds) -> bool {
        self.awaiting_until.is_none_or(|until| until.0 <= now.0)
    }
}

/// Why a request leaves without a destination.
#[derive(Debug, Clone, PartialEq)]
pub enum Rejection {
    /// No legal destination.
    Impossible(NoDestination),
    /// The policy could not decide; its own words.
    Undecided(String),
    /// Its deadline passed while every destination was full.
    Expired {
        /// How long it waited.
        waited: Seconds,
    },
}

/// What the planner wants done.
#[derive(Debug, Clone)]
pub enum Action {
    /// Send a request to its destination now.
    Send {
        /// The placement.
        planned: Planned,
        /// Number of the plan.
        plan: u64,
        /// Time from arrival to now.
        waited: Seconds,
        /// Requests planned together.
        batch_size: usize,
    },
    /// Answer a request with an error.
    Reject {
        /// The request.
        ticket: Ticket,
        /// Why.
        reason: Rejection,
    },
}

/// What to do next.
#[derive(Debug)]
pub enum Step {
    /// Solve this and hand the plan to [`Planner::commit`].
    Solve(Box<PlanJob>),
    /// Nothing before this time, or before the next event if `None`.
    Wait(Option<Seconds>),
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

#[derive(Debug, Clone, Copy)]
struct Running {
    destination: DestinationOrd,
    service: Seconds,
    since: Seconds,
}

/// The planner.
#[derive(Debug)]
pub struct Planner {
    params: PlannerParams,
    gathering: Gathering,
    destinations: Arc<[Destination]>,
    availability: Vec<Availability>,
    ledger: BacklogLedger,
    scales: ScalesAverage,
    held: BTreeMap<Ticket, Arrival>,
    running: BTreeMap<Ticket, Running>,
    /// Held requests that a plan under way was given.
    solving: BTreeSet<Ticket>,
    /// Held requests that a plan placed where they could not go yet.
    passed_over: BTreeSet<Ticket>,
    /// When the fixed window in progress closes.
    window_closes: Option<Seconds>,
    /// When the next plan is wanted.
    plan_at: Option<Seconds>,
    n_plans: u64,
    n_routed: u64,
}

impl Planner {
    /// A planner over `destinations` (all ready), with nothing waiting and nothing in flight.
    #[must_use]
    pub fn new(params: PlannerParams, destinations: Arc<[Destination]>, now: Seconds) -> Self {
        let speedups = destinations.iter().map(|d| d.throughput.batch_speedup).collect();
        let gathering = match (params.window.max_wait.0 > 0.0, params.window.close, params.gather) {
            (true, WindowClose::Fixed, _) => Gathering::Fixed,
            (true, WindowClose::Adaptive, true) => Gathering::Adaptive,
            _ => Gathering::None,
        };
        Self {
            params,
            gathering,
            availability: vec![Availability::Ready; destinations.len()],
            ledger: BacklogLedger::new(speedups, now),
            scales: ScalesAverage::from_fleet(&destinations),
            destinations,
            held: BTreeMap::new(),
            running: BTreeMap::new(),
            solving: BTreeSet::new(),
            passed_over: BTreeSet::new(),
            window_closes: None,
            plan_at: None,
            n_plans: 0,
            n_routed: 0,
        }
    }

    /// A request arrived, or needs another destination because one failed it before any content.
    pub fn arrive(&mut self, now: Seconds, arrival: Arrival) {
        self.release(now, arrival.ticket);
        if arrival.is_failing_over() {
            self.want_plan(now);
        } else if self.gathering == Gathering::Fixed {
            let closes = *self.window_closes.get_or_insert(now + self.params.window.max_wait);
            self.want_plan(closes);
        } else {
            self.want_plan(arrival.awaiting_until.unwrap_or_else(|| self.coalesced(now)));
        }
        self.held.insert(arrival.ticket, arrival);
        let n_gathering = self.held.len() - self.passed_over.len() - self.solving.len();
        if self.gathering != Gathering::None && n_gathering >= self.params.window.max_requests {
            self.window_closes = self.window_closes.map(|_| now);
            self.want_plan(now);
        }
    }

    /// The prediction of a waiting request is there.
    pub fn predicted(&mut self, now: Seconds, ticket: Ticket, prediction: Arc<Prediction>) {
        if let Some(arrival) = self.held.get_mut(&ticket) {
            arrival.prediction = prediction;
            arrival.awaiting_until = None;
            if self.gathering != Gathering::Fixed {
                self.want_plan(self.coalesced(now));
            }
        }
    }

    /// A request is over, whatever its outcome: it finished, failed for good, or its client left.
    pub fn finish(&mut self, now: Seconds, ticket: Ticket) {
        self.held.remove(&ticket);
        self.passed_over.remove(&ticket);
        if self.held.is_empty() {
            self.window_closes = None;
            self.plan_at = None;
        }
        if self.release(now, ticket) {
            self.replan_held(now);
        }
    }

    /// The health of the fleet changed; one entry per destination.
    pub fn set_availability(&mut self, now: Seconds, availability: Vec<Availability>) {
        if availability.len() == self.destinations.len() && availability != self.availability {
            self.availability = availability;
            self.replan_held(now);
        }
    }

    /// Requests waiting.
    #[must_use]
    pub fn n_held(&self) -> usize {
        self.held.len()
    }

    /// The fleet as of `now`: what a plan made now would see.
    pub fn context(&mut self, now: Seconds) -> RoutingContext {
        self.ledger.advance(now);
        let states = (0u32..)
            .map(DestinationOrd)
            .zip(&self.availability)
            .map(|(d, availability)| DestinationState {
                availability: *availability,
                backlog: self.ledger.backlog(d),
                inflight: self.ledger.inflight(d),
            })
            .collect();
        RoutingContext {
            destinations: Arc::clone(&self.destinations),
            states,
            weights: self.params.weights,
            scales: self.scales.current(),
        }
    }

    /// Says what to do at `now`. Requests whose time is up come back as rejections in `actions`.
    pub fn step(&mut self, now: Seconds, actions: &mut Vec<Action>) -> Step {
        self.expire(now, actions);
        if !self.solving.is_empty() {
            return Step::Wait(None);
        }
        if self.plan_at.is_some_and(|at| at.0 <= now.0) {
            let job = self.take(now);
            if !job.waiting.is_empty() {
                return Step::Solve(Box::new(job));
            }
        }
        let expiries = self.held.values().map(|arrival| arrival.expires);
        Step::Wait(expiries.chain(self.plan_at).min_by(|a, b| a.0.total_cmp(&b.0)))
    }

    /// Takes in a solved plan: what can start leaves, the rest is held and planned again later.
    pub fn commit(&mut self, now: Seconds, plan: &Plan, actions: &mut Vec<Action>) {
        if let Some(solved) = &plan.solved {
            self.scales.observe(&solved.problem);
        }
        for (ticket, reason) in &plan.impossible {
            if self.held.remove(ticket).is_some() {
                actions
                    .push(Action::Reject { ticket: *ticket, reason: Rejection::Impossible(reason.clone()) });
            }
        }
        self.ledger.advance(now);
        let mut leaving: BTreeMap<DestinationOrd, Vec<Seconds>> = BTreeMap::new();
        for planned in self.release_order(now, plan) {
            let services = leaving.entry(planned.destination).or_default();
            if self.may_leave(now, planned, services.len()) {
                services.push(planned.estimate.service);
                actions.push(self.send(now, plan, planned));
            }
        }
        for (destination, services) in leaving.iter().filter(|(_, services)| !services.is_empty()) {
            self.ledger.dispatch(*destination, services);
        }
        self.hold_the_rest(now);
    }

    /// The policy could not decide on the plan under way: its requests are answered with `reason`.
    pub fn abandon(&mut self, reason: &str, actions: &mut Vec<Action>) {
        for ticket in std::mem::take(&mut self.solving) {
            self.passed_over.remove(&ticket);
            if self.held.remove(&ticket).is_some() {
                actions.push(Action::Reject { ticket, reason: Rejection::Undecided(reason.to_owned()) });
            }
        }
    }

    fn hold_the_rest(&mut self, now: Seconds) {
        for ticket in std::mem::take(&mut self.solving) {
            let Some(arrival) = self.held.get(&ticket) else {
                self.passed_over.remove(&ticket);
                continue;
            };
            self.passed_over.insert(ticket);
            let aged_at = arrival.arrived + self.params.window.max_wait;
            if aged_at.0 > now.0 {
                self.want_plan(aged_at);
            }
        }
    }

    /// Placed requests that still wait, in the order in which they may take slots.
    fn release_order<'p>(&self, now: Seconds, plan: &'p Plan) -> Vec<&'p Planned> {
        let mut keyed: Vec<(f64, &Planned)> = plan
            .planned
            .iter()
            .filter_map(|planned| {
                let age_s = (now - self.held.get(&planned.ticket)?.arrived).0;
                let key = match self.params.window.order {
                    WindowOrder::Shortest => planned.estimate.service.0 - AGEING * age_s,
                    WindowOrder::Fifo => -age_s,
                };
                Some((key, planned))
            })
            .collect();
        keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
        keyed.into_iter().map(|(_, planned)| planned).collect()
    }

    /// Whether a planned request goes now: its destination can start it, or the request has waited its
    /// time and the destination's queue takes it.
    fn may_leave(&self, now: Seconds, planned: &Planned, leaving: usize) -> bool {
        let (Some(arrival), Some(destination)) =
            (self.held.get(&planned.ticket), self.destinations.get(planned.destination.idx()))
        else {
            return false;
        };
        let inflight = self.ledger.inflight(planned.destination) as usize + leaving;
        let has_waited = self.gathering != Gathering::Adaptive
            || arrival.is_failing_over()
            || (now - arrival.arrived).0 >= self.params.window.max_wait.0;
        inflight < destination.throughput.max_concurrency as usize
            || has_waited && inflight < destination.max_inflight as usize
    }

    fn send(&mut self, now: Seconds, plan: &Plan, planned: &Planned) -> Action {
        let arrived = self.held.remove(&planned.ticket).map_or(now, |arrival| arrival.arrived);
        self.passed_over.remove(&planned.ticket);
        let running =
            Running { destination: planned.destination, service: planned.estimate.service, since: now };
        self.running.insert(planned.ticket, running);
        self.n_routed += 1;
        Action::Send {
            planned: planned.clone(),
            plan: plan.number,
            waited: now - arrived,
            batch_size: plan.planned.len(),
        }
    }

    /// The set of one plan: what can be planned at `now`, oldest first.
    fn take(&mut self, now: Seconds) -> PlanJob {
        let window_closed = self.window_closes.is_some_and(|at| at.0 <= now.0);
        if window_closed {
            self.window_closes = None;
        }
        self.plan_at = self.window_closes;
        let context = self.context(now);
        let mut waiting = Vec::new();
        let mut next_at: Option<Seconds> = None;
        for (ticket, arrival) in &mut self.held {
            let is_ready = arrival.is_failing_over()
                || self.passed_over.contains(ticket)
                || match self.gathering {
                    Gathering::Fixed => window_closed,
                    Gathering::Adaptive | Gathering::None => arrival.has_final_prediction(now),
                };
            if !is_ready || waiting.len() == self.params.window.max_requests {
                let at = if is_ready { Some(now) } else { arrival.awaiting_until };
                next_at = next_at.into_iter().chain(at).min_by(|a, b| a.0.total_cmp(&b.0));
                continue;
            }
            arrival.awaiting_until = None;
            self.solving.insert(*ticket);
            waiting.push(Waiting {
                ticket: *ticket,
                request: Arc::clone(&arrival.request),
                prediction: Arc::clone(&arrival.prediction),
                excluded: arrival.excluded.clone(),
                waited: now - arrival.arrived,
            });
        }
        if let Some(at) = next_at.filter(|_| window_closed || self.gathering != Gathering::Fixed) {
            self.want_plan(at);
        }
        self.n_plans += 1;
        let (number, first_request_number) = (self.n_plans, self.n_routed);
        PlanJob { number, taken_at: now, first_request_number, waiting, context }
    }

    fn coalesced(&self, now: Seconds) -> Seconds {
        match self.gathering {
            Gathering::None => now,
            Gathering::Adaptive | Gathering::Fixed => now + COALESCE.min(self.params.window.max_wait),
        }
    }

    /// Something freed a place: plan the held set again.
    fn replan_held(&mut self, now: Seconds) {
        let is_waiting_for_a_place = !self.passed_over.is_empty() || !self.solving.is_empty();
        if is_waiting_for_a_place {
            self.want_plan(now);
        }
    }

    fn want_plan(&mut self, at: Seconds) {
        self.plan_at = Some(self.plan_at.map_or(at, |planned| planned.min(at)));
    }

    fn expire(&mut self, now: Seconds, actions: &mut Vec<Action>) {
        let is_due =
            |ticket: &Ticket, arrival: &Arrival| arrival.expires.0 <= now.0 && !self.solving.contains(ticket);
        let expired: Vec<(Ticket, Seconds)> = self
            .held
            .iter()
            .filter(|(ticket, arrival)| is_due(ticket, arrival))
            .map(|(ticket, arrival)| (*ticket, arrival.arrived))
            .collect();
        for (ticket, arrived) in expired {
            self.held.remove(&ticket);
            self.passed_over.remove(&ticket);
            actions.push(Action::Reject { ticket, reason: Rejection::Expired { waited: now - arrived } });
        }
    }

    /// Takes a running request off the books; whether it was running.
    fn release(&mut self, now: Seconds, ticket: Ticket) -> bool {
        let Some(running) = self.running.remove(&ticket) else { return false };
        self.ledger.advance(now);
        self.ledger.finish(running.destination, running.service, now - running.since);
        true
    }
}

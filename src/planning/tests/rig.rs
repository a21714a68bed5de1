//! A planner with its policy run in place, and everything it did.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;

use crate::domain::fixture::{destination, prediction, request};
use crate::domain::{
    Availability, CompletionModel, Destination, DestinationOrd, DestinationState, ModelTarget,
    RoutingRequest, Weights,
};
use crate::planning::{
    Action, Arrival, PlanJob, PlanParams, Planner, PlannerParams, Rejection, Step, Ticket, WindowClose,
    WindowOrder, WindowParams,
};
use crate::routing::decision::SearchRecord;
use crate::routing::{
    CostModels, EnergyModel, Objective, ObjectiveMode, PolicyError, Problem, RoutingDecision, RoutingPolicy,
    TimeTerm,
};
use crate::units::Seconds;

pub(super) const PLAN: PlanParams = PlanParams {
    costs: CostModels {
        completion: CompletionModel::Fifo,
        time: TimeTerm::Makespan,
        energy: EnergyModel::Marginal,
    },
    objective: ObjectiveMode::Stationary,
    seed: 1,
};

/// More plans than any turn of a test needs: a planner that asks for more goes round in circles.
const PLANS_PER_TURN: usize = 64;

/// Destinations with `(slots, max_inflight)`.
pub(super) fn fleet(places: &[(u32, u32)]) -> Vec<Destination> {
    (0..).zip(places).map(|(n, (slots, max_inflight))| destination(n, *slots, *max_inflight)).collect()
}

/// All ready, nothing in flight.
pub(super) fn ready(n: usize) -> Vec<DestinationState> {
    vec![DestinationState::idle(); n]
}

/// Each request to the legal destination of the best predicted quality, the first of equals.
pub(super) struct BestQuality;

impl RoutingPolicy for BestQuality {
    fn name(&self) -> &'static str {
        "best_quality"
    }

    fn route(
        &self,
        problem: &Problem,
        objective: &Objective,
        _rng: &mut ChaCha8Rng,
        _stop: &mut dyn FnMut() -> bool,
    ) -> Result<RoutingDecision, PolicyError> {
        let loss = |r: usize, d: &DestinationOrd| 1.0 - problem.quality(r, *d).0;
        let best = |r| problem.legal_destinations(r).min_by(|a, b| loss(r, a).total_cmp(&loss(r, b)));
        let assignment = (0..problem.n_requests()).map(|r| best(r).unwrap()).collect();
        Ok(RoutingDecision::new(problem, objective, assignment, SearchRecord::default()))
    }
}

/// Cannot decide on any batch with a request of this predicted length.
pub(super) struct Refusing {
    pub(super) length_tokens: f64,
}

impl RoutingPolicy for Refusing {
    fn name(&self) -> &'static str {
        "refusing"
    }

    fn route(
        &self,
        problem: &Problem,
        objective: &Objective,
        rng: &mut ChaCha8Rng,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<RoutingDecision, PolicyError> {
        let is_refused = |length: &f64| (length - self.length_tokens).abs() < 1e-9;
        if problem.tables().length_tokens.iter().any(is_refused) {
            return Err(PolicyError::NoClusters);
        }
        BestQuality.route(problem, objective, rng, stop)
    }
}

/// Window of a second, 128 requests, adaptive.
pub(super) fn planner_params() -> PlannerParams {
    PlannerParams {
        window: WindowParams {
            max_wait: Seconds(1.0),
            max_requests: 128,
            close: WindowClose::Adaptive,
            max_hold: None,
            order: WindowOrder::Shortest,
            max_overtakes: 64,
            any_slot_after: None,
            finish_target: None,
        },
        gather: true,
        weights: Weights::EQUAL,
        completion: CompletionModel::Slots,
        prices: None,
        refuses_infeasible: false,
    }
}

pub(super) struct Rig {
    pub(super) planner: Planner,
    pub(super) policy: Box<dyn RoutingPolicy>,
    pub(super) plan: PlanParams,
    n_destinations: usize,
    arrivals: Vec<Arrival>,
    sent: Vec<Sent>,
    rejected: Vec<(u64, Rejection)>,
}

struct Sent {
    ticket: u64,
    destination: DestinationOrd,
    waited: Seconds,
    clocks: (Option<Seconds>, Seconds),
    batch_size: usize,
}

impl Rig {
    pub(super) fn new(destinations: Vec<Destination>, change: impl FnOnce(&mut PlannerParams)) -> Self {
        let mut params = planner_params();
        change(&mut params);
        Self {
            n_destinations: destinations.len(),
            planner: Planner::new(params, destinations.into(), Seconds::ZERO),
            policy: Box::new(BestQuality),
            plan: PLAN,
            arrivals: Vec::new(),
            sent: Vec::new(),
            rejected: Vec::new(),
        }
    }

    /// One second of work, best at the first destination, good for ten minutes.
    fn arrival(&self, now: f64, ticket: u64, change: impl FnOnce(&mut RoutingRequest)) -> Arrival {
        let quality: Vec<f64> = (0..self.n_destinations).map(|d| 0.9 - 0.1 * d as f64).collect();
        let mut request = request(&ticket.to_string());
        change(&mut request);
        Arrival {
            ticket: Ticket(ticket),
            request: Arc::new(request),
            prediction: Arc::new(prediction(&quality, 100.0)),
            awaiting_until: None,
            arrived: Seconds(now),
            expires: Seconds(now + 600.0),
            excluded: Vec::new(),
        }
    }

    fn enter(&mut self, now: f64, arrival: Arrival) {
        self.arrivals.push(arrival.clone());
        self.planner.arrive(Seconds(now), arrival);
    }

    pub(super) fn arrive(&mut self, now: f64, ticket: u64) {
        self.enter(now, self.arrival(now, ticket, |_| {}));
    }

    pub(super) fn arrive_request(&mut self, now: f64, ticket: u64, change: impl FnOnce(&mut RoutingRequest)) {
        self.enter(now, self.arrival(now, ticket, change));
    }

    pub(super) fn arrive_named(&mut self, now: f64, ticket: u64, model: &str) {
        self.arrive_request(now, ticket, |r| r.target = ModelTarget::Named(model.into()));
    }

    pub(super) fn arrive_with(&mut self, now: f64, ticket: u64, quality: &[f64], tokens: f64) {
        let prediction = Arc::new(prediction(quality, tokens));
        self.enter(now, Arrival { prediction, ..self.arrival(now, ticket, |_| {}) });
    }

    pub(super) fn arrive_awaiting(&mut self, now: f64, ticket: u64, until: f64) {
        let awaiting_until = Some(Seconds(until));
        self.enter(now, Arrival { awaiting_until, ..self.arrival(now, ticket, |_| {}) });
    }

    pub(super) fn arrive_until(&mut self, now: f64, ticket: u64, expires: f64) {
        self.enter(now, Arrival { expires: Seconds(expires), ..self.arrival(now, ticket, |_| {}) });
    }

    pub(super) fn fail_over(&mut self, now: f64, ticket: u64, excluded: &[DestinationOrd]) {
        let first = self.arrivals.iter().find(|arrival| arrival.ticket == Ticket(ticket)).unwrap();
        let again = Arrival { excluded: excluded.to_vec(), ..first.clone() };
        self.enter(now, again);
    }

    pub(super) fn predict(&mut self, now: f64, ticket: u64, quality: &[f64]) {
        self.planner.predicted(Seconds(now), Ticket(ticket), Arc::new(prediction(quality, 100.0)));
    }

    pub(super) fn finish(&mut self, now: f64, ticket: u64) {
        self.planner.finish(Seconds(now), Ticket(ticket));
    }

    pub(super) fn health(&mut self, availability: &[Availability]) {
        self.planner.set_availability(availability);
    }

    /// Steps and solves until there is nothing to do; the wakeup asked for.
    pub(super) fn turn(&mut self, now: f64) -> Option<f64> {
        self.turn_through(now, PLANS_PER_TURN)
    }

    /// The same where more plans are in order.
    pub(super) fn turn_through(&mut self, now: f64, plans_max: usize) -> Option<f64> {
        for _ in 0..plans_max {
            match self.step(now) {
                Step::Solve(job) => self.commit(now, *job),
                Step::Wait(until) => {
                    assert!(until.is_none_or(|at| at.0 > now), "asked at {now} to wait until {until:?}");
                    return until.map(|at| at.0);
                }
            }
        }
        panic!("the planner goes round in circles at {now}");
    }

    /// Follows the wakeups from wherever they begin up to `end`; the rejections so far.
    pub(super) fn run_until(&mut self, end: f64) -> Vec<(u64, Rejection)> {
        let mut now = self.turn(0.0_f64.max(self.last_arrival()));
        while let Some(at) = now.filter(|at| *at <= end) {
            now = self.turn(at);
        }
        self.rejected()
    }

    fn last_arrival(&self) -> f64 {
        self.arrivals.last().map_or(0.0, |arrival| arrival.arrived.0)
    }

    /// The job that is due now.
    pub(super) fn take_job(&mut self, now: f64) -> PlanJob {
        match self.step(now) {
            Step::Solve(job) => *job,
            Step::Wait(until) => panic!("nothing to solve at {now}, next {until:?}"),
        }
    }

    pub(super) fn commit(&mut self, now: f64, job: PlanJob) {
        let mut actions = Vec::new();
        match job.solve(self.policy.as_ref(), &self.plan, &mut || false) {
            Ok(plan) => self.planner.commit(Seconds(now), &plan, &mut actions),
            Err(reason) => self.planner.abandon(Seconds(now), &reason.to_string(), &mut actions),
        }
        self.record(actions);
    }

    fn step(&mut self, now: f64) -> Step {
        let mut actions = Vec::new();
        let step = self.planner.step(Seconds(now), &mut actions);
        self.record(actions);
        step
    }

    fn record(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { planned, waited, gathered, held, batch_size, .. } => self.sent.push(Sent {
                    ticket: planned.ticket.0,
                    destination: planned.destination,
                    waited,
                    clocks: (gathered, held),
                    batch_size,
                }),
                Action::Reject { ticket, reason } => self.rejected.push((ticket.0, reason)),
            }
        }
    }

    pub(super) fn sent(&self) -> Vec<(u64, DestinationOrd)> {
        self.sent.iter().map(|sent| (sent.ticket, sent.destination)).collect()
    }

    pub(super) fn rejected(&self) -> Vec<(u64, Rejection)> {
        self.rejected.clone()
    }

    fn first_sent(&self, ticket: u64) -> &Sent {
        self.sent.iter().find(|sent| sent.ticket == ticket).unwrap()
    }

    pub(super) fn batch_size(&self, ticket: u64) -> usize {
        self.first_sent(ticket).batch_size
    }

    pub(super) fn waited(&self, ticket: u64) -> Seconds {
        self.first_sent(ticket).waited
    }

    /// Time gathered (nothing for one that fails over) and time held.
    pub(super) fn clocks(&self, ticket: u64) -> (Option<Seconds>, Seconds) {
        self.first_sent(ticket).clocks
    }

    pub(super) fn n_rebinds(&self) -> u64 {
        self.planner.n_rebinds()
    }

    pub(super) fn price_per_s(&mut self, now: f64, d: DestinationOrd) -> f64 {
        self.planner.context(Seconds(now)).states[d.idx()].price_per_s
    }

    pub(super) fn inflight(&mut self, now: f64, d: DestinationOrd) -> u32 {
        self.planner.context(Seconds(now)).states[d.idx()].inflight
    }

    pub(super) fn n_held(&self) -> usize {
        self.planner.n_held()
    }
}

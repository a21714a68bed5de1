//! Open-loop arrivals over many windows, in virtual time: the router's own planner in front of virtual
//! engines, backlog carried over from window to window.
//!
//! A request arrives, is planned (the solver takes no virtual time), travels half a round trip, is served,
//! and travels back with its payload; answers are streamed, so the router sees the first token of each. The router
//! believes its predictions; the engines take what the answer really needs. Policies that decide on several requests at once gather them in the configured window;
//! per-request policies take each as it comes.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;

use crate::domain::{DestinationOrd, Weights};
use crate::planning::{
    Action, Arrival, PlanJob, PlanParams, Planner, PlannerParams, PriceParams, Step, Ticket, WindowParams,
};
use crate::routing::{
    CostModels, Objective, ObjectiveMode, PolicyError, Problem, RoutingDecision, RoutingPolicy, legal_set,
};
use crate::simulate::engine::{Engine, EngineEvent, EngineKind, Job, Milestone};
use crate::simulate::{Method, SimulateError, Workload};
use crate::units::Seconds;

/// A request that found no place for so long is answered with an error.
pub const DEADLINE: Seconds = Seconds(600.0);

/// What is run.
#[derive(Debug, Clone, Copy)]
pub struct LiveParams {
    /// The window of joint policies.
    pub window: WindowParams,
    /// How terms are normalised.
    pub objective: ObjectiveMode,
    /// Completion, time and energy models of the objective.
    pub costs: CostModels,
    /// What serves the requests.
    pub engine: EngineKind,
    /// ω.
    pub weights: Weights,
    /// Seed of the solvers.
    pub seed: u64,
}

/// One arrival: when, and which row of the workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Visit {
    /// Time of arrival, ascending.
    pub at: Seconds,
    /// Index into the workload's requests.
    pub row: usize,
}

/// What became of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Record {
    /// Where it was served.
    pub destination: DestinationOrd,
    /// Its row.
    pub row: usize,
    /// From arrival to departure from the router.
    pub held: Seconds,
    /// From arrival to the first token at the client.
    pub first_token: Seconds,
    /// From arrival to the whole answer at the client.
    pub latency: Seconds,
}

/// What one method did.
#[derive(Debug, Clone)]
pub struct LiveRun {
    /// One entry per arrival; `None` for a request that was answered with an error.
    pub records: Vec<Option<Record>>,
    /// Time of each plan.
    pub decisions: Vec<Seconds>,
    /// Busy time of each destination's engine.
    pub busy: Vec<Seconds>,
    /// Time at full draw of each, see [`Engine::full_draw`].
    pub full_draw: Vec<Seconds>,
    /// From the first arrival to the last answer.
    pub lasted: Seconds,
}

/// Runs one method. `clock` times its decisions and nothing else; `on_done` is called for each request that
/// is over.
///
/// # Errors
/// [`SimulateError`] if the method cannot decide at all.
pub fn run(
    workload: &Workload,
    visits: &[Visit],
    method: &Method,
    params: &LiveParams,
    hooks: &mut Hooks<'_>,
) -> Result<LiveRun, SimulateError> {
    let truth = workload.truth(params.costs.energy)?;
    let policy = Clustered { policy: method.policy(), needs_clusters: method.needs_clusters(), workload };
    let mut driver = Driver::new(workload, visits, method, params, &truth);
    while let Some(Event { at, what, .. }) = driver.events.pop() {
        driver.handle(at, what, hooks);
        // Everything of one instant is taken in before the planner is asked.
        if driver.events.peek().is_some_and(|next| next.at.get() <= at.get()) {
            continue;
        }
        driver.plan(at, &policy, params, hooks)?;
    }
    Ok(LiveRun {
        records: driver.records,
        decisions: driver.decisions,
        busy: driver.engines.iter().map(|engine| engine.busy()).collect(),
        full_draw: driver.engines.iter().map(|engine| engine.full_draw()).collect(),
        lasted: driver.ended - visits.first().map_or(Seconds::ZERO, |visit| visit.at),
    })
}

/// What the outside gives to a run.
pub struct Hooks<'a> {
    /// Times decisions.
    pub clock: &'a dyn Fn() -> Seconds,
    /// Called for each request that is over.
    pub on_done: &'a mut dyn FnMut(),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    /// The visit with this index arrives at the router.
    Arrive(usize),
    /// A job arrives at an engine.
    Reach(DestinationOrd, Job),
    /// An engine wants to be looked at.
    Engine(DestinationOrd),
    /// The first token of an answer arrives at the router.
    Content(Ticket),
    /// An answer arrives at the router.
    Answer(Ticket, Record),
    /// The planner asked to be looked at.
    Wake,
}

/// Ordered by time, then by number, so that a heap pops the earliest first.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Event {
    at: Seconds,
    number: u64,
    what: What,
}

impl Eq for Event {}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.get().total_cmp(&self.at.get()).then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What is known so far of a request that has been sent.
#[derive(Debug, Clone, Copy, Default)]
struct Underway {
    held: Seconds,
    /// From arrival to the first token at the router.
    first_token: Seconds,
}

struct Driver<'a> {
    workload: &'a Workload,
    visits: &'a [Visit],
    truth: &'a Problem,
    planner: Planner,
    costs: CostModels,
    engines: Vec<Box<dyn Engine>>,
    events: BinaryHeap<Event>,
    n_events: u64,
    /// When the planner will be looked at already.
    wake_at: Option<Seconds>,
    /// When each engine will be.
    look_at: Vec<Option<Seconds>>,
    underway: Vec<Underway>,
    records: Vec<Option<Record>>,
    decisions: Vec<Seconds>,
    ended: Seconds,
}

impl<'a> Driver<'a> {
    fn new(
        workload: &'a Workload,
        visits: &'a [Visit],
        method: &Method,
        params: &LiveParams,
        truth: &'a Problem,
    ) -> Self {
        let destinations = workload.destinations();
        let costs = method.models(params.costs);
        let planner = PlannerParams {
            window: method.window(params.window),
            gather: method.is_joint(),
            weights: method.weights(params.weights),
            completion: costs.completion,
            prices: method.pays_prices().then(PriceParams::default),
            refuses_infeasible: false,
        };
        let mut driver = Self {
            workload,
            visits,
            truth,
            planner: Planner::new(planner, method.fleet(destinations), Seconds::ZERO),
            costs,
            engines: destinations.iter().map(|d| params.engine.build(d.throughput)).collect(),
            events: BinaryHeap::with_capacity(visits.len()),
            n_events: 0,
            wake_at: None,
            look_at: vec![None; destinations.len()],
            underway: vec![Underway::default(); visits.len()],
            records: vec![None; visits.len()],
            decisions: Vec::new(),
            ended: Seconds::ZERO,
        };
        for (idx, visit) in visits.iter().enumerate() {
            driver.schedule(visit.at, What::Arrive(idx));
        }
        driver
    }

    fn schedule(&mut self, at: Seconds, what: What) {
        self.n_events += 1;
        self.events.push(Event { at, number: self.n_events, what });
    }

    fn handle(&mut self, now: Seconds, what: What, hooks: &mut Hooks<'_>) {
        match what {
            What::Arrive(idx) => self.arrive(now, idx),
            What::Reach(d, job) => {
                self.engines[d.idx()].accept(now, job);
                self.look_after_engine(d);
            }
            // There is an earlier look by now, or there was one that has seen all.
            What::Engine(d) if self.look_at[d.idx()] != Some(now) => {}
            What::Engine(d) => {
                self.look_at[d.idx()] = None;
                let mut events = Vec::new();
                self.engines[d.idx()].advance(now, &mut events);
                for event in events {
                    self.send_back(d, event);
                }
                self.look_after_engine(d);
            }
            What::Content(ticket) => self.planner.answering(now, ticket),
            What::Answer(ticket, record) => {
                self.planner.finish(now, ticket);
                self.records[visit_of(ticket)] = Some(record);
                self.ended = self.ended.max(now);
                (hooks.on_done)();
            }
            What::Wake => self.wake_at = self.wake_at.filter(|planned| *planned != now),
        }
    }

    fn arrive(&mut self, now: Seconds, idx: usize) {
        let row = &self.workload.requests()[self.visits[idx].row];
        let arrival = Arrival {
            ticket: Ticket(idx as u64),
            request: Arc::clone(&row.request),
            prediction: Arc::clone(&row.prediction),
            awaiting_until: None,
            arrived: now,
            expires: now + DEADLINE,
            excluded: Vec::new(),
        };
        self.planner.arrive(now, arrival);
    }

    /// An engine's next event may move with a new job; a look that comes too early finds nothing and is renewed.
    fn look_after_engine(&mut self, d: DestinationOrd) {
        let Some(at) = self.engines[d.idx()].next_event() else { return };
        if self.look_at[d.idx()].is_none_or(|planned| at.get() < planned.get()) {
            self.look_at[d.idx()] = Some(at);
            self.schedule(at, What::Engine(d));
        }
    }

    fn send_back(&mut self, d: DestinationOrd, event: EngineEvent) {
        let idx = visit_of(event.ticket);
        let visit = self.visits[idx];
        let at_router = event.at + self.half_trip(d);
        match event.milestone {
            Milestone::FirstToken => {
                self.underway[idx].first_token = at_router - visit.at;
                self.schedule(at_router, What::Content(event.ticket));
            }
            Milestone::LastToken => {
                let answered = at_router + self.truth.transfer(visit.row, d);
                let Underway { held, first_token } = self.underway[idx];
                let latency = answered - visit.at;
                let record = Record { destination: d, row: visit.row, held, first_token, latency };
                self.schedule(answered, What::Answer(event.ticket, record));
            }
        }
    }

    fn half_trip(&self, d: DestinationOrd) -> Seconds {
        Seconds(self.workload.destinations()[d.idx()].network.rtt.get() / 2.0)
    }

    /// Lets the planner do all it wants at `now`.
    fn plan(
        &mut self,
        now: Seconds,
        policy: &Clustered<'_>,
        params: &LiveParams,
        hooks: &mut Hooks<'_>,
    ) -> Result<(), SimulateError> {
        let costs = self.costs;
        let plan_params = PlanParams { costs, objective: params.objective, seed: params.seed };
        let mut actions = Vec::new();
        loop {
            let step = self.planner.step(now, &mut actions);
            match step {
                Step::Solve(job) => {
                    let rows = if policy.needs_clusters { self.placeable_rows(&job) } else { Vec::new() };
                    let policy = OfRows { policy, rows };
                    let began = (hooks.clock)();
                    let plan = job.solve(&policy, &plan_params, &mut || false)?;
                    self.decisions.push((hooks.clock)() - began);
                    self.planner.commit(now, &plan, &mut actions);
                }
                Step::Wait(at) => {
                    self.act(now, actions, hooks);
                    self.wake(at);
                    return Ok(());
                }
            }
        }
    }

    fn wake(&mut self, at: Option<Seconds>) {
        let Some(at) = at else { return };
        if self.wake_at.is_none_or(|planned| at.get() < planned.get()) {
            self.wake_at = Some(at);
            self.schedule(at, What::Wake);
        }
    }

    fn act(&mut self, now: Seconds, actions: Vec<Action>, hooks: &mut Hooks<'_>) {
        for action in actions {
            match action {
                Action::Send { planned, waited, .. } => {
                    let (d, idx) = (planned.destination, visit_of(planned.ticket));
                    self.underway[idx].held = waited;
                    let job = self.job(planned.ticket, d);
                    self.schedule(now + self.half_trip(d), What::Reach(d, job));
                }
                Action::Reject { .. } => (hooks.on_done)(),
            }
        }
    }

    fn job(&self, ticket: Ticket, d: DestinationOrd) -> Job {
        let row = &self.workload.requests()[self.visits[visit_of(ticket)].row];
        let throughput = &self.workload.destinations()[d.idx()].throughput;
        let completion = row.request.completion(row.truth.completion_tokens[d.idx()]);
        Job { ticket, work: throughput.work(row.request.prompt_tokens, completion) }
    }

    /// The rows of a job in the order of the problem it will make: requests without a legal destination
    /// are not part of it.
    fn placeable_rows(&self, job: &PlanJob) -> Vec<usize> {
        let placeable = job.waiting.iter().filter(|waiting| {
            legal_set(&waiting.request, Some(&waiting.prediction), &job.context, &waiting.excluded).is_ok()
        });
        placeable.map(|waiting| self.visits[visit_of(waiting.ticket)].row).collect()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "tickets are indexes of visits")]
fn visit_of(ticket: Ticket) -> usize {
    ticket.0 as usize
}

/// A policy, and whether it has to be told the prompt clusters of the requests it decides on.
struct Clustered<'a> {
    policy: Box<dyn RoutingPolicy + Send + Sync>,
    needs_clusters: bool,
    workload: &'a Workload,
}

/// A policy that decides on these rows of the workload; rows are there where it needs clusters.
struct OfRows<'a> {
    policy: &'a Clustered<'a>,
    rows: Vec<usize>,
}

impl RoutingPolicy for OfRows<'_> {
    fn name(&self) -> &'static str {
        self.policy.policy.name()
    }

    fn route(
        &self,
        problem: &Problem,
        objective: &Objective,
        rng: &mut ChaCha8Rng,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<RoutingDecision, PolicyError> {
        let Clustered { policy, needs_clusters, workload } = self.policy;
        if !needs_clusters {
            return policy.route(problem, objective, rng, stop);
        }
        let clustered = workload.with_clusters(problem, &self.rows).map_err(|_| PolicyError::NoClusters)?;
        policy.route(&clustered, objective, rng, stop)
    }
}

//! The hand-over of a window: from its last arrival, which closes it, to R placements in the hands of R tasks.
//!
//! `scheduler` takes the whole way (legal sets, events, tables, solver thread, replies) with quality from
//! priors; `plan` is its pure part alone. Over sockets and with embeddings: `examples/measure.rs`.
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on must fail")]

use std::sync::Arc;
use std::time::Duration;

use cema_router::domain::{
    Availability, CachedPrefix, Capabilities, Constraints, Destination, DestinationId, EndpointOrd,
    FleetView, ModelTarget, Network, NodeClass, Power, Prediction, Price, QualitySource, RoutingRequest,
    Throughput, TransferEnergy, Weights,
};
use cema_router::planning::{
    Arrival, PlanParams, Planner, PlannerParams, PriceParams, Step, Ticket, WindowClose, WindowOrder,
    WindowParams,
};
use cema_router::profiler::quality::{
    DestinationPrior, EmbedderParams, FleetPriors, QualityParams, QualityService,
};
use cema_router::routing::{
    CompletionModel, CostModels, EnergyModel, ObjectiveMode, PolicyKind, PolicyParams, RoutingPolicy,
    TimeTerm, for_kind,
};
use cema_router::scheduler::{Fleet, Scheduler, SchedulerParams};
use cema_router::telemetry::json_log::JsonLog;
use cema_router::units::{Bytes, BytesPerSec, Joules, Quality, Seconds, Tokens, TokensPerSec, Usd, Watts};
use prometheus::Registry;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// The paper's fleet has eleven node–model pairs.
const DESTINATIONS: u32 = 11;

const PLAN: PlanParams = PlanParams {
    costs: CostModels {
        completion: CompletionModel::Fifo,
        time: TimeTerm::Makespan,
        energy: EnergyModel::Marginal,
    },
    objective: ObjectiveMode::Stationary,
    seed: 1,
};

fn main() {
    divan::main();
}

#[divan::bench(args = [1, 8, 24], sample_count = 200, sample_size = 1)]
fn scheduler(bencher: divan::Bencher<'_, '_>, n_requests: usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (scheduler, _health) = start(&runtime, n_requests);
    bencher.bench_local(|| {
        let placing = (0..n_requests).map(|n| {
            let scheduler = scheduler.clone();
            let request = Arc::new(request(n));
            runtime.spawn(async move { scheduler.place(request, "a question".into()).await.unwrap() })
        });
        let placing: Vec<_> = placing.collect();
        // The leases end here, so that every window finds the fleet idle.
        runtime.block_on(async {
            for placement in placing {
                drop(placement.await.unwrap());
            }
        });
    });
}

#[divan::bench(args = [1, 8, 24], sample_count = 200, sample_size = 1)]
fn plan(bencher: divan::Bencher<'_, '_>, n_requests: usize) {
    let policy = policy();
    bencher
        .with_inputs(|| {
            let mut planner = Planner::new(planner_params(n_requests), fleet(), Seconds::ZERO);
            for n in 0..n_requests {
                planner.arrive(Seconds::ZERO, arrival(n));
            }
            planner
        })
        .bench_local_values(|mut planner| {
            let mut actions = Vec::with_capacity(n_requests);
            if let Step::Solve(job) = planner.step(Seconds::ZERO, &mut actions) {
                let plan = job.solve(policy.as_ref(), &PLAN, &mut budget()).unwrap();
                planner.commit(Seconds::ZERO, &plan, &mut actions);
            }
            assert_eq!(actions.len(), n_requests);
            actions
        });
}

/// A plan of the default scheduler while every place but one is taken and so many requests are held.
#[divan::bench(args = [1, 8, 64], sample_count = 200, sample_size = 1)]
fn rolling_plan(bencher: divan::Bencher<'_, '_>, n_held: usize) {
    let policy = policy();
    let costs = CostModels { completion: CompletionModel::Slots, time: TimeTerm::Sum, ..PLAN.costs };
    let plan = PlanParams { costs, ..PLAN };
    bencher
        .with_inputs(|| {
            let mut params = planner_params(1_024);
            params.window.close = WindowClose::Adaptive;
            let mut planner = Planner::new(params, fleet(), Seconds::ZERO);
            let n_slots: u32 = planner.destinations().iter().map(|d| d.throughput.max_concurrency).sum();
            let n_running = n_slots as usize;
            for n in 0..n_running + n_held {
                planner.arrive(Seconds::ZERO, arrival(n));
            }
            let mut now = Seconds(0.002);
            while planner.n_held() > n_held - 1 {
                let mut actions = Vec::new();
                match planner.step(now, &mut actions) {
                    Step::Solve(job) => {
                        let plan = job.solve(policy.as_ref(), &plan, &mut budget()).unwrap();
                        planner.commit(now, &plan, &mut actions);
                    }
                    Step::Wait(at) => now = at.unwrap_or(now).max(now + Seconds(0.01)),
                }
                if now > Seconds(60.0) {
                    break;
                }
            }
            (planner, now)
        })
        .bench_local_values(|(mut planner, now)| {
            // Somebody is done.
            planner.finish(now, Ticket(0));
            let mut actions = Vec::new();
            if let Step::Solve(job) = planner.step(now, &mut actions) {
                let plan = job.solve(policy.as_ref(), &plan, &mut budget()).unwrap();
                planner.commit(now, &plan, &mut actions);
            }
            (planner, actions)
        });
}

/// Polls allowed to the solver: about the work of its default 4 ms.
fn budget() -> impl FnMut() -> bool {
    let began = std::time::Instant::now();
    move || began.elapsed() >= Duration::from_millis(4)
}

fn policy() -> Box<dyn RoutingPolicy + Send + Sync> {
    for_kind(PolicyKind::Memetic, &PolicyParams::default())
}

fn planner_params(n_requests: usize) -> PlannerParams {
    let window = WindowParams {
        max_wait: Seconds(1.0),
        max_requests: n_requests,
        close: WindowClose::Fixed,
        max_hold: None,
        order: WindowOrder::Shortest,
        max_overtakes: 64,
        any_slot_after: None,
        finish_target: None,
    };
    let prices = Some(PriceParams::default());
    PlannerParams {
        window,
        gather: true,
        weights: Weights::EQUAL,
        completion: CompletionModel::Slots,
        prices,
        refuses_infeasible: false,
    }
}

/// What must live as long as the scheduler.
type Publishers = (watch::Sender<Arc<[Availability]>>, watch::Sender<Arc<FleetView>>);

fn start(runtime: &Runtime, n_requests: usize) -> (Scheduler, Publishers) {
    let destinations = fleet();
    let prior = |d: &Destination| DestinationPrior {
        model: Arc::clone(&d.model),
        quality: d.quality_prior,
        completion_tokens: Tokens(250.0),
    };
    let priors = FleetPriors { destinations: destinations.iter().map(prior).collect() };
    let no_store = QualityParams { store: "/nonexistent".into(), ..QualityParams::default() };
    let registry = Registry::new();
    let quality = QualityService::start(&no_store, &EmbedderParams::default(), priors, &registry).unwrap();
    let (health, states) = watch::channel(vec![Availability::Ready; DESTINATIONS as usize].into());
    let params = SchedulerParams {
        planner: planner_params(n_requests),
        plan: PLAN,
        budget: Duration::from_millis(4),
        embed_wait: Duration::from_millis(50),
        max_queued: 4096,
        request_deadline: Seconds(600.0),
    };
    let (view, figures) = watch::channel(Arc::new(FleetView::configured(&destinations)));
    let fleet = Fleet {
        destinations,
        health: states,
        view: figures,
        quality,
        log: JsonLog::default(),
        with_situations: false,
    };
    let (scheduler, task) =
        runtime.block_on(async { Scheduler::new(params, policy(), fleet, &registry).unwrap() });
    runtime.spawn(task);
    (scheduler, (health, view))
}

fn fleet() -> Arc<[Destination]> {
    (0..DESTINATIONS).map(destination).collect()
}

/// From small and near to large and far.
fn destination(n: u32) -> Destination {
    let size = f64::from(n + 1);
    let (node, model) = (format!("node-{n}"), format!("model-{n}"));
    Destination {
        id: DestinationId::new(&node, None, &model),
        node: node.into(),
        class: if n < 6 { NodeClass::Edge } else { NodeClass::Cloud },
        endpoint: EndpointOrd(n),
        model: model.clone().into(),
        upstream_model: model.into(),
        context: Some(Tokens(8192.0)),
        capabilities: Capabilities::CHAT,
        price: Price {
            prompt_usd_per_mtok: 0.1 * size,
            completion_usd_per_mtok: 0.2 * size,
            request: Usd::ZERO,
        },
        throughput: Throughput {
            prefill: TokensPerSec(2000.0),
            decode: TokensPerSec(120.0 / size.sqrt()),
            batch_speedup: 8.0,
            max_concurrency: 32,
            cached_prompt: Tokens::ZERO,
        },
        network: Network {
            rtt: Seconds(0.004 * size),
            uplink: BytesPerSec(1e7),
            downlink: BytesPerSec(1e7),
            transfer_energy: TransferEnergy::PerMegabyte(Joules(0.3)),
            usd_per_gb: 0.0,
        },
        power: Power { board: Watts(40.0 * size), idle: Watts(8.0 * size), utilisation: 0.8 },
        quality_prior: Quality(0.3 + 0.05 * size),
        max_inflight: 64,
    }
}

/// Requests of different lengths.
fn request(n: usize) -> RoutingRequest {
    let prompt_tokens = Tokens(20.0 + (n * 37 % 400) as f64);
    RoutingRequest {
        id: n.to_string().into(),
        target: ModelTarget::Any,
        needs: Capabilities::CHAT,
        prompt_tokens,
        longest_prompt: prompt_tokens,
        cached: CachedPrefix::NOWHERE,
        max_completion_tokens: Some(Tokens(16.0 + (n * 53 % 300) as f64)),
        choices: 1,
        upload: Bytes(2000.0),
        constraints: Constraints::default(),
        weights: None,
        time: None,
    }
}

fn arrival(n: usize) -> Arrival {
    let m = DESTINATIONS as usize;
    let quality = (0..m).map(|d| Quality(0.3 + 0.05 * ((d + n) % m) as f64)).collect();
    let prediction = Prediction {
        quality,
        completion_tokens: vec![Tokens(250.0); m],
        cluster_error: Vec::new(),
        source: QualitySource::Store,
    };
    Arrival {
        ticket: Ticket(n as u64),
        request: Arc::new(request(n)),
        prediction: Arc::new(prediction),
        awaiting_until: None,
        arrived: Seconds::ZERO,
        expires: Seconds(600.0),
        excluded: Vec::new(),
    }
}

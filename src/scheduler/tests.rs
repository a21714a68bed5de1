//! The scheduler on a paused clock. Plans are solved in place: while a real solver thread works, a paused
//! clock would find the runtime idle and jump.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use prometheus::Registry;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::arms::{Arm, Arms};
use super::solver::{Deciding, Solver};
use super::{Fleet, Lease, PlaceError, Placement, Scheduler, SchedulerParams};
use crate::domain::fixture::{destination, prediction, request};
use crate::domain::{
    Availability, Constraints, Destination, DestinationOrd, FleetView, ModelTarget, Moment, QualitySource,
    SlotLoad, Weights,
};
use crate::planning::{Alternation, PlanParams, PlannerParams, WindowClose, WindowOrder, WindowParams};
use crate::profiler::quality::by_hand::ByHand;
use crate::routing::{
    CompletionModel, CostModels, EnergyModel, NoDestination, ObjectiveMode, PolicyKind, PolicyParams,
    TimeTerm, for_kind,
};
use crate::telemetry::json_log::JsonLog;
use crate::units::{Quality, Seconds};

const D0: DestinationOrd = DestinationOrd(0);
const D1: DestinationOrd = DestinationOrd(1);
const QUALITY_ONLY: Weights = Weights { quality: 1.0, cost: 0.0, energy: 0.0, time: 0.0 };

fn params() -> SchedulerParams {
    SchedulerParams {
        planner: PlannerParams {
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
            weights: QUALITY_ONLY,
            completion: CompletionModel::Slots,
            prices: None,
            refuses_infeasible: false,
        },
        plan: PlanParams {
            costs: CostModels {
                completion: CompletionModel::Fifo,
                time: TimeTerm::Makespan,
                energy: EnergyModel::Marginal,
            },
            objective: ObjectiveMode::Stationary,
            seed: 1,
        },
        budget: Duration::from_secs(10),
        embed_wait: Duration::from_millis(50),
        max_queued: 8,
        request_deadline: Seconds(60.0),
    }
}

/// A scheduler over two destinations of one slot and two places each.
struct Setup {
    scheduler: Scheduler,
    task: JoinHandle<()>,
    health: watch::Sender<Arc<[Availability]>>,
    view: watch::Sender<Arc<FleetView>>,
    embeddings: ByHand,
    registry: Registry,
    began: Instant,
}

impl Setup {
    fn new(policy: PolicyKind, change: impl FnOnce(&mut SchedulerParams)) -> Self {
        Self::alternating(&[policy], None, change)
    }

    /// Policies that take turns.
    fn alternating(
        policies: &[PolicyKind],
        alternation: Option<Alternation>,
        change: impl FnOnce(&mut SchedulerParams),
    ) -> Self {
        let mut params = params();
        change(&mut params);
        let destinations: Arc<[Destination]> = vec![destination(0, 1, 2), destination(1, 1, 2)].into();
        let (health, states) = watch::channel(vec![Availability::Ready; 2].into());
        let (quality, embeddings) = ByHand::service(&["model-0", "model-1"]);
        let (view, figures) = watch::channel(Arc::new(FleetView::configured(&destinations)));
        let fleet = Fleet {
            destinations,
            health: states,
            view: figures,
            quality,
            log: JsonLog::default(),
            with_situations: false,
        };
        let registry = Registry::new();
        let arm = |kind: &PolicyKind| {
            let policy = for_kind(*kind, &PolicyParams::default());
            let name = policy.name();
            let deciding = Deciding { policy, params: params.plan, budget: params.budget };
            // Where there is one policy the parameters say whether it gathers.
            let gather =
                if alternation.is_some() { *kind == PolicyKind::Memetic } else { params.planner.gather };
            Arm { name, gather, pays_prices: true, solver: Solver::InPlace(deciding) }
        };
        let arms = Arms::new(policies.iter().map(arm).collect(), alternation);
        let (scheduler, task) = Scheduler::with_arms(params, arms, fleet, &registry).unwrap();
        Self {
            scheduler,
            task: tokio::spawn(task),
            health,
            view,
            embeddings,
            registry,
            began: Instant::now(),
        }
    }

    /// Begins to place a request with nothing to embed.
    fn place(&self, id: &str) -> JoinHandle<Result<Placement, PlaceError>> {
        self.place_text(id, "")
    }

    fn place_text(&self, id: &str, text: &str) -> JoinHandle<Result<Placement, PlaceError>> {
        let (scheduler, request, text) = (self.scheduler.clone(), Arc::new(request(id)), text.to_owned());
        tokio::spawn(async move { scheduler.place(request, text.into()).await })
    }

    fn elapsed_ms(&self) -> u128 {
        self.began.elapsed().as_millis()
    }

    /// A gauge without labels, or with this value of its only label; it holds whole numbers.
    fn metric(&self, name: &str, label: Option<&str>) -> i64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name).unwrap();
        let has_label = |m: &&prometheus::proto::Metric| label.is_none_or(|l| m.get_label()[0].value() == l);
        family.get_metric().iter().find(has_label).unwrap().get_gauge().get_value() as i64
    }
}

/// Lets every task run until all of them wait.
async fn settle() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn places_at_once_and_frees_the_place_with_the_lease() {
    let setup = Setup::new(PolicyKind::Greedy, |_| {});
    let first = setup.place("a").await.unwrap().unwrap();
    assert_eq!((first.planned.destination, first.batch_size, first.plan), (D0, 1, 1));
    assert_eq!(setup.elapsed_ms(), 0);
    assert_eq!(setup.metric("cema_inflight", Some("node-0/model-0")), 1);
    assert_eq!(setup.scheduler.decisions().find("a").unwrap().plan.number, 1);

    let second = setup.place("b").await.unwrap().unwrap();
    assert_eq!(second.planned.destination, D1, "equally good, and free");
    let third = setup.place("c");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!third.is_finished());
    assert_eq!(setup.metric("cema_held_requests", None), 1);
    drop(second.lease);
    let third = third.await.unwrap().unwrap();
    assert_eq!(third.planned.destination, D1);
    assert!((0.49..0.51).contains(&third.waited.0), "{:?}", third.waited);
    drop((first.lease, third.lease));
    settle().await;
    assert_eq!(setup.metric("cema_inflight", Some("node-0/model-0")), 0);
    assert_eq!(setup.metric("cema_held_requests", None), 0);
}

#[tokio::test(start_paused = true)]
async fn a_fixed_window_adds_what_it_says() {
    let setup = Setup::new(PolicyKind::Memetic, |p| p.planner.window.close = WindowClose::Fixed);
    let first = setup.place("a");
    tokio::time::sleep(Duration::from_millis(400)).await;
    let second = setup.place("b");
    let (first, second) = (first.await.unwrap().unwrap(), second.await.unwrap().unwrap());
    assert!((1_000..=1_002).contains(&setup.elapsed_ms()), "{}", setup.elapsed_ms());
    assert_eq!((first.plan, second.plan, second.batch_size), (1, 1, 2));
    assert!((0.6..0.603).contains(&second.waited.0), "{:?}", second.waited);
}

#[tokio::test(start_paused = true)]
async fn failing_over_goes_elsewhere_at_once_with_what_was_predicted() {
    let setup = Setup::new(PolicyKind::Greedy, |p| p.max_queued = 1);
    let placing = setup.place_text("a", "hello");
    settle().await;
    let best_at_0 = prediction(&[0.9, 0.25], 100.0);
    assert!(setup.embeddings.answer(best_at_0));
    let placed = placing.await.unwrap().unwrap();
    assert_eq!((placed.planned.destination, placed.planned.source), (D0, QualitySource::Store));

    // The one place in the queue is taken, which is no reason to fail a request that was let in.
    let waiting = setup.place_text("b", "other");
    settle().await;
    let began_ms = setup.elapsed_ms();
    let again = setup.scheduler.place_again(placed.lease, D0).await.unwrap();
    assert_eq!((again.planned.destination, setup.elapsed_ms()), (D1, began_ms));
    assert_eq!(again.planned.source, QualitySource::Store);
    assert_eq!(again.planned.estimate.quality, Quality(0.25));
    let error = setup.scheduler.place_again(again.lease, D1).await.unwrap_err();
    assert_eq!(error, PlaceError::Impossible(NoDestination::AllTried { tried: 2 }));
    assert_eq!(waiting.await.unwrap().unwrap().planned.destination, D0);
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded_and_who_leaves_makes_room() {
    let setup = Setup::new(PolicyKind::Greedy, |p| {
        p.max_queued = 2;
        p.planner.window.close = WindowClose::Fixed;
    });
    let (first, second) = (setup.place("a"), setup.place("b"));
    settle().await;
    let refused = setup.place("c").await.unwrap().unwrap_err();
    assert_eq!(refused, PlaceError::QueueFull { max_queued: 2 });
    assert_eq!(refused.reason(), "queue_full");
    first.abort();
    settle().await;
    let third = setup.place("d");
    let (second, third) = (second.await.unwrap().unwrap(), third.await.unwrap().unwrap());
    assert_eq!((second.batch_size, third.batch_size), (2, 2), "the one that left is not planned");
    let placed = setup.place("e").await.unwrap();
    assert!(placed.is_ok(), "a place in the queue is free once its request has left");
}

#[tokio::test(start_paused = true)]
async fn an_embedding_in_time_is_planned_with() {
    let setup = Setup::new(PolicyKind::Greedy, |_| {});
    let placing = setup.place_text("a", "hello");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!placing.is_finished() && setup.embeddings.n_asked() == 1);
    assert!(setup.embeddings.answer(prediction(&[0.2, 0.9], 100.0)));
    let placed = placing.await.unwrap().unwrap();
    assert_eq!((placed.planned.destination, placed.planned.source), (D1, QualitySource::Store));
    assert!((20..=22).contains(&setup.elapsed_ms()), "leaves with it: {}", setup.elapsed_ms());
}

#[tokio::test(start_paused = true)]
async fn a_late_embedding_is_not_waited_for() {
    let setup = Setup::new(PolicyKind::Greedy, |_| {});
    let placed = setup.place_text("a", "hello").await.unwrap().unwrap();
    assert_eq!((placed.planned.destination, placed.planned.source), (D0, QualitySource::Late));
    assert!((50..=52).contains(&setup.elapsed_ms()), "{}", setup.elapsed_ms());
    assert!(!setup.embeddings.answer(prediction(&[0.2, 0.9], 100.0)), "nobody waits for it any more");
}

#[tokio::test(start_paused = true)]
async fn a_fixed_window_waits_for_embeddings_until_it_closes() {
    let setup = Setup::new(PolicyKind::Greedy, |p| p.planner.window.close = WindowClose::Fixed);
    let (first, second) = (setup.place_text("a", "hello"), setup.place_text("b", "there"));
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert!(setup.embeddings.answer(prediction(&[0.2, 0.9], 100.0)));
    let (first, second) = (first.await.unwrap().unwrap(), second.await.unwrap().unwrap());
    assert_eq!((first.planned.destination, first.planned.source), (D1, QualitySource::Store));
    assert_eq!(second.planned.source, QualitySource::Late);
    assert_eq!(first.plan, second.plan);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_embedded_where_quality_decides_nothing() {
    let setup = Setup::new(PolicyKind::Greedy, |p| p.embed_wait = Duration::from_secs(5));
    let mut named = request("named");
    named.target = ModelTarget::Named("model-1".into());
    let mut indifferent = request("indifferent");
    indifferent.weights = Some(Weights { quality: 0.0, time: 1.0, ..QUALITY_ONLY });
    for request in [named, indifferent] {
        let placed = setup.scheduler.place(Arc::new(request), "hello".into()).await.unwrap();
        assert_eq!(placed.planned.source, QualitySource::Skipped);
    }
    assert_eq!(setup.embeddings.n_asked(), 0);
    let mut with_floor = request("floor");
    with_floor.weights = Some(Weights { quality: 0.0, time: 1.0, ..QUALITY_ONLY });
    let min_quality = Some(Quality(0.8));
    with_floor.constraints = Constraints { min_quality, ..Constraints::default() };
    let mut placing = pin!(setup.scheduler.place(Arc::new(with_floor), "hello".into()));
    assert!((&mut placing).now_or_never().is_none());
    assert!(setup.embeddings.answer(prediction(&[0.7, 0.9], 100.0)), "a floor needs a prediction");
    assert_eq!(placing.await.unwrap().planned.destination, D1);
}

#[tokio::test(start_paused = true)]
async fn the_impossible_is_refused_without_waiting() {
    let setup = Setup::new(PolicyKind::Greedy, |_| {});
    setup.health.send_replace(vec![Availability::Down, Availability::Loading].into());
    let error = setup.place("a").await.unwrap().unwrap_err();
    let unavailable = NoDestination::Unavailable { down: 1, loading: 1, draining: 0, returning: vec![] };
    assert_eq!((error, setup.elapsed_ms()), (PlaceError::Impossible(unavailable), 0));
}

#[tokio::test(start_paused = true)]
async fn a_change_of_health_moves_who_waits() {
    let setup = Setup::new(PolicyKind::Greedy, |_| {});
    setup.health.send_replace(vec![Availability::Ready, Availability::Down].into());
    let _first = setup.place("a").await.unwrap().unwrap();
    let second = setup.place("b");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!second.is_finished());
    setup.health.send_replace(vec![Availability::Ready, Availability::Ready].into());
    let second = second.await.unwrap().unwrap();
    assert_eq!((second.planned.destination, second.batch_size), (D1, 1));
    assert!(second.waited.0 < 0.102, "{:?}", second.waited);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_view_moves_who_waits() {
    let setup = Setup::new(PolicyKind::Greedy, |_| {});
    let elsewhere = SlotLoad { running: 1, ..SlotLoad::EMPTY };
    let mut view = FleetView::configured(setup.scheduler.destinations());
    // Others have the only slot of each.
    view.moments = vec![Moment { elsewhere, ..Moment::USUAL }; 2];
    setup.view.send_replace(Arc::new(view.clone()));
    let waiting = setup.place("a");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    view.moments[0] = Moment::USUAL;
    setup.view.send_replace(Arc::new(view));
    let placed = waiting.await.unwrap().unwrap();
    assert_eq!(placed.planned.destination, D0);
    assert!((0.1..0.102).contains(&placed.waited.0), "{:?}", placed.waited);
}

#[tokio::test(start_paused = true)]
async fn first_content_corrects_the_books() {
    let setup = Setup::new(PolicyKind::Greedy, |_| {});
    let placed = setup.place("a").await.unwrap().unwrap();
    let backlog_s = || setup.scheduler.planner.look(|context, _| context.states[0].backlog.0);
    // A second of work, all of it to be generated.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!((backlog_s() - 0.5).abs() < 0.01, "{}", backlog_s());
    placed.lease.answering();
    assert!((backlog_s() - 1.0).abs() < 0.01, "{}", backlog_s());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(backlog_s() > 0.1, "what is outstanding owes something: {}", backlog_s());
    drop(placed.lease);
    assert!(backlog_s().abs() < 1e-9);
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_room_is_told_so_at_the_deadline() {
    let setup = Setup::new(PolicyKind::Greedy, |p| p.request_deadline = Seconds(10.0));
    let mut leases: Vec<Lease> = Vec::new();
    for id in ["a", "b", "c", "d"] {
        leases.push(setup.place(id).await.unwrap().unwrap().lease);
    }
    let error = setup.place("e").await.unwrap().unwrap_err();
    assert!(
        matches!(error, PlaceError::Expired { waited_s } if (10.0..10.01).contains(&waited_s)),
        "{error:?}"
    );
    assert_eq!(error.reason(), "expired");
}

#[tokio::test(start_paused = true)]
async fn an_undecidable_request_is_told_why() {
    // On edge nodes alone.
    let setup = Setup::new(PolicyKind::CloudOnly, |_| {});
    let error = setup.place("a").await.unwrap().unwrap_err();
    assert!(matches!(&error, PlaceError::Undecided(why) if why.contains("cloud_only")), "{error:?}");
    assert_eq!(error.reason(), "undecided");
}

const TURNS: Alternation = Alternation { slice: Seconds(10.0), washout: 0.5, n_policies: 2, seed: 1 };

#[tokio::test(start_paused = true)]
async fn policies_take_turns_and_who_waits_is_planned_by_the_next() {
    let policies = [PolicyKind::Memetic, PolicyKind::RoundRobin];
    let hold = Some(Seconds(30.0));
    let setup = Setup::alternating(&policies, Some(TURNS), |p| p.planner.window.max_hold = hold);
    let of_memetic = (0..100).find(|n| (TURNS.nth(*n).policy, TURNS.nth(n + 1).policy) == (0, 1)).unwrap();
    let next_ms = u128::from(of_memetic + 1) * 10_000;
    tokio::time::sleep(Duration::from_millis(u64::try_from(next_ms).unwrap() - 4_000)).await;
    let mut leases = Vec::new();
    for id in ["a", "b"] {
        let placed = setup.place(id).await.unwrap().unwrap();
        assert_eq!(placed.policy, "memetic");
        leases.push(placed.lease);
    }
    let waiting = setup.place("c");
    settle().await;
    assert_eq!(setup.metric("cema_held_requests", None), 1, "for a slot");
    assert_eq!(setup.metric("cema_switchback_active", Some("memetic")), 1);
    // The next policy has it wait at an endpoint, from the moment its turn begins and without any other event.
    let placed = waiting.await.unwrap().unwrap();
    assert_eq!(placed.policy, "round_robin");
    assert!((next_ms..next_ms + 2).contains(&setup.elapsed_ms()), "{}", setup.elapsed_ms());
    assert_eq!(setup.metric("cema_held_requests", None), 0);
    let report = serde_json::to_value(setup.scheduler.switchback_report().unwrap()).unwrap();
    assert_eq!(
        (&report["now"]["policy"], &report["now"]["is_counted"]),
        (&"round_robin".into(), &false.into())
    );
    assert_eq!(setup.metric("cema_switchback_active", Some("memetic")), 0);
}

#[tokio::test(start_paused = true)]
async fn without_turns_there_is_nothing_to_compare() {
    let setup = Setup::new(PolicyKind::Greedy, |_| {});
    assert!(setup.scheduler.switchback().is_none() && setup.scheduler.switchback_report().is_none());
    assert!(setup.scheduler.begin_trial(&request("a")).is_none());
}

#[tokio::test(start_paused = true)]
async fn shutting_down_answers_who_waits() {
    let setup = Setup::new(PolicyKind::Greedy, |p| p.planner.window.close = WindowClose::Fixed);
    let waiting = setup.place("a");
    settle().await;
    setup.task.abort();
    assert_eq!(waiting.await.unwrap().unwrap_err(), PlaceError::Closed);
    assert_eq!(setup.place("b").await.unwrap().unwrap_err(), PlaceError::Closed);
}

#[tokio::test(start_paused = true)]
async fn the_task_ends_with_its_last_handle() {
    let setup = Setup::new(PolicyKind::Greedy, |_| {});
    let Placement { lease, .. } = setup.place("a").await.unwrap().unwrap();
    drop(setup.scheduler);
    settle().await;
    assert!(!setup.task.is_finished(), "a lease is a handle too");
    drop(lease);
    setup.task.await.unwrap();
}

#[tokio::test]
async fn plans_come_back_from_the_solvers_thread() {
    let (_health, states) = watch::channel(vec![Availability::Ready; 2].into());
    let destinations: Arc<[Destination]> = vec![destination(0, 1, 2), destination(1, 1, 2)].into();
    let (quality, _embeddings) = ByHand::service(&["model-0", "model-1"]);
    let (_view, view) = watch::channel(Arc::new(FleetView::configured(&destinations)));
    let fleet = Fleet {
        destinations,
        health: states,
        view,
        quality,
        log: JsonLog::default(),
        with_situations: false,
    };
    let policy = for_kind(PolicyKind::Memetic, &PolicyParams::default());
    let mut params = params();
    params.planner.window.max_wait = Seconds::ZERO;
    let (scheduler, task) = Scheduler::new(params, policy, fleet, &Registry::new()).unwrap();
    let task = tokio::spawn(task);
    for n in 1..=3 {
        let placed = scheduler.place(Arc::new(request("a")), "".into()).await.unwrap();
        assert_eq!((placed.plan, placed.batch_size), (n, 1));
    }
    drop(scheduler);
    task.await.unwrap();
}

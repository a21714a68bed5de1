//! What each source does to the view.

use super::*;
use crate::domain::fixture::destination;
use crate::profiler::engine::CapSign;
use crate::profiler::speed::{Given, SpeedEstimator};

fn engine(running: u32, waiting: u32, own: u32) -> EngineReading {
    let silent = EngineReading::silent(Instant::now());
    EngineReading { running: Some(running), waiting: Some(waiting), own_inflight: own, ..silent }
}

fn seen(engine: Option<(&EngineReading, u32)>) -> (Destination, Moment) {
    Seen { speed: None, prefix: None, engine, load: None, cap: SlotCap::default(), path: None }
        .applied_to(&destination(0, 4, 8))
}

#[test]
fn what_was_not_measured_stays_as_configured() {
    assert_eq!(seen(None), (destination(0, 4, 8), Moment::USUAL));
    let silent = EngineReading::silent(Instant::now());
    assert_eq!(seen(Some((&silent, 3))), (destination(0, 4, 8), Moment::USUAL));
}

#[test]
fn others_in_an_engine_take_slots_and_stand_in_its_queue() {
    let (_, moment) = seen(Some((&engine(3, 2, 1), 1)));
    // Of five, one is ours and two wait.
    assert_eq!((moment.elsewhere.running, moment.elsewhere.queued), (2, 2));
    // 250 tokens at 100 a second; two that run are half done.
    assert!((moment.elsewhere.decode.0 - 2.5).abs() < 1e-9);
    assert!((moment.elsewhere.queued_work.decode.0 - 5.0).abs() < 1e-9);
    let (_, moment) = seen(Some((&engine(3, 2, 5), 5)));
    assert_eq!(moment.elsewhere, SlotLoad::EMPTY);
}

#[test]
fn the_slots_of_the_engine_bound_concurrency_and_keep_the_slowdown() {
    let reading = EngineReading { slots: Some(2), ..EngineReading::silent(Instant::now()) };
    let mut configured = destination(0, 4, 8);
    // a = 1/3, so two slots are worth 2 / (1 + 1/3).
    configured.throughput.batch_speedup = 2.0;
    let (seen, _) = Seen {
        speed: None,
        prefix: None,
        engine: Some((&reading, 0)),
        load: None,
        cap: SlotCap::default(),
        path: None,
    }
    .applied_to(&configured);
    assert_eq!(seen.throughput.max_concurrency, 2);
    assert!((seen.throughput.batch_speedup - 1.5).abs() < 1e-9);
    assert!((seen.throughput.slowdown() - configured.throughput.slowdown()).abs() < 1e-9);
}

#[test]
fn an_adopted_cap_takes_the_place_of_the_default_whether_or_not_the_engine_still_tells() {
    let cap = SlotCap { adopted: Some((8, CapSign::RunningAbove)), max_inflight: Some(16), mismatch: None };
    let reading = engine(8, 0, 8);
    for engine in [None, Some((&reading, 8))] {
        let (seen, _) = Seen { speed: None, prefix: None, engine, load: None, cap, path: None }
            .applied_to(&destination(0, 4, 8));
        assert_eq!((seen.throughput.max_concurrency, seen.max_inflight), (8, 16));
        // The fixture's engine has no slowdown.
        assert!((seen.throughput.batch_speedup - 8.0).abs() < 1e-9);
    }
}

#[test]
fn pace_and_cold_models_are_of_the_moment() {
    let mut speed = SpeedEstimator::new(destination(0, 4, 8).throughput, Given::default());
    (0..20).for_each(|_| speed.progress(Seconds(9.0), Seconds(0.5), (Seconds(1.0), Seconds(0.25))));
    let reading = speed.reading(Seconds(10.0));
    let load =
        ModelLoad { is_loaded: Some(false), load: Seconds(7.0), loading_since: None, vram_share: None };
    let seen = Seen {
        speed: Some(&reading),
        prefix: None,
        engine: None,
        load: Some(&load),
        cap: SlotCap::default(),
        path: None,
    };
    let (seen, moment) = seen.applied_to(&destination(0, 4, 8));
    assert_eq!((seen, moment.warm_up), (destination(0, 4, 8), Seconds(7.0)));
    assert!((0.2..0.4).contains(&moment.pace), "{moment:?}");
}

#[test]
fn small_changes_are_no_news() {
    let configured: Arc<[Destination]> = vec![destination(0, 4, 8)].into();
    let view = FleetView::configured(&configured);
    assert!(!differs(&view, &view));
    let with = |change: &dyn Fn(&mut Destination, &mut Moment)| {
        let (mut destination, mut moment) = (destination(0, 4, 8), Moment::USUAL);
        change(&mut destination, &mut moment);
        FleetView { destinations: vec![destination].into(), moments: vec![moment] }
    };
    assert!(!differs(&view, &with(&|d, _| d.throughput.decode.0 *= 1.02)));
    assert!(differs(&view, &with(&|d, _| d.throughput.decode.0 *= 0.9)));
    assert!(differs(&view, &with(&|d, _| d.throughput.max_concurrency = 3)));
    assert!(differs(&view, &with(&|_, moment| moment.pace = 0.5)));
    assert!(differs(&view, &with(&|_, moment| moment.warm_up = Seconds(1.0))));
    assert!(differs(&view, &with(&|_, moment| moment.elsewhere.running = 1)));
}

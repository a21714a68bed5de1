//! The profiler on a paused clock.

use std::time::Duration;

use super::*;
use crate::domain::fixture::destination;
use crate::units::Tokens;

const D0: DestinationOrd = DestinationOrd(0);

fn profiler() -> (SpeedProfiler, Registry) {
    let registry = Registry::new();
    let destinations = [destination(0, 4, 8), destination(1, 4, 8)];
    let given = Given { decode: true, ..Given::default() };
    (SpeedProfiler::new(&destinations, &[given; 2], &registry).unwrap(), registry)
}

fn expected() -> Expected {
    Expected {
        wait: Seconds(0.1),
        finish: Seconds::ZERO,
        prompt: Tokens(10.0),
        completion: Tokens(100.0),
        network: Seconds::ZERO,
        is_stream: true,
        known: Tokens::ZERO,
        cached: Tokens::ZERO,
    }
}

fn gauge(registry: &Registry, name: &str, labels: &[&str]) -> f64 {
    let families = registry.gather();
    let family = families.iter().find(|family| family.name() == name).unwrap();
    let is_it = |m: &&prometheus::proto::Metric| {
        labels.iter().all(|label| m.get_label().iter().any(|pair| pair.value() == *label))
    };
    family.get_metric().iter().find(is_it).unwrap().get_gauge().get_value()
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_measured_from_its_first_content_to_its_end() {
    let (profiler, registry) = profiler();
    for _ in 0..40 {
        let mut flight = profiler.begin(Instant::now(), D0, expected());
        tokio::time::sleep(Duration::from_millis(100)).await;
        flight.first_content();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (prompt, completion) = (Some(Tokens(10.0)), Some(Tokens(101.0)));
        flight.finish(
            Instant::now(),
            &Answered { prompt, completion, events: 101, choices: 1, ..Answered::default() },
        );
    }
    profiler.tick();
    let readings = profiler.readings();
    assert!((readings[0].decode.value - 50.0).abs() < 1.0, "{readings:?}");
    assert!((readings[1].decode.value - 100.0).abs() < 1e-9 && readings[1].decode.samples == 0);
    let drift = gauge(&registry, "cema_profile_drift_ratio", &["node-0/model-0", "decode"]);
    assert!((drift - 0.5).abs() < 0.02, "{drift}");
    let idle = gauge(&registry, "cema_profile_drift_ratio", &["node-1/model-1", "decode"]);
    assert!((idle - 1.0).abs() < 1e-9);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_flight_is_gone_and_events_count_once() {
    let (profiler, registry) = profiler();
    let mut flight = profiler.begin(Instant::now(), D0, expected());
    flight.first_content();
    for n_events in [1, 3, 3, 8] {
        flight.events(n_events);
    }
    assert_eq!(profiler.shared.flows[0].n_events.load(Ordering::Relaxed), 8);
    // Ten seconds in which a thousand tokens should have come.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        profiler.tick();
    }
    assert!(gauge(&registry, "cema_destination_pace_ratio", &["node-0/model-0"]) < 0.2);
    drop(flight);
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        profiler.tick();
    }
    let readings = profiler.readings();
    assert!(readings[0].pace > 0.99 && readings[0].decode.samples == 0, "{readings:?}");
}

#[tokio::test(start_paused = true)]
async fn another_fleet_knows_what_was_learnt_of_destinations_that_stay_as_they_were() {
    let (before, _) = profiler();
    for _ in 0..40 {
        let mut flight = before.begin(Instant::now(), D0, expected());
        tokio::time::sleep(Duration::from_millis(100)).await;
        flight.first_content();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (prompt, completion) = (Some(Tokens(10.0)), Some(Tokens(101.0)));
        let answered = Answered { prompt, completion, events: 101, choices: 1, ..Answered::default() };
        flight.finish(Instant::now(), &answered);
    }
    let learnt = before.readings()[0].decode.value;
    assert!((learnt - 100.0).abs() > 5.0, "{learnt}");
    let mut changed = destination(0, 4, 8);
    changed.throughput.decode.0 += 1.0;
    let given = [Given { decode: true, ..Given::default() }; 3];
    let fleet = [destination(1, 4, 8), destination(0, 4, 8), changed];
    let was = [Some(DestinationOrd(1)), Some(D0), Some(D0)];
    let after = SpeedProfiler::after(&before, &was, (&fleet, &given), &Registry::new()).unwrap();
    let readings = after.readings();
    let decode = |at: usize| readings[at].decode.value;
    assert!((decode(1) - learnt).abs() < 1e-9 && (decode(0) - 100.0).abs() < 1e-9);
    assert!((decode(2) - 101.0).abs() < 1e-9, "its figures are others: {}", decode(2));
    // Both go on by themselves.
    drop(after.begin(Instant::now(), DestinationOrd(1), expected()));
    assert!((before.readings()[0].decode.value - learnt).abs() < 1e-9);
}

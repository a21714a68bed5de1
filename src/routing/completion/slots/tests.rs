//! Golden times by hand, and the timeline against a simulation of its own words.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

fn idle(slots: u32, batch_speedup: f64) -> SlotTimeline {
    SlotTimeline { speed: SlotSpeed { slots, batch_speedup }, load: SlotLoad::EMPTY, pace: 1.0 }
}

fn work(prefill_s: f64, decode_s: f64) -> Work {
    Work { prefill: Seconds(prefill_s), decode: Seconds(decode_s) }
}

fn timeline(slots: u32, speedup: f64, before: &[(f64, f64)]) -> SlotTimeline {
    let mut timeline = idle(slots, speedup);
    before.iter().for_each(|(prefill_s, decode_s)| timeline.push(work(*prefill_s, *decode_s)));
    timeline
}

#[track_caller]
fn assert_times(times: ServiceTimes, want: [f64; 3]) {
    let got = [times.start.0, times.first_content.0, times.finish.0];
    let is_close = got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-9);
    assert!(is_close, "{got:?} is not {want:?}");
}

#[test]
fn alone_a_request_takes_its_own_work() {
    assert_times(timeline(4, 2.0, &[]).predict(work(0.5, 3.0)), [0.0, 0.5, 3.5]);
    assert_times(timeline(1, 1.0, &[]).predict(work(0.5, 3.0)), [0.0, 0.5, 3.5]);
}

#[test]
fn prompts_are_read_in_turn_and_company_slows_generation() {
    // a = (4/2 − 1) / 3 = 1/3; the third of three generates at 1 / (1 + 2/3).
    let timeline = timeline(4, 2.0, &[(0.5, 3.0), (0.25, 3.0)]);
    assert_times(timeline.predict(work(1.0, 3.0)), [0.0, 1.75, 1.75 + 5.0]);
}

#[test]
fn with_one_slot_each_waits_for_all_before_it() {
    let timeline = timeline(1, 1.0, &[(0.5, 3.0), (0.25, 2.0), (0.0, 1.0)]);
    assert_times(timeline.predict(work(1.0, 4.0)), [6.75, 7.75, 11.75]);
}

#[test]
fn a_full_destination_frees_its_first_slot_when_the_shortest_ends() {
    // Two slots without slowdown: prompts until 1 s, the shorter completion until 3 s.
    let mut timeline = timeline(2, 2.0, &[(0.5, 2.0), (0.5, 6.0)]);
    assert_times(timeline.predict(work(1.0, 4.0)), [3.0, 4.0, 8.0]);
    // Behind one more: 8 s of completions and 4 of its own at twice the speed, but for the third of 8 s that the
    // other has left then; and two seconds of prompts.
    timeline.push(work(1.0, 4.0));
    assert_times(
        timeline.predict(work(1.0, 4.0)),
        [2.0 + (12.0 - 8.0 / 3.0) / 2.0, 7.0 + 2.0 / 3.0, 11.0 + 2.0 / 3.0],
    );
}

#[test]
fn one_more_delays_those_beside_it() {
    // a = (4/2 − 1) / 3 = 1/3; the third of three: each of two loses 0.5·1 s and 0.7·3 s·(1/3)/(1 + 2/3).
    let beside_two = timeline(4, 2.0, &[(0.5, 3.0), (0.25, 3.0)]);
    assert!((beside_two.externality(work(1.0, 3.0)).0 - 2.0 * (0.5 + 0.42)).abs() < 1e-9);
    // Full, or behind a queue: it will run beside three.
    let full = timeline(4, 2.0, &[(0.5, 3.0); 6]);
    assert!((full.externality(work(1.0, 3.0)).0 - 3.0 * (0.5 + 0.35)).abs() < 1e-9);
    assert!(timeline(1, 1.0, &[(0.5, 3.0)]).externality(work(1.0, 3.0)).0.abs() < 1e-12, "nobody beside it");
    // At full slots two requests' worth is generated at once.
    assert!((full.saturated_work(work(1.0, 3.0)).0 - 2.5).abs() < 1e-9);
}

#[test]
fn a_slow_endpoint_takes_longer_in_every_part() {
    let timeline = SlotTimeline { pace: 0.25, ..idle(1, 1.0) };
    assert_times(timeline.predict(work(0.5, 3.0)), [0.0, 2.0, 14.0]);
}

/// What the model says by its words: when each of these requests ends that all come at once, in order.
fn event_simulation(speed: SlotSpeed, requests: &[(f64, f64)]) -> Vec<f64> {
    let mut left: Vec<(f64, f64)> = requests.to_vec();
    let mut finished = vec![f64::NAN; left.len()];
    let (mut running, mut next, mut now_s) = (Vec::new(), 0, 0.0);
    while finished.iter().any(|at| at.is_nan()) {
        while next < left.len() && running.len() < speed.slots as usize {
            running.push(next);
            next += 1;
        }
        if let Some(reading) = running.iter().find(|r| left[**r].0 > 0.0) {
            now_s += std::mem::take(&mut left[*reading].0);
            continue;
        }
        let stretch = speed.stretch(running.len() as u32);
        let least_s = running.iter().map(|r| left[*r].1).fold(f64::INFINITY, f64::min);
        now_s += least_s * stretch;
        running.iter().for_each(|r| left[*r].1 -= least_s);
        running.iter().filter(|r| left[**r].1 <= 1e-12).for_each(|r| finished[*r] = now_s);
        running.retain(|r| left[*r].1 > 1e-12);
    }
    finished
}

#[test]
fn equal_requests_end_when_the_simulation_says() {
    for (slots, speedup) in [(1, 1.0), (4, 2.5), (8, 8.0)] {
        let before = vec![(0.25, 2.0); slots as usize - 1];
        let predicted = timeline(slots, speedup, &before).predict(work(0.25, 2.0));
        let all = [before, vec![(0.25, 2.0)]].concat();
        let simulated = event_simulation(idle(slots, speedup).speed, &all);
        assert!((predicted.finish.0 - simulated.last().unwrap()).abs() < 1e-9);
    }
}

/// Requests of random sizes, up to three generations deep. The prediction takes company to stay, the simulation lets it
/// end; the last one to come is predicted.
#[test]
fn predictions_are_close_to_the_simulation() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut errors: Vec<f64> = (0..400)
        .map(|_| {
            let slots = rng.random_range(1..=8);
            let mut timeline = idle(slots, 1.0 + rng.random::<f64>() * f64::from(slots - 1));
            let n = rng.random_range(0..3 * slots as usize);
            let requests: Vec<_> =
                (0..=n).map(|_| (rng.random_range(0.01..0.3), rng.random_range(0.5..4.0))).collect();
            let (last, before) = requests.split_last().unwrap();
            before.iter().for_each(|(prefill_s, decode_s)| timeline.push(work(*prefill_s, *decode_s)));
            let predicted_s = timeline.predict(work(last.0, last.1)).finish.0;
            let simulated_s = *event_simulation(timeline.speed, &requests).last().unwrap();
            (predicted_s / simulated_s - 1.0).abs()
        })
        .collect();
    errors.sort_by(f64::total_cmp);
    let (median, ninth) = (errors[200], errors[360]);
    assert!(median < 0.1 && ninth < 0.35, "median {median}, nine in ten {ninth}");
}

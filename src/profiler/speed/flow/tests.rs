//! Requests by script, and what is learnt of them.

use super::*;
use crate::domain::Throughput;
use crate::profiler::speed::estimator::Given;
use crate::units::TokensPerSec;

/// 1,000 and 100 tokens a second, four slots without slowdown.
fn flow() -> Flow {
    let reference = Throughput {
        prefill: TokensPerSec(1_000.0),
        decode: TokensPerSec(100.0),
        batch_speedup: 4.0,
        max_concurrency: 4,
        cached_prompt: Tokens::ZERO,
    };
    Flow::new(SpeedEstimator::new(reference, Given::default()), 4, Seconds::ZERO)
}

fn expected(is_stream: bool, wait_s: f64) -> Expected {
    Expected {
        wait: Seconds(wait_s),
        finish: Seconds::ZERO,
        prompt: Tokens(100.0),
        completion: Tokens(100.0),
        network: Seconds(0.1),
        is_stream,
        known: Tokens::ZERO,
        cached: Tokens::ZERO,
    }
}

fn answered(prompt: f64, completion: f64) -> Answered {
    let (prompt, completion) = (Some(Tokens(prompt)), Some(Tokens(completion)));
    Answered { prompt, completion, choices: 1, ..Answered::default() }
}

#[test]
fn a_stream_alone_tells_both_speeds() {
    let mut flow = flow();
    for n in 0..30 {
        let began = 10.0 * f64::from(n);
        let index = flow.begin(Seconds(began), expected(true, 0.5));
        // 0.1 s of network, 500 tokens at 500 a second and a first token; 99 more at 25 a second.
        flow.first_content(Seconds(began + 0.1 + 1.0 + 0.04), index);
        flow.finish(Seconds(began + 1.14 + 99.0 * 0.04), index, &answered(500.0, 100.0));
    }
    let reading = flow.reading(Seconds(300.0));
    assert!((reading.prefill.value / 500.0 - 1.0).abs() < 0.03, "{reading:?}");
    assert!((reading.decode.value / 25.0 - 1.0).abs() < 0.03, "{reading:?}");
    assert_eq!((reading.prefill.samples, reading.batch_speedup.samples), (30, 0));
}

#[test]
fn who_waits_behind_others_tells_nothing_of_prompts() {
    let mut flow = flow();
    let first = flow.begin(Seconds(0.0), expected(true, 0.5));
    let second = flow.begin(Seconds(0.0), expected(true, 1.0));
    flow.first_content(Seconds(0.6), first);
    flow.first_content(Seconds(1.1), second);
    flow.finish(Seconds(2.1), second, &answered(500.0, 101.0));
    assert_eq!(flow.reading(Seconds(3.0)).prefill.samples, 0);
    flow.finish(Seconds(2.1), first, &answered(500.0, 151.0));
    assert_eq!(flow.reading(Seconds(3.0)).prefill.samples, 1);
    // Both had company all the time, and generated as fast as if alone.
    let speedup = flow.reading(Seconds(3.0)).batch_speedup;
    assert!(speedup.samples == 2 && speedup.value > 3.9, "{speedup:?}");
}

#[test]
fn the_engines_own_clocks_are_believed_and_choices_are_not() {
    let mut flow = flow();
    let timings = Timings { prompt: (Tokens(100.0), Seconds(1.0)), completion: (Tokens(50.0), Seconds(5.0)) };
    for n in 0..30 {
        let began = 100.0 * f64::from(n);
        let index = flow.begin(Seconds(began), expected(false, 0.5));
        let answered = Answered { timings: Some(timings), ..answered(900.0, 50.0) };
        flow.finish(Seconds(began + 50.0), index, &answered);
        let several = flow.begin(Seconds(began + 60.0), expected(false, 0.5));
        flow.finish(Seconds(began + 61.0), several, &Answered { choices: 2, ..answered });
    }
    let reading = flow.reading(Seconds(3_000.0));
    assert!((reading.prefill.value / 100.0 - 1.0).abs() < 0.03, "{reading:?}");
    assert!((reading.decode.value / 10.0 - 1.0).abs() < 0.03, "{reading:?}");
    assert_eq!(reading.decode.samples, 30);
}

#[test]
fn an_answer_in_one_piece_tells_of_generation_where_that_took_most_of_it() {
    let mut flow = flow();
    for n in 0..30 {
        let began = 10.0 * f64::from(n);
        let index = flow.begin(Seconds(began), expected(false, 2.1));
        // 0.1 s of network, 0.1 s of reading, 100 tokens at 50 a second.
        flow.finish(Seconds(began + 2.2), index, &answered(100.0, 100.0));
        let brief = flow.begin(Seconds(began + 5.0), expected(false, 1.0));
        flow.finish(Seconds(began + 6.0), brief, &answered(2_000.0, 10.0));
    }
    let reading = flow.reading(Seconds(300.0));
    assert!((reading.decode.value / 50.0 - 1.0).abs() < 0.03, "{reading:?}");
    assert_eq!((reading.decode.samples, reading.prefill.samples), (30, 0));
}

/// Lets `seconds` pass in which each of `n_streams` streams brings `tps` events a second.
fn stream(flow: &mut Flow, from_s: f64, seconds: f64, events_per_s: f64) -> f64 {
    let n_ticks = (seconds / 0.5).round() as u32;
    for n in 1..=n_ticks {
        flow.tick(Seconds(from_s + 0.5 * f64::from(n)), (events_per_s * 0.5).round() as u64);
    }
    from_s + seconds
}

#[test]
fn running_streams_show_that_their_endpoint_has_become_slow() {
    let mut flow = flow();
    for _ in 0..2 {
        let index = flow.begin(Seconds(0.0), expected(true, 0.4));
        flow.first_content(Seconds(0.5), index);
    }
    let now = stream(&mut flow, 0.0, 10.0, 200.0);
    assert!((flow.reading(Seconds(now)).pace - 1.0).abs() < 1e-9);
    let now = stream(&mut flow, now, 3.0, 66.0);
    let pace = flow.reading(Seconds(now)).pace;
    assert!((0.3..0.6).contains(&pace), "{pace}");
    let now = stream(&mut flow, now, 3.0, 200.0);
    assert!((flow.reading(Seconds(now)).pace - 1.0).abs() < 1e-9);
    // Stopped altogether.
    let now = stream(&mut flow, now, 10.0, 0.0);
    assert!(flow.reading(Seconds(now)).pace < 0.15);
}

#[test]
fn waits_that_should_be_over_show_it_too() {
    let mut flow = flow();
    for _ in 0..3 {
        flow.begin(Seconds(0.0), expected(false, 1.0));
    }
    let now = stream(&mut flow, 0.0, 1.0, 0.0);
    assert!((flow.reading(Seconds(now)).pace - 1.0).abs() < 1e-9, "nothing is overdue yet");
    let now = stream(&mut flow, now, 2.5, 0.0);
    let pace = flow.reading(Seconds(now)).pace;
    assert!((0.25..0.65).contains(&pace), "1 s was expected, 3.4 s have passed: {pace}");
    // The client of one that was not answered says nothing.
    flow.end(Seconds(now), 0);
    let before = flow.reading(Seconds(now)).decode.samples;
    assert_eq!(before, 0);
}

#[test]
fn a_long_answer_is_no_slow_endpoint() {
    let mut flow = flow();
    // Expected 100 tokens in 1.1 s; 400 come in 4.1 s: as fast as ever.
    for n in 0..10 {
        let began = 5.0 * f64::from(n);
        let wait_s = 0.1 + flow.estimator.completion_ratio();
        let index = flow.begin(Seconds(began), expected(false, wait_s));
        flow.finish(Seconds(began + 4.2), index, &answered(100.0, 400.0));
        flow.tick(Seconds(began + 4.5), 0);
    }
    let reading = flow.reading(Seconds(50.0));
    assert!((reading.pace - 1.0).abs() < 1e-9, "{reading:?}");
    assert!((reading.decode.value / 100.0 - 1.0).abs() < 0.03, "{reading:?}");
}

#[test]
fn events_of_several_tokens_are_learnt() {
    let mut flow = flow();
    let mut now = 0.0;
    for _ in 0..60 {
        let index = flow.begin(Seconds(now), expected(true, 0.4));
        flow.first_content(Seconds(now + 0.5), index);
        // Four tokens an event, 25 events a second.
        let answered = Answered { events: 50, ..answered(100.0, 200.0) };
        now = stream(&mut flow, now, 2.5, 25.0);
        flow.finish(Seconds(now), index, &answered);
    }
    assert!((flow.tokens_per_event - 4.0).abs() < 0.05, "{}", flow.tokens_per_event);
    assert!((flow.reading(Seconds(now)).pace - 1.0).abs() < 1e-9, "{}", flow.reading(Seconds(now)).pace);
}

/// A prompt of which 8000 tokens were sent before; 6000 of them are expected in the cache. Its first content comes after
/// three seconds, or after one to nine.
fn known() -> Expected {
    let (known, cached) = (Tokens(8_000.0), Tokens(6_000.0));
    Expected { known, cached, ..expected(true, 3.0) }
}

#[test]
fn what_a_cache_had_or_had_not_is_no_pace() {
    for (first_at, evidence) in [(1.3, false), (3.1, false), (9.0, false), (0.6, true), (30.0, true)] {
        let mut flow = flow();
        for n in 0..3 {
            let began = 0.5 * f64::from(n);
            let index = flow.begin(Seconds(began), known());
            flow.first_content(Seconds(began + first_at), index);
            flow.end(Seconds(began + first_at), index);
        }
        flow.tick(Seconds(32.0), 0);
        let pace = flow.reading(Seconds(32.0)).pace;
        assert!(((pace - 1.0).abs() > 1e-9) == evidence, "{first_at}: {pace}");
    }
}

#[test]
fn a_wait_is_overdue_once_nothing_can_have_been_cached() {
    let mut flow = flow();
    flow.begin(Seconds(0.0), known());
    for (at, is_overdue) in [(8.0, false), (30.0, true)] {
        flow.tick(Seconds(at), 0);
        assert_eq!(flow.reading(Seconds(at)).pace < 1.0, is_overdue, "{at}");
    }
}

#[test]
fn known_prompts_say_nothing_of_new_ones() {
    let mut flow = flow();
    let told = Answered { counted_prompt: Some(Tokens(900.0)), tells_cached: true, ..answered(100.0, 100.0) };
    let untold = Answered { tells_cached: false, ..told };
    let run = |flow: &mut Flow, began: f64, expected: Expected, answered: &Answered| {
        let index = flow.begin(Seconds(began), expected);
        flow.first_content(Seconds(began + 0.3), index);
        flow.finish(Seconds(began + 1.3), index, answered);
    };
    let samples = |flow: &Flow| {
        let reading = flow.reading(Seconds(100.0));
        (reading.prefill.samples, reading.cached_prompt.samples)
    };
    run(&mut flow, 0.0, known(), &untold);
    assert_eq!(samples(&flow), (0, 0), "who knows how much of it was read");
    run(&mut flow, 10.0, known(), &told);
    assert_eq!(samples(&flow), (1, 0), "what it found is no chat template");
    run(&mut flow, 20.0, expected(true, 0.6), &untold);
    assert_eq!(samples(&flow), (2, 1));
}

//! Figures by hand.

use super::*;

const GIVEN: Given =
    Given { prefill: true, decode: true, batch_speedup: true, max_concurrency: true, max_inflight: true };

/// 1,000 and 100 tokens a second, four slots, a = (4/2 − 1)/3 = 1/3.
fn reference() -> Throughput {
    Throughput {
        prefill: TokensPerSec(1_000.0),
        decode: TokensPerSec(100.0),
        batch_speedup: 2.0,
        max_concurrency: 4,
        cached_prompt: Tokens::ZERO,
    }
}

fn alone(prefill_tps: f64, decode_tps: f64) -> Sample {
    Sample {
        prompt: Some((Tokens(500.0), Seconds(500.0 / prefill_tps))),
        completion: Some((Tokens(100.0), Seconds(100.0 / decode_tps))),
        company: 1.0,
        counted_prompt: None,
        cached_prompt: None,
        counted_completion: None,
    }
}

#[test]
fn until_something_is_measured_the_reference_stands() {
    let reading = SpeedEstimator::new(reference(), GIVEN).reading(Seconds(1e6));
    assert_eq!(reading.applied_to(&reference()), reference());
    assert!(!reading.decode.is_live() && !reading.decode.is_stale() && reading.decode.samples == 0);
}

#[test]
fn figures_follow_what_is_measured() {
    let mut estimator = SpeedEstimator::new(reference(), Given::default());
    for second in 0..20 {
        estimator.observe(Seconds(f64::from(second)), &alone(250.0, 40.0));
    }
    let reading = estimator.reading(Seconds(20.0));
    assert!((reading.prefill.value / 250.0 - 1.0).abs() < 0.02, "{reading:?}");
    assert!((reading.decode.value / 40.0 - 1.0).abs() < 0.02, "{reading:?}");
    assert!((reading.decode.drift / 0.4 - 1.0).abs() < 0.02);
    assert_eq!((reading.decode.samples, reading.decode.age), (20, Some(Seconds(1.0))));
    // All of them were alone.
    assert_eq!((reading.batch_speedup.samples, reading.batch_speedup.value), (0, 2.0));
    assert!((estimator.token_time(1.0).0 * 40.0 - 1.0).abs() < 0.02);
    assert!((estimator.prefill_time(Tokens(500.0)).0 / 2.0 - 1.0).abs() < 0.02);
}

#[test]
fn company_tells_of_the_speedup() {
    let mut estimator = SpeedEstimator::new(reference(), Given::default());
    // Truth: 100 tokens a second alone and a = 1, which is no speed-up at all.
    for (second, company) in [1.0, 4.0, 2.0, 4.0, 3.0].repeat(10).into_iter().enumerate() {
        let completion = Some((Tokens(100.0), Seconds(company)));
        estimator.observe(
            Seconds(second as f64),
            &Sample { prompt: None, completion, company, ..alone(1.0, 1.0) },
        );
    }
    let speedup = estimator.reading(Seconds(50.0)).batch_speedup;
    assert!((speedup.value - 1.0).abs() < 0.05, "{speedup:?}");
    assert_eq!(speedup.samples, 40);
}

#[test]
fn drift_is_bounded_flagged_and_forgotten_with_age() {
    let mut estimator = SpeedEstimator::new(reference(), GIVEN);
    for second in 0..100 {
        estimator.observe(Seconds(f64::from(second)), &alone(1_000.0, 1.0));
    }
    let decode = estimator.reading(Seconds(100.0)).decode;
    assert!((decode.value - 25.0).abs() < 1e-6, "no further than a quarter: {decode:?}");
    assert!(decode.has_drifted() && decode.is_live());
    assert!(!estimator.reading(Seconds(100.0)).prefill.has_drifted());
    // A configured figure is in force again, a mere default is not.
    let later = Seconds(100.0 + STALE_AFTER.0);
    let decode = estimator.reading(later).decode;
    assert!(decode.is_stale() && !decode.is_live() && !decode.has_drifted());
    assert!((decode.value - 100.0).abs() < 1e-9);
    let mut guessed = SpeedEstimator::new(reference(), Given::default());
    (0..100).for_each(|second| guessed.observe(Seconds(f64::from(second)), &alone(1_000.0, 1.0)));
    let decode = guessed.reading(later).decode;
    assert!(decode.is_stale() && decode.is_live() && (decode.value - 1.0).abs() < 0.02, "{decode:?}");
}

#[test]
fn plans_count_in_expected_tokens() {
    let mut estimator = SpeedEstimator::new(reference(), GIVEN);
    for second in 0..30 {
        let sample = Sample {
            counted_prompt: Some((Tokens(750.0), Tokens(500.0))),
            counted_completion: Some((Tokens(50.0), Tokens(100.0))),
            ..alone(1_000.0, 100.0)
        };
        estimator.observe(Seconds(f64::from(second)), &sample);
    }
    let reading = estimator.reading(Seconds(30.0));
    assert!((reading.prompt_ratio.value / 1.5 - 1.0).abs() < 0.02, "{reading:?}");
    assert!((reading.prefill.value / 1_000.0 - 1.0).abs() < 0.02, "{reading:?}");
    let applied = reading.applied_to(&reference());
    assert!((applied.prefill.0 / (1_000.0 / 1.5) - 1.0).abs() < 0.02, "{applied:?}");
    assert!((applied.decode.0 / 200.0 - 1.0).abs() < 0.02, "{applied:?}");
}

#[test]
fn what_every_prompt_finds_in_the_cache_is_not_read() {
    let mut estimator = SpeedEstimator::new(reference(), GIVEN);
    let observe = |estimator: &mut SpeedEstimator, second: u32, cached: f64| {
        let counted_prompt = Some((Tokens(200.0), Tokens(100.0)));
        let cached_prompt = Some(Tokens(cached));
        let sample = Sample { counted_prompt, cached_prompt, ..alone(1_000.0, 100.0) };
        estimator.observe(Seconds(f64::from(second)), &sample);
    };
    observe(&mut estimator, 0, 24.0);
    observe(&mut estimator, 1, 24.0);
    assert!(estimator.reading(Seconds(2.0)).cached_prompt.value.abs() < 1e-12, "two say nothing");
    // A conversation finds more; the template is what all find.
    for second in 2..40 {
        observe(&mut estimator, second, if second % 3 == 0 { 24.0 } else { 180.0 });
    }
    let reading = estimator.reading(Seconds(40.0));
    assert!((reading.cached_prompt.value - 24.0).abs() < 1e-12, "{reading:?}");
    let applied = reading.applied_to(&reference());
    // Twice as many tokens are counted as expected: 12 expected ones are found.
    assert!((applied.cached_prompt.0 - 12.0).abs() < 0.5, "{applied:?}");
    let work = applied.work(Tokens(100.0), Tokens(10.0));
    assert!((work.prefill.0 - (200.0 - 24.0) / 1_000.0).abs() < 0.01, "{work:?}");
}

#[test]
fn lateness_is_learnt_from_what_was_told_and_bounded() {
    let mut estimator = SpeedEstimator::new(reference(), GIVEN);
    // Answers take 1.5 times what the figures say; what is told comes to that.
    for _ in 0..200 {
        let told = Seconds(2.0 * estimator.reading(Seconds::ZERO).lateness);
        estimator.finished(Seconds(3.0), told);
    }
    assert!((estimator.reading(Seconds::ZERO).lateness - 1.5).abs() < 0.01);
    // One that took ten times as long says no more than one that took a fifth longer.
    let mut others = [3.0_f64, 30.0].map(|took_s| {
        let mut estimator = estimator.clone();
        estimator.finished(Seconds(took_s), Seconds(2.0));
        estimator.reading(Seconds::ZERO).lateness
    });
    others.sort_by(f64::total_cmp);
    assert!(others[0] > 1.5 && (others[1] - others[0]).abs() < 1e-9, "{others:?}");
    (0..400).for_each(|_| estimator.finished(Seconds(100.0), Seconds(1.0)));
    assert!((estimator.reading(Seconds::ZERO).lateness - 2.0).abs() < 1e-9);
    estimator.finished(Seconds(1.0), Seconds::ZERO);
    assert!((estimator.reading(Seconds::ZERO).lateness - 2.0).abs() < 1e-9, "nothing was predicted");
}

#[test]
fn what_is_too_small_says_nothing() {
    let mut estimator = SpeedEstimator::new(reference(), Given::default());
    for sample in [
        Sample {
            prompt: Some((Tokens(8.0), Seconds(1.0))),
            completion: Some((Tokens(2.0), Seconds(9.0))),
            company: 1.0,
            ..alone(1.0, 1.0)
        },
        Sample {
            prompt: Some((Tokens(500.0), Seconds(-0.1))),
            completion: Some((Tokens(50.0), Seconds(0.0))),
            company: 1.0,
            ..alone(1.0, 1.0)
        },
    ] {
        estimator.observe(Seconds(1.0), &sample);
    }
    assert_eq!(estimator.reading(Seconds(1.0)).applied_to(&reference()), reference());
}

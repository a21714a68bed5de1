//! Metrics by hand, and stores whose worth is known beforehand.

use super::check::{check, fleet_of};
use super::learning::learning_curve;
use super::*;
use crate::profiler::quality::embedder::EMBEDDING_DIMENSIONS;
use crate::profiler::quality::estimator::profile::{Profile, ProfileCell};
use crate::profiler::quality::format::FORMAT_NUMBERS;
use crate::profiler::quality::params::QualityParams;
use crate::profiler::quality::store::RowLabel;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

fn truth(score: f64, tokens: f64) -> Option<Truth> {
    Some(Truth { score, completion_tokens: Some(tokens), cost_usd: None })
}

fn row(benchmark: &str, quality: [f64; 2], truth: [Option<Truth>; 2]) -> JudgedPrompt {
    JudgedPrompt {
        benchmark: Some(benchmark.to_owned()),
        quality: quality.map(Some).to_vec(),
        variance: vec![0.1, 0.3],
        completion_tokens: vec![9.0, 19.0],
        truth: truth.to_vec(),
        ..JudgedPrompt::default()
    }
}

/// Two heaps of prompts at right angles: on the first `a` is right and `b` wrong, on the second the other way round.
fn two_heaps(n: usize) -> LabelledProfile {
    let mut labelled =
        LabelledProfile { profile: Profile::new(vec!["a".into(), "b".into()]), labels: Vec::new() };
    for i in 0..n {
        let heap = i % 2;
        let mut embedding = [0.0_f32; EMBEDDING_DIMENSIONS];
        embedding[heap] = 1.0;
        embedding[2 + i % 300] = 0.1;
        let norm = embedding.iter().map(|x| x * x).sum::<f32>().sqrt();
        let cell = |model: usize| {
            let score = f32::from(u8::from(model == heap));
            Some(ProfileCell { score, completion_tokens: Some(10.0) })
        };
        labelled.profile.push(&embedding.map(|x| x / norm), [0.0; FORMAT_NUMBERS], &[cell(0), cell(1)]);
        labelled.labels.push(RowLabel { id: format!("q{i}"), benchmark: Some(format!("heap{heap}")) });
    }
    labelled
}

#[test]
fn metrics_by_hand() {
    let rows = [
        row("x", [0.8, 0.4], [truth(1.0, 9.0), truth(0.0, 19.0)]),
        row("y", [0.6, 0.9], [truth(1.0, 9.0), truth(0.5, 9.0)]),
        row("y", [0.5, 0.7], [truth(0.0, 9.0), None]),
    ];
    let means = Means {
        global: vec![Some(0.5), Some(0.25)],
        completion_tokens: vec![Some(9.0), Some(9.0)],
        by_benchmark: [("x".to_owned(), vec![Some(1.0), Some(0.0)])].into(),
    };
    let metrics = judge(&rows, &["a".into(), "b".into()], &means);
    let near =
        |got: f64, expected: f64| assert!((got - expected).abs() < 1e-12, "{got} {expected} {metrics:?}");
    assert_eq!((metrics.rows, metrics.scores), (3, 5));
    near(metrics.coverage, 1.0);
    near(metrics.mse, ((0.04 + 0.16) / 2.0 + (0.16 + 0.16) / 2.0 + 0.25) / 3.0);
    near(metrics.mse_global_mean, ((0.25 + 0.0625) / 2.0 + (0.25 + 0.0625) / 2.0 + 0.25) / 3.0);
    near(metrics.mse_task_mean, (0.0 + (0.25 + 0.0625) / 2.0 + 0.25) / 3.0);
    // The chosen: a (1), b (0.5), a (0; b was not scored).
    near(metrics.chosen_score, 0.5);
    near(metrics.bias_chosen, (0.8 + 0.9 + 0.5 - 1.5) / 3.0);
    near(metrics.oracle, 2.0 / 3.0);
    near(metrics.best_single, 2.0 / 3.0);
    assert_eq!(metrics.best_single_model.as_deref(), Some("a"));
    // Bins of q̂: 0.4, 0.5, 0.6, 0.8, 0.9 stand alone.
    near(metrics.calibration_error, (0.4 + 0.5 + 0.4 + 0.2 + 0.4) / 5.0);
    near(metrics.predicted_variance, (0.2 + 0.2 + 0.1) / 3.0);
    // ln(20/20), one answer of 9 taken for 19.
    near(metrics.token_mae_log.unwrap(), 2.0_f64.ln() / 5.0);
    near(metrics.token_mae_log_mean.unwrap(), 2.0_f64.ln() / 5.0);
    near(metrics.token_ratio.unwrap(), 65.0 / 55.0);
    assert_eq!(metrics.aiq, None);
}

#[test]
fn a_store_that_tells_heaps_apart_is_found_good() {
    let labelled = two_heaps(300);
    let mut n_rows = 0;
    let checked = check(&labelled, &QualityParams::default(), 1_000, &mut || n_rows += 1);
    let check = checked.check;
    assert_eq!((n_rows, checked.rows.len(), check.prompts), (600, 300, 300));
    assert!(check.metrics.mse < 0.01 && check.metrics.chosen_score > 0.99, "{check:?}");
    // Of 299 others, 149 are of the row's kind: (150/299)² either way.
    assert!((check.metrics.mse_global_mean - (150.0_f64 / 299.0).powi(2)).abs() < 1e-6, "{check:?}");
    assert!(check.warnings.is_empty(), "{:?}", check.warnings);
    assert_eq!(check.tags.len(), 2);
    let sampled = super::check::check(&labelled, &QualityParams::default(), 100, &mut || ()).check;
    assert_eq!(sampled.metrics.rows, 100);
}

#[test]
fn a_store_that_says_nothing_is_told_so() {
    let mut labelled = two_heaps(100);
    // Every third prompt is easy, whatever it is like.
    let mut noise = Profile::new(labelled.profile.models().to_vec());
    for row in 0..100 {
        let score = f32::from(u8::from(row % 3 == 0));
        let cells = [Some(ProfileCell { score, completion_tokens: None }), None];
        noise.push(labelled.profile.embedding(row), *labelled.profile.format(row), &cells);
    }
    labelled.profile = noise;
    let warnings = check(&labelled, &QualityParams::default(), 1_000, &mut || ()).check.warnings.join("; ");
    assert!(warnings.contains("100 prompts predict little"), "{warnings}");
    assert!(warnings.contains("does not surely beat"), "{warnings}");
    assert!(warnings.contains("model b has 0 scores"), "{warnings}");
}

#[test]
fn prompts_of_the_same_text_are_no_neighbours() {
    // Twenty texts twice each, right the first time and wrong the second: a twin would give the opposite away.
    let mut labelled = LabelledProfile { profile: Profile::new(vec!["a".into()]), labels: Vec::new() };
    for i in 0..40_usize {
        let mut embedding = [0.0_f32; EMBEDDING_DIMENSIONS];
        embedding[i / 2] = 1.0;
        let score = f32::from(u8::from(i % 2 == 0));
        let cells = [Some(ProfileCell { score, completion_tokens: None })];
        labelled.profile.push(&embedding, [0.0; FORMAT_NUMBERS], &cells);
        labelled.labels.push(RowLabel::default());
    }
    let check = check(&labelled, &QualityParams::default(), 1_000, &mut || ()).check;
    assert!((check.metrics.mse - 0.25).abs() < 0.02, "{check:?}");
}

#[test]
fn the_learning_curve_falls_where_there_is_something_to_learn() {
    let labelled = two_heaps(400);
    let fleet = fleet_of(labelled.profile.models());
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let curve = learning_curve(&labelled.profile, &fleet, &QualityParams::default(), &mut rng);
    assert_eq!(curve.iter().map(|point| point.rows).collect::<Vec<_>>(), [50, 100, 200, 320]);
    assert!(curve.iter().all(|point| point.mse < 0.05 && point.mse_global_mean > 0.2), "{curve:?}");
    let few = learning_curve(&two_heaps(90).profile, &fleet, &QualityParams::default(), &mut rng);
    assert!(few.is_empty());
}

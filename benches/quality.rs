//! What a prediction costs after the embedding: the scan of 4,000 profiled prompts and the lookup of 11
//! models, and the format numbers of a 2 KB message. `cargo bench --bench quality`.

use cema_router::profiler::quality::embedder::EMBEDDING_DIMENSIONS;
use cema_router::profiler::quality::estimator::profile::{Profile, ProfileCell};
use cema_router::profiler::quality::estimator::{Estimator, Scratch};
use cema_router::profiler::quality::format::{FORMAT_NUMBERS, format_numbers};
use cema_router::profiler::quality::{DestinationPrior, EstimatorMode, FleetPriors, QualityParams};
use cema_router::units::{Quality, Tokens};
use divan::{Bencher, black_box};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

const MODELS: usize = 11;

fn main() {
    divan::main();
}

fn embedding(rng: &mut ChaCha8Rng) -> [f32; EMBEDDING_DIMENSIONS] {
    let point: [f32; EMBEDDING_DIMENSIONS] = std::array::from_fn(|_| rng.random_range(-1.0..1.0));
    let norm = point.iter().map(|x| x * x).sum::<f32>().sqrt();
    point.map(|x| x / norm)
}

fn format(rng: &mut ChaCha8Rng) -> [f64; FORMAT_NUMBERS] {
    std::array::from_fn(|_| rng.random_range(0.0..5.0))
}

#[divan::bench(args = [1_000, 4_000, 10_000])]
fn predict(bencher: Bencher<'_, '_>, n_rows: usize) {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let models: Vec<String> = (0..MODELS).map(|i| format!("model-{i}")).collect();
    let prior = |model: &String| DestinationPrior {
        model: model.as_str().into(),
        quality: Quality(0.5),
        completion_tokens: Tokens(100.0),
    };
    let priors = FleetPriors { destinations: models.iter().map(prior).collect() };
    let mut profile = Profile::new(models);
    for _ in 0..n_rows {
        let cell = |_| {
            Some(ProfileCell { score: rng.random(), completion_tokens: Some(rng.random_range(1.0..500.0)) })
        };
        let cells: Vec<_> = (0..MODELS).map(cell).collect();
        profile.push(&embedding(&mut rng), format(&mut rng), &cells);
    }
    let params = QualityParams { mode: EstimatorMode::FormatAware, ..QualityParams::default() };
    let estimator = Estimator::new(profile, &priors, &params);
    let (query, format) = (embedding(&mut rng), format(&mut rng));
    let mut scratch = Scratch::default();
    bencher.bench_local(|| estimator.predict(black_box(&query), black_box(&format), &mut scratch));
}

#[divan::bench]
fn format_of_two_kilobytes(bencher: Bencher<'_, '_>) {
    let text = "Which of the following is 3 + 4?\nA. six\nB. seven\n".repeat(42);
    bencher.bench_local(|| format_numbers(black_box(&text)));
}

//! What a prediction costs after the embedding, over 4,000, 36,500 and 1,000,000 profiled prompts of 11 models: scanning
//! up to 10,000, by the approximate index beyond; the embedding itself, new and cached; the format numbers of a 2 KB message;
//! and importing rows. `cargo bench --bench quality`.
//!
//! Prompts are made up: points around 2,000 centres, as close to theirs as prompts of one benchmark are. A million of them
//! take 8 GB of memory and an hour for the index; they are left out unless `CEMA_BENCH_ROWS=1000000` names them.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a bench that cannot go on must fail, and memory and tails are told beside its times"
)]

use std::sync::Arc;
use std::time::Instant;

use cema_router::profiler::quality::embedder::{
    self, EMBEDDING_DIMENSIONS, Embedder, EmbedderError, Embedding, LoadedEmbedder,
};
use cema_router::profiler::quality::estimator::profile::{Profile, ProfileCell};
use cema_router::profiler::quality::estimator::{Estimator, Scratch};
use cema_router::profiler::quality::format::{FORMAT_NUMBERS, format_numbers};
use cema_router::profiler::quality::import::import_trace;
use cema_router::profiler::quality::store::QualityStore;
use cema_router::profiler::quality::{DestinationPrior, EmbedderParams, FleetPriors, QualityParams};
use cema_router::units::{Quality, Tokens};
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

const MODELS: usize = 11;
const CENTRES: usize = 2_000;
/// Distance of a prompt from its centre before both are made unit vectors, per dimension.
const SPREAD: f32 = 0.04;
/// Queries that take turns, so that no one is measured from the processor's cache alone.
const QUERIES: usize = 64;

fn main() {
    divan::main();
}

/// Prompts around centres.
struct Cloud {
    rng: ChaCha8Rng,
    centres: Vec<[f32; EMBEDDING_DIMENSIONS]>,
}

impl Cloud {
    fn new() -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let centres =
            (0..CENTRES).map(|_| unit(std::array::from_fn(|_| rng.random_range(-1.0..1.0)))).collect();
        Self { rng, centres }
    }

    fn point(&mut self) -> ([f32; EMBEDDING_DIMENSIONS], [f64; FORMAT_NUMBERS]) {
        let centre = self.rng.random_range(0..CENTRES);
        let near = self.centres[centre].map(|x| x + self.rng.random_range(-SPREAD..SPREAD));
        // Prompts of one kind share their form.
        let format = std::array::from_fn(|i| ((centre + i) % 7) as f64 + self.rng.random_range(0.0..0.5));
        (unit(near), format)
    }

    fn estimator(&mut self, n_rows: usize) -> Estimator {
        let models: Vec<String> = (0..MODELS).map(|i| format!("model-{i}")).collect();
        let prior = |model: &String| DestinationPrior {
            model: model.as_str().into(),
            quality: Quality(0.5),
            completion_tokens: Tokens(100.0),
        };
        let priors = FleetPriors { destinations: models.iter().map(prior).collect() };
        let mut profile = Profile::new(models);
        for _ in 0..n_rows {
            let (embedding, format) = self.point();
            let cell = |_| {
                let completion_tokens = Some(self.rng.random_range(1.0..500.0));
                Some(ProfileCell { score: self.rng.random(), completion_tokens })
            };
            let cells: Vec<_> = (0..MODELS).map(cell).collect();
            profile.push(&embedding, format, &cells);
        }
        Estimator::new(profile, &priors, &QualityParams::default())
    }
}

fn unit(point: [f32; EMBEDDING_DIMENSIONS]) -> [f32; EMBEDDING_DIMENSIONS] {
    let norm = point.iter().map(|x| x * x).sum::<f32>().sqrt();
    point.map(|x| x / norm)
}

/// Resident memory of the process, MiB.
fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or_default();
    kib / 1024.0
}

/// Rows as bench arguments: those asked for, else what a box has time for.
fn rows() -> Vec<usize> {
    match std::env::var("CEMA_BENCH_ROWS") {
        Ok(list) => list.split(',').filter_map(|n| n.trim().parse().ok()).collect(),
        Err(_) => vec![1_000, 4_000, 10_000, 36_500],
    }
}

#[divan::bench(args = rows())]
fn predict(bencher: Bencher<'_, '_>, n_rows: usize) {
    let before = resident_mib();
    let mut cloud = Cloud::new();
    let estimator = cloud.estimator(n_rows);
    let started = Instant::now();
    estimator.prepare(None).expect("an index");
    println!(
        "{n_rows} rows: {:.0} MiB more resident, index in {:.1} s",
        resident_mib() - before,
        started.elapsed().as_secs_f64()
    );
    let queries: Vec<_> = (0..QUERIES).map(|_| cloud.point()).collect();
    let mut scratch = Scratch::default();
    // Single predictions: a tail is of requests, not of means.
    let mut micros: Vec<f64> = queries
        .iter()
        .cycle()
        .take(16 * QUERIES)
        .map(|(embedding, format)| {
            let started = Instant::now();
            black_box(estimator.predict(black_box(embedding), black_box(format), &mut scratch));
            started.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    micros.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| cema_router::statistics::quantile(&micros, share);
    println!("{n_rows} rows: p50 {:.0} µs, p99 {:.0} µs", at(0.5), at(0.99));
    let mut next = (0..QUERIES).cycle();
    bencher.bench_local(|| {
        let (embedding, format) = &queries[next.next().unwrap_or_default()];
        estimator.predict(black_box(embedding), black_box(format), &mut scratch)
    });
}

#[divan::bench]
fn format_of_two_kilobytes(bencher: Bencher<'_, '_>) {
    let text = "Which of the following is 3 + 4?\nA. six\nB. seven\n".repeat(42);
    bencher.bench_local(|| format_numbers(black_box(&text)));
}

/// About 60 and 128 tokens.
#[divan::bench(args = [50, 200])]
fn embed_words(bencher: Bencher<'_, '_>, words: usize) {
    let mut loaded = match embedder::load(&EmbedderParams::of_environment()) {
        Ok(loaded) => loaded,
        Err(error) => {
            println!("left out: {error}");
            return;
        }
    };
    let text: String = (0..words).map(|i| ["how ", "many ", "apples ", "are ", "left "][i % 5]).collect();
    bencher.counter(ItemsCount::new(1_usize)).bench_local(|| loaded.workers[0].embed(black_box(&text)));
}

/// An embedder that costs nothing: what is left is reading, checking and writing.
struct Free;

impl Embedder for Free {
    fn embed(&mut self, text: &str) -> Result<Embedding, EmbedderError> {
        let mut point = [0.0; EMBEDDING_DIMENSIONS];
        point[text.len() % EMBEDDING_DIMENSIONS] = 1.0;
        Ok(Arc::new(point))
    }
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn import_two_thousand_rows_without_embedding(bencher: Bencher<'_, '_>) {
    const ROWS: usize = 2_000;
    let dir = tempfile::tempdir().expect("a folder");
    let trace = dir.path().join("rows.jsonl");
    let scores: Vec<String> =
        (0..MODELS).map(|i| format!(r#""model-{i}":{{"score":0.5,"completion_tokens":100}}"#)).collect();
    let rows: Vec<String> = (0..ROWS)
        .map(|i| {
            let prompt = format!("question {i} ").repeat(30);
            format!(r#"{{"id":"q{i}","prompt":"{prompt}","models":{{{}}}}}"#, scores.join(","))
        })
        .collect();
    std::fs::write(&trace, rows.join("\n")).expect("a file");
    let mut n = 0;
    bencher.counter(ItemsCount::new(ROWS)).bench_local(|| {
        n += 1;
        let mut store =
            QualityStore::open_or_create(&dir.path().join(format!("store-{n}"))).expect("a store");
        let worker: Box<dyn Embedder> = Box::new(Free);
        let mut loaded = LoadedEmbedder { model_sha256: "free".into(), workers: vec![worker] };
        import_trace(&trace, &mut store, &mut loaded, &mut |_| ()).expect("an import")
    });
}

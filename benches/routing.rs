//! The routing core at the sizes operators meet: one evaluation, one generation of the paper's algorithm,
//! whole decisions. `cargo bench --bench routing`.
#![expect(clippy::unwrap_used, reason = "a generated problem is valid")]

use cema_router::domain::{DestinationId, DestinationOrd, Weights};
use cema_router::routing::{
    DestinationLoad, Evaluator, Objective, PolicyKind, PolicyParams, Problem, ProblemTables, for_kind,
    rng_for,
};
use divan::{Bencher, black_box};
use rand::RngExt;

/// R × M.
const SIZES: [(usize, usize); 5] = [(30, 6), (30, 11), (128, 11), (30, 88), (128, 88)];

/// R × M of the scaling runs: one grows, the other stays at the paper's.
const GROWING_FLEET: [(usize, usize); 8] =
    [(30, 11), (30, 22), (30, 44), (30, 88), (30, 176), (30, 352), (30, 704), (30, 1000)];
const GROWING_BATCH: [(usize, usize); 7] =
    [(1, 11), (4, 11), (16, 11), (64, 11), (256, 11), (1024, 11), (4096, 11)];

fn main() {
    divan::main();
}

/// A synthetic batch: eleven kinds of destination, fast ones dear and distant, repeated up to M.
fn problem(n: usize, m: usize) -> Problem {
    let mut rng = rng_for(1, 0);
    let kind = |d: usize| 1.0 + (d % 11) as f64;
    let destinations = (0..m).map(|d| DestinationLoad {
        id: DestinationId::from_text(&format!("d{d}")),
        class: None,
        backlog_s: 0.1 * (d % 3) as f64,
        batch_speedup: 1.0 + (d % 4) as f64,
        network_s: 0.06 / kind(d),
        inflight: 0,
        max_concurrency: 1,
        cap: None,
    });
    let destinations = destinations.collect();
    let cells = n * m;
    let mut tables = ProblemTables {
        quality_loss: Vec::with_capacity(cells),
        cost_usd: Vec::with_capacity(cells),
        energy_j: Vec::with_capacity(cells),
        service_s: Vec::with_capacity(cells),
        transfer_s: vec![0.0; cells],
        legal: vec![true; cells],
        length_tokens: Vec::with_capacity(n),
        destinations,
        weights: vec![Weights::EQUAL; n],
        first_request_number: 0,
        clusters: None,
        sum: None,
    };
    for _ in 0..n {
        let length = 50.0 + 500.0 * rng.random::<f64>();
        tables.length_tokens.push(length);
        for d in 0..m {
            let service_s = length * kind(d) / 5_000.0;
            tables.quality_loss.push((0.05 * kind(d) + 0.4 * rng.random::<f64>()).min(1.0));
            tables.cost_usd.push(1e-4 * length / kind(d));
            tables.energy_j.push(service_s * (100.0 + 200.0 / kind(d)));
            tables.service_s.push(service_s);
        }
    }
    Problem::new(tables).unwrap()
}

#[divan::bench(args = SIZES)]
fn evaluate(bencher: Bencher<'_, '_>, (n, m): (usize, usize)) {
    let problem = problem(n, m);
    let objective = Objective::batch(&problem);
    let assignment: Vec<DestinationOrd> = (0..n).map(|r| DestinationOrd((r % m) as u32)).collect();
    let mut evaluator = Evaluator::new(&problem, &objective);
    bencher.bench_local(|| evaluator.objective(black_box(&assignment)));
}

#[divan::bench(args = SIZES)]
fn batch_bounds(bencher: Bencher<'_, '_>, (n, m): (usize, usize)) {
    let problem = problem(n, m);
    bencher.bench_local(|| Objective::batch(black_box(&problem)));
}

fn decide(bencher: Bencher<'_, '_>, (n, m): (usize, usize), kind: PolicyKind, params: &PolicyParams) {
    let problem = problem(n, m);
    let objective = Objective::batch(&problem);
    let policy = for_kind(kind, params);
    bencher.bench_local(|| policy.route(&problem, &objective, &mut rng_for(1, 0), &mut || false));
}

#[divan::bench(args = SIZES)]
fn greedy(bencher: Bencher<'_, '_>, size: (usize, usize)) {
    decide(bencher, size, PolicyKind::Greedy, &PolicyParams::default());
}

#[divan::bench(args = SIZES)]
fn memetic_paper_one_generation(bencher: Bencher<'_, '_>, size: (usize, usize)) {
    let mut params = PolicyParams::default();
    params.memetic_paper.generations = 1;
    decide(bencher, size, PolicyKind::MemeticPaper, &params);
}

#[divan::bench(args = SIZES)]
fn memetic_paper(bencher: Bencher<'_, '_>, size: (usize, usize)) {
    decide(bencher, size, PolicyKind::MemeticPaper, &PolicyParams::default());
}

/// The search over a fixed number of scored assignments.
#[divan::bench(args = SIZES)]
fn memetic_20_000_evaluations(bencher: Bencher<'_, '_>, size: (usize, usize)) {
    let mut params = PolicyParams::default();
    (params.memetic.evaluations_max, params.memetic.gap_target) = (Some(20_000), 0.0);
    decide(bencher, size, PolicyKind::Memetic, &params);
}

#[divan::bench(args = GROWING_FLEET, sample_count = 10, sample_size = 1)]
fn scaling_m_greedy(bencher: Bencher<'_, '_>, size: (usize, usize)) {
    decide(bencher, size, PolicyKind::Greedy, &PolicyParams::default());
}

#[divan::bench(args = GROWING_FLEET, sample_count = 10, sample_size = 1)]
fn scaling_m_memetic_paper(bencher: Bencher<'_, '_>, size: (usize, usize)) {
    decide(bencher, size, PolicyKind::MemeticPaper, &PolicyParams::default());
}

#[divan::bench(args = GROWING_FLEET, sample_count = 10, sample_size = 1)]
fn scaling_m_memetic_first_optima(bencher: Bencher<'_, '_>, size: (usize, usize)) {
    first_optima(bencher, size);
}

#[divan::bench(args = GROWING_BATCH, sample_count = 10, sample_size = 1)]
fn scaling_r_greedy(bencher: Bencher<'_, '_>, size: (usize, usize)) {
    decide(bencher, size, PolicyKind::Greedy, &PolicyParams::default());
}

#[divan::bench(args = GROWING_BATCH, sample_count = 10, sample_size = 1)]
fn scaling_r_memetic_paper(bencher: Bencher<'_, '_>, size: (usize, usize)) {
    decide(bencher, size, PolicyKind::MemeticPaper, &PolicyParams::default());
}

#[divan::bench(args = GROWING_BATCH, sample_count = 3, sample_size = 1)]
fn scaling_r_memetic_first_optima(bencher: Bencher<'_, '_>, size: (usize, usize)) {
    first_optima(bencher, size);
}

/// Seeds, bound and the descents from them, without rounds: the work of a search that has no end of its own.
fn first_optima(bencher: Bencher<'_, '_>, size: (usize, usize)) {
    let mut params = PolicyParams::default();
    (params.memetic.stall_rounds, params.memetic.gap_target) = (0, 0.0);
    decide(bencher, size, PolicyKind::Memetic, &params);
}

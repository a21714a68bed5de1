//! The near-optimal policy against problems whose optimum a MILP solver has proven.

use cema_router::domain::Weights;
use cema_router::problem_file::{ProblemFile, from_reader};
use cema_router::routing::check::check;
use cema_router::routing::{
    Evaluator, Objective, PolicyKind, PolicyParams, Problem, RoutingDecision, for_kind, rng_for,
};

const FIXTURES: [&str; 6] = [
    include_str!("../fixtures/solver/ctl_rag_30_11_1.json"),
    include_str!("../fixtures/solver/ctlk8_30_11_0.json"),
    include_str!("../fixtures/solver/real_rag_30_11_0.json"),
    include_str!("../fixtures/solver/real_rag_50_11_0.json"),
    include_str!("../fixtures/solver/tb_30_6_0.json"),
    include_str!("../fixtures/solver/tb_50_6_0.json"),
];
/// Best known J under weights (0.1, 0.1, 0.1, 0.7), and how it was found.
const TIME_HEAVY_BEST: &str = include_str!("../fixtures/solver/time_heavy_best.json");
/// Share of it the answer may be above it.
const TIME_HEAVY_GAP_MAX: f64 = 0.03;
/// Scored assignments under these weights, about five milliseconds.
const TIME_HEAVY_EVALUATIONS: u64 = 60_000;
/// Scored assignments, about a millisecond of an optimised build on the larger of these problems.
const EVALUATIONS: u64 = 20_000;
/// Share of the optimum the answer may be above it.
const GAP_MAX: f64 = 0.005;
/// Rounding of the stored optima.
const ROUNDING: f64 = 1e-7;

fn solve(kind: PolicyKind, file: &ProblemFile, seed: u64) -> RoutingDecision {
    solve_within(EVALUATIONS, kind, file, seed)
}

fn solve_within(evaluations: u64, kind: PolicyKind, file: &ProblemFile, seed: u64) -> RoutingDecision {
    let mut params = PolicyParams::default();
    params.memetic.evaluations_max = Some(evaluations);
    let policy = for_kind(kind, &params);
    policy.route(&file.problem, &file.objective, &mut rng_for(seed, 0), &mut || false).unwrap()
}

fn optimum(text: &str) -> f64 {
    let file: serde_json::Value = serde_json::from_str(text).unwrap();
    file["reference"]["objective_optimum"].as_f64().unwrap()
}

#[test]
fn memetic_ends_within_half_a_percent_of_the_optimum() {
    for text in FIXTURES {
        let (file, optimum) = (from_reader(text.as_bytes()).unwrap(), optimum(text));
        for seed in 1..=3 {
            let decision = solve(PolicyKind::Memetic, &file, seed);
            assert_eq!(check(&file.problem, &file.objective, &decision), Ok(()));
            let gap = (decision.objective - optimum) / optimum;
            assert!((-ROUNDING..=GAP_MAX).contains(&gap), "gap {gap} with seed {seed}");
            let bound = decision.lower_bound.unwrap();
            assert!(bound <= optimum * (1.0 + ROUNDING), "bound {bound} above optimum {optimum}");
        }
    }
}

#[test]
fn joint_search_beats_greedy_and_the_algorithm_of_the_paper() {
    for text in FIXTURES {
        let file = from_reader(text.as_bytes()).unwrap();
        let memetic = solve(PolicyKind::Memetic, &file, 1).objective;
        assert!(memetic < solve(PolicyKind::Greedy, &file, 1).objective);
        assert!(memetic < 0.9 * solve(PolicyKind::MemeticPaper, &file, 1).objective);
    }
}

#[test]
fn a_heavy_weight_on_time_ends_within_three_percent_of_the_best_known() {
    let stored: serde_json::Value = serde_json::from_str(TIME_HEAVY_BEST).unwrap();
    for text in FIXTURES {
        let file = from_reader(text.as_bytes()).unwrap();
        let mut tables = file.problem.tables().clone();
        tables.weights.fill(Weights { quality: 0.1, cost: 0.1, energy: 0.1, time: 0.7 });
        let problem = Problem::new(tables).unwrap();
        let objective = Objective::with_bounds(&problem, *file.objective.bounds());
        let file = ProblemFile { problem, objective };
        let best_known = stored["problems"][name(text)]["best_known"].as_f64().unwrap();
        for seed in 1..=3 {
            let decision = solve_within(TIME_HEAVY_EVALUATIONS, PolicyKind::Memetic, &file, seed);
            assert_eq!(check(&file.problem, &file.objective, &decision), Ok(()));
            let gap = (decision.objective - best_known) / best_known;
            assert!(gap <= TIME_HEAVY_GAP_MAX, "{}: gap {gap} with seed {seed}", name(text));
            let bound = decision.lower_bound.unwrap();
            assert!(bound <= best_known * (1.0 + ROUNDING), "bound {bound} above {best_known}");
            let again = Evaluator::new(&file.problem, &file.objective).objective(&decision.assignment);
            assert!((again - decision.objective).abs() < 1e-12);
        }
    }
}

/// The name in the file, which is that of the file.
fn name(text: &str) -> String {
    let file: serde_json::Value = serde_json::from_str(text).unwrap();
    format!("{}.json", file["name"].as_str().unwrap())
}

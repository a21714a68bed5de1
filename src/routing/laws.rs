//! Laws every policy and the solver obey, over random problems.

use proptest::prelude::*;

use crate::domain::{DestinationOrd, Weights};
use crate::routing::check::check;
use crate::routing::testing::{context, random_problem, random_tables};
use crate::routing::{
    Clusters, Evaluator, Objective, PolicyKind, PolicyParams, Problem, RoutingDecision, for_kind, rng_for,
};

fn params(evaluations: u64) -> PolicyParams {
    let mut params = PolicyParams::default();
    params.memetic.evaluations_max = Some(evaluations);
    params
}

fn route(kind: PolicyKind, problem: &Problem, objective: &Objective, seed: u64) -> RoutingDecision {
    let mut rng = rng_for(seed, 0);
    for_kind(kind, &params(2_000)).route(problem, objective, &mut rng, &mut || false).unwrap()
}

/// Least J over all legal assignments.
fn optimum(problem: &Problem, objective: &Objective) -> f64 {
    let (n, m) = (problem.n_requests(), problem.n_destinations());
    let mut evaluator = Evaluator::new(problem, objective);
    let mut least = f64::INFINITY;
    for code in 0..m.pow(n as u32) {
        let digit = |r: usize| DestinationOrd((code / m.pow(r as u32) % m) as u32);
        let assignment: Vec<DestinationOrd> = (0..n).map(digit).collect();
        if assignment.iter().enumerate().all(|(r, d)| problem.is_legal(r, *d)) {
            least = least.min(evaluator.objective(&assignment));
        }
    }
    least
}

const T_HEAVY: Weights = Weights { quality: 0.1, cost: 0.1, energy: 0.1, time: 0.7 };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_policy_is_complete_legal_and_reports_what_the_checker_finds(
        seed in any::<u64>(), n in 1..14_usize, m in 2..7_usize,
    ) {
        let mut tables = random_tables(seed, n, m, false);
        tables.clusters = Some(Clusters { of_request: vec![0; n], error: vec![0.5; m] });
        let problem = Problem::new(tables).unwrap();
        let objective = Objective::batch(&problem);
        for kind in PolicyKind::ALL {
            let decision = route(*kind, &problem, &objective, seed);
            prop_assert_eq!(check(&problem, &objective, &decision), Ok(()), "{}", kind);
        }
    }

    #[test]
    fn restricted_rows_are_respected(seed in any::<u64>(), n in 1..14_usize, m in 2..7_usize) {
        let problem = random_problem(seed, n, m, true);
        let objective = Objective::batch(&problem);
        let free = [
            PolicyKind::Memetic, PolicyKind::MemeticPaper, PolicyKind::Greedy, PolicyKind::RoundRobin,
            PolicyKind::LeastLoaded,
        ];
        for kind in free {
            let decision = route(kind, &problem, &objective, seed);
            prop_assert_eq!(check(&problem, &objective, &decision), Ok(()), "{}", kind);
        }
    }

    #[test]
    fn memetic_finds_small_optima_and_its_bound_is_never_above_them(
        seed in any::<u64>(), n in 1..7_usize, m in 2..5_usize, is_t_heavy in any::<bool>(),
    ) {
        let mut tables = random_tables(seed, n, m, true);
        if is_t_heavy {
            tables.weights.fill(T_HEAVY);
        }
        let problem = Problem::new(tables).unwrap();
        let objective = Objective::batch(&problem);
        let (decision, least) = (route(PolicyKind::Memetic, &problem, &objective, seed), optimum(&problem, &objective));
        // The search may end on a certified gap of 0.2 %.
        prop_assert!(decision.objective <= least + 0.002 * decision.objective.abs() + 1e-9);
        prop_assert!(decision.lower_bound.unwrap() <= least + 1e-9);
    }

    #[test]
    fn memetic_is_never_worse_than_greedy_however_short_its_budget(
        seed in any::<u64>(), n in 1..20_usize, m in 2..8_usize, polls in 0..6_u32,
    ) {
        let problem = random_problem(seed, n, m, true);
        let objective = Objective::batch(&problem);
        let greedy = route(PolicyKind::Greedy, &problem, &objective, seed);
        let mut polled = 0;
        let mut stop = || { polled += 1; polled > polls };
        let policy = for_kind(PolicyKind::Memetic, &PolicyParams::default());
        let decision = policy.route(&problem, &objective, &mut rng_for(seed, 0), &mut stop).unwrap();
        prop_assert_eq!(check(&problem, &objective, &decision), Ok(()));
        prop_assert!(decision.objective <= greedy.objective + 1e-9);
    }

    #[test]
    fn relabelling_destinations_changes_no_objective(
        seed in any::<u64>(), n in 2..14_usize, m in 2..7_usize, shift in 1..6_usize,
    ) {
        let tables = random_tables(seed, n, m, true);
        let from = |d: usize| (d * (m - 1) + shift) % m;
        let mut relabelled = tables.clone();
        for r in 0..n {
            for d in 0..m {
                let (to, cell) = (r * m + d, r * m + from(d));
                relabelled.quality_loss[to] = tables.quality_loss[cell];
                relabelled.cost_usd[to] = tables.cost_usd[cell];
                relabelled.energy_j[to] = tables.energy_j[cell];
                relabelled.service_s[to] = tables.service_s[cell];
                relabelled.legal[to] = tables.legal[cell];
            }
        }
        relabelled.destinations = (0..m).map(|d| tables.destinations[from(d)].clone()).collect();
        let (problem, relabelled) = (Problem::new(tables).unwrap(), Problem::new(relabelled).unwrap());
        // One set of bounds for both, so that a rounding of the bounds does not count.
        let objective = Objective::batch(&problem);
        let same = Objective::with_bounds(&relabelled, *objective.bounds());
        // The other baselines break ties by position, which is a label.
        for kind in [PolicyKind::Memetic, PolicyKind::Greedy] {
            let a = route(kind, &problem, &objective, seed);
            let b = route(kind, &relabelled, &same, seed);
            prop_assert!((a.objective - b.objective).abs() < 1e-9, "{}: {} {}", kind, a.objective, b.objective);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_decision(seed in any::<u64>(), n in 2..20_usize, m in 2..8_usize) {
        let problem = random_problem(seed, n, m, true);
        let objective = Objective::batch(&problem);
        for kind in [PolicyKind::Memetic, PolicyKind::MemeticPaper] {
            prop_assert_eq!(route(kind, &problem, &objective, seed), route(kind, &problem, &objective, seed));
        }
    }

    #[test]
    fn weights_of_one_request_scale_its_row_only(seed in any::<u64>(), n in 2..8_usize, m in 2..5_usize) {
        let mut tables = random_tables(seed, n, m, false);
        tables.weights[0] = T_HEAVY;
        let problem = Problem::new(tables).unwrap();
        let objective = Objective::batch(&problem);
        let decision = route(PolicyKind::Memetic, &problem, &objective, seed);
        prop_assert_eq!(check(&problem, &objective, &decision), Ok(()));
        let mean_time = (0.25 * (n - 1) as f64 + 0.7) / n as f64;
        prop_assert!((objective.mean_weights().time - mean_time).abs() < 1e-12);
    }
}

#[test]
fn another_batch_number_is_another_stream() {
    let problem = random_problem(7, 30, 6, false);
    let objective = Objective::batch(&problem);
    let policy = for_kind(PolicyKind::MemeticPaper, &PolicyParams::default());
    let decide = |batch| policy.route(&problem, &objective, &mut rng_for(1, batch), &mut || false).unwrap();
    assert_ne!(decide(0).assignment, decide(1).assignment);
}

#[test]
fn a_stationary_objective_has_a_backlog_term_that_the_checker_agrees_with() {
    let problem = random_problem(3, 12, 5, true);
    let scales = context(Vec::new()).scales;
    let objective = Objective::stationary(&problem, &scales);
    let decision = route(PolicyKind::Memetic, &problem, &objective, 1);
    assert_eq!(check(&problem, &objective, &decision), Ok(()));
    assert!(decision.terms.backlog > 0.0);
}

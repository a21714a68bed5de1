//! Laws every policy and the solver obey, over random problems.

use proptest::prelude::*;
use rand::RngExt;

use crate::domain::{DestinationOrd, Weights};
use crate::routing::check::check;
use crate::routing::policy::PolicyError;
use crate::routing::testing::{context, random_problem, random_sum_problem, random_tables};
use crate::routing::{
    Clusters, Evaluator, Objective, PolicyKind, PolicyParams, Problem, ProblemError, ProblemTables,
    RoutingDecision, for_kind, rng_for,
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

fn is_within_caps(problem: &Problem, assignment: &[DestinationOrd]) -> bool {
    let count = |d: usize| assignment.iter().filter(|x| x.idx() == d).count();
    let mut loads = problem.destinations().iter().enumerate();
    loads.all(|(d, load)| load.cap.is_none_or(|cap| count(d) <= cap as usize))
}

/// Random tables with caps that one random legal assignment just fits, and up to `slack` places more.
fn capped_tables(seed: u64, n: usize, m: usize, slack: u32) -> ProblemTables {
    let mut tables = random_tables(seed, n, m, true);
    let mut rng = rng_for(seed, 9);
    for load in &mut tables.destinations {
        load.cap = Some(rng.random_range(0..=slack));
    }
    for row in tables.legal.chunks(m) {
        let legal: Vec<usize> = (0..m).filter(|d| row[*d]).collect();
        let cap = &mut tables.destinations[legal[rng.random_range(0..legal.len())]].cap;
        *cap = cap.map(|cap| cap + 1);
    }
    if rng.random_bool(0.5) {
        tables.destinations[0].cap = None;
    }
    tables
}

/// Least J over all legal assignments within the caps; infinite if there is none.
fn optimum(problem: &Problem, objective: &Objective) -> f64 {
    let (n, m) = (problem.n_requests(), problem.n_destinations());
    let mut evaluator = Evaluator::new(problem, objective);
    let mut least = f64::INFINITY;
    for code in 0..m.pow(n as u32) {
        let digit = |r: usize| DestinationOrd((code / m.pow(r as u32) % m) as u32);
        let assignment: Vec<DestinationOrd> = (0..n).map(digit).collect();
        let is_legal = assignment.iter().enumerate().all(|(r, d)| problem.is_legal(r, *d));
        if is_legal && is_within_caps(problem, &assignment) {
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
    fn the_sum_of_completion_times_is_what_the_checker_finds(
        seed in any::<u64>(), n in 1..24_usize, m in 2..7_usize,
    ) {
        let problem = random_sum_problem(seed, n, m);
        for objective in [Objective::batch(&problem), Objective::stationary(&problem, &context(Vec::new()).scales)] {
            let greedy = route(PolicyKind::Greedy, &problem, &objective, seed);
            let memetic = route(PolicyKind::Memetic, &problem, &objective, seed);
            for decision in [&greedy, &memetic] {
                prop_assert_eq!(check(&problem, &objective, decision), Ok(()));
            }
            prop_assert!(memetic.objective <= greedy.objective + 1e-9, "{} {}", memetic.objective, greedy.objective);
        }
    }

    #[test]
    fn memetic_comes_close_to_the_least_sum(seed in any::<u64>(), n in 1..6_usize, m in 2..5_usize) {
        let problem = random_sum_problem(seed, n, m);
        let objective = Objective::stationary(&problem, &context(Vec::new()).scales);
        let decision = route(PolicyKind::Memetic, &problem, &objective, seed);
        let least = optimum(&problem, &objective);
        prop_assert!(decision.objective <= least + 0.02 * least.abs(), "{} {}", decision.objective, least);
        prop_assert!(decision.lower_bound.unwrap() <= least + 1e-9);
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
    fn every_policy_respects_caps(
        seed in any::<u64>(), n in 1..24_usize, m in 2..7_usize, slack in 0..3_u32, polls in 0..40_u32,
    ) {
        let mut tables = capped_tables(seed, n, m, slack);
        tables.clusters = Some(Clusters { of_request: vec![0; n], error: vec![0.5; m] });
        let problem = Problem::new(tables).unwrap();
        let objective = Objective::batch(&problem);
        let greedy = route(PolicyKind::Greedy, &problem, &objective, seed);
        for kind in PolicyKind::ALL {
            let mut polled = 0;
            let mut stop = || { polled += 1; polled > polls };
            let policy = for_kind(*kind, &params(2_000));
            match policy.route(&problem, &objective, &mut rng_for(seed, 0), &mut stop) {
                Ok(decision) => {
                    prop_assert_eq!(check(&problem, &objective, &decision), Ok(()), "{}", kind);
                    if *kind == PolicyKind::Memetic {
                        prop_assert!(decision.objective <= greedy.objective + 1e-9);
                    }
                }
                // One class alone may have too few places, or none that is legal.
                Err(error) => prop_assert!(matches!(
                    (kind, &error),
                    (
                        PolicyKind::CloudOnly | PolicyKind::EdgeOnly,
                        PolicyError::NoDestinationOfClass { .. } | PolicyError::NoPlaceOfClass { .. },
                    ),
                ), "{}: {}", kind, error),
            }
        }
    }

    #[test]
    fn memetic_finds_small_optima_under_caps(
        seed in any::<u64>(), n in 1..6_usize, m in 2..4_usize, slack in 0..2_u32, is_t_heavy in any::<bool>(),
    ) {
        let mut tables = capped_tables(seed, n, m, slack);
        if is_t_heavy {
            tables.weights.fill(T_HEAVY);
        }
        let problem = Problem::new(tables).unwrap();
        let objective = Objective::batch(&problem);
        let mut params = params(20_000);
        params.memetic.gap_target = 0.0;
        let policy = for_kind(PolicyKind::Memetic, &params);
        let decision = policy.route(&problem, &objective, &mut rng_for(seed, 0), &mut || false).unwrap();
        let least = optimum(&problem, &objective);
        prop_assert!((decision.objective - least).abs() < 1e-9, "{} {}", decision.objective, least);
        prop_assert!(decision.lower_bound.unwrap() <= least + 1e-9);
    }

    #[test]
    fn caps_are_refused_exactly_if_nothing_fits(
        seed in any::<u64>(), n in 1..6_usize, m in 1..4_usize, caps in prop::collection::vec(0..4_u32, 3),
    ) {
        let mut tables = random_tables(seed, n, m, true);
        let uncapped = Problem::new(tables.clone()).unwrap();
        for (load, cap) in tables.destinations.iter_mut().zip(&caps) {
            load.cap = Some(*cap);
        }
        let objective = Objective::batch(&uncapped);
        let fits = {
            let digit = |code: usize, r: usize| DestinationOrd((code / m.pow(r as u32) % m) as u32);
            (0..m.pow(n as u32)).any(|code| {
                let count = |d: u32| (0..n).filter(|r| digit(code, *r).0 == d).count();
                (0..n).all(|r| uncapped.is_legal(r, digit(code, r)))
                    && (0..m as u32).all(|d| count(d) <= caps[d as usize] as usize)
            })
        };
        match Problem::new(tables) {
            Ok(problem) => {
                prop_assert!(fits);
                prop_assert!(optimum(&problem, &objective).is_finite());
            }
            Err(ProblemError::CapsTooTight { requests, places, .. }) => {
                prop_assert!(!fits);
                prop_assert_eq!(requests, places + 1);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn identical_requests_spread_evenly_over_identical_destinations(
        n in 1..40_usize, m in 1..7_usize, polls in 0..3_u32,
    ) {
        // A makespan alone is as content with 2, 2, 1, 0 as with 2, 1, 1, 1 (sgl-project/sglang#27547).
        let mut tables = random_tables(1, n, m, false);
        for table in [&mut tables.quality_loss, &mut tables.cost_usd, &mut tables.energy_j, &mut tables.service_s] {
            table.fill(1.0);
        }
        for load in &mut tables.destinations {
            (load.backlog_s, load.batch_speedup, load.network_s) = (0.0, 1.0, 0.0);
        }
        let problem = Problem::new(tables).unwrap();
        let objective = Objective::batch(&problem);
        let mut polled = 0;
        let mut stop = || { polled += 1; polled > polls };
        let policy = for_kind(PolicyKind::Memetic, &PolicyParams::default());
        let decision = policy.route(&problem, &objective, &mut rng_for(1, 0), &mut stop).unwrap();
        let count = |d: u32| decision.assignment.iter().filter(|to| to.0 == d).count();
        let counts: Vec<usize> = (0..m as u32).map(count).collect();
        prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{:?}", counts);
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

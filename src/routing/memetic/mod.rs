//! `memetic`: near-optimal joint assignment in about a millisecond.
//!
//! 1. Seeds: each request at its separable best; greedy on J, longest first; Algorithm 2 with batched work.
//! 2. A Lagrangian relaxation of the loads (`relaxation.rs`) gives a certified lower bound, more starting
//!    points, and by reduced costs short candidate lists.
//! 3. Each start descends by moves and chains of two moves with O(1) deltas (`search.rs`).
//! 4. The local optima form a small population. A round crosses two of them gene by gene (or kicks one),
//!    mutates up to two genes, descends, and keeps the result if it is new and better than the worst:
//!    mutation comes before the repair, unlike in Algorithm 1, which randomises what was just repaired.
//!
//! With time term `sum` the coupling is another (`timeline_sum.rs`), there is no relaxation, and the bound is that of
//! requests that do not meet; few rounds are worth while.
//!
//! Caps bind the search, not the bound: starts are repaired, a move needs a place, a swap does not.
//!
//! The best assignment so far is complete and legal from the first seed on. The search ends when the
//! certified gap is small, when nothing improves, or when told to.

mod candidates;
mod coupling;
mod instance;
mod population;
mod relaxation;
mod run;
mod search;
mod seeding;
mod timeline_sum;

use rand_chacha::ChaCha8Rng;

use crate::routing::decision::RoutingDecision;
use crate::routing::memetic::coupling::FifoMakespan;
use crate::routing::memetic::instance::Instance;
use crate::routing::memetic::run::Run;
use crate::routing::memetic::timeline_sum::{TimelineSum, alone};
use crate::routing::objective::Objective;
use crate::routing::params::PolicyKind;
use crate::routing::policy::{PolicyError, RoutingPolicy};
use crate::routing::problem::Problem;

/// Parameters of the search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemeticParams {
    /// Local optima kept for recombination; at least 2.
    pub population: usize,
    /// Certified gap, relative to J, at which the search ends.
    pub gap_target: f64,
    /// Rounds without a better assignment after which the search ends.
    pub stall_rounds: u64,
    /// Scored assignments after which the search ends; a deterministic budget. Checked once a round.
    pub evaluations_max: Option<u64>,
}

impl Default for MemeticParams {
    fn default() -> Self {
        Self { population: 10, gap_target: 0.002, stall_rounds: 2_000, evaluations_max: None }
    }
}

/// The near-optimal policy.
#[derive(Debug, Clone, Copy)]
pub struct Memetic {
    params: MemeticParams,
}

impl Memetic {
    /// The policy with these parameters.
    #[must_use]
    pub fn new(params: MemeticParams) -> Self {
        Self { params }
    }
}

impl RoutingPolicy for Memetic {
    fn name(&self) -> &'static str {
        PolicyKind::Memetic.as_str()
    }

    fn route(
        &self,
        problem: &Problem,
        objective: &Objective,
        rng: &mut ChaCha8Rng,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<RoutingDecision, PolicyError> {
        let mut instance = Instance::new(problem, objective);
        let constant = objective.constant();
        let (assignment, record) = match (problem.sum(), objective.sum()) {
            (Some(sum), Some(term)) => {
                let alone = alone(sum, term, &instance);
                instance.add(&alone);
                let coupling = TimelineSum::new(sum, term, &instance, &alone);
                let mut run = Run::new(&instance, coupling, self.params, constant);
                run.solve(problem, rng, stop);
                run.outcome()
            }
            _ => {
                let coupling = FifoMakespan::new(problem, objective, &instance);
                let mut run = Run::new(&instance, coupling, self.params, constant);
                run.solve(problem, rng, stop);
                run.spread(objective.pair_price_per_s2());
                run.outcome()
            }
        };
        Ok(RoutingDecision::new(problem, objective, assignment, record))
    }
}

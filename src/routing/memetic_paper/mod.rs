//! `memetic_paper`: Algorithms 1–3 of the paper as written.
//!
//! Where the paper leaves a choice open: alternatives of the worst gene and swap pairs are drawn at random
//! without looking whether they help; a swap that would be illegal is drawn in vain; repair scores a trial
//! with the bounds of the current population (Alg. 1 line 9); mutation draws any legal destination.
//! J is relative to the population, so the best can get worse over the generations; the answer is reported
//! under the objective the caller gives.

mod operators;
mod population;

use rand_chacha::ChaCha8Rng;

use crate::routing::decision::{RoutingDecision, SearchRecord};
use crate::routing::memetic_paper::operators::{Breeder, LegalTable};
use crate::routing::memetic_paper::population::{Chromosome, PopulationObjective, initial, score};
use crate::routing::objective::Objective;
use crate::routing::params::PolicyKind;
use crate::routing::policy::{PolicyError, RoutingPolicy};
use crate::routing::problem::Problem;

/// Parameters of Algorithms 1–3 (Table IV).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemeticPaperParams {
    /// P; at least 1.
    pub population: usize,
    /// G.
    pub generations: u32,
    /// p_c.
    pub crossover_rate: f64,
    /// p_m, per gene.
    pub mutation_rate: f64,
    /// p_LS.
    pub local_search_rate: f64,
    /// Contestants of a selection; at least 1.
    pub tournament: usize,
    /// L, repair trials per offspring.
    pub repair_budget: usize,
}

impl Default for MemeticPaperParams {
    fn default() -> Self {
        Self {
            population: 30,
            generations: 20,
            crossover_rate: 0.9,
            mutation_rate: 0.1,
            local_search_rate: 0.5,
            tournament: 3,
            repair_budget: 8,
        }
    }
}

/// The paper's policy.
#[derive(Debug, Clone, Copy)]
pub struct MemeticPaper {
    params: MemeticPaperParams,
}

impl MemeticPaper {
    /// The policy with these parameters.
    #[must_use]
    pub fn new(params: MemeticPaperParams) -> Self {
        Self { params }
    }
}

impl RoutingPolicy for MemeticPaper {
    fn name(&self) -> &'static str {
        PolicyKind::MemeticPaper.as_str()
    }

    /// Algorithm 1. `stop` is polled once a generation.
    fn route(
        &self,
        problem: &Problem,
        objective: &Objective,
        rng: &mut ChaCha8Rng,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<RoutingDecision, PolicyError> {
        let legal = LegalTable::new(problem);
        let mut breeder = Breeder::new(problem, &legal, self.params);
        let mut parents = initial(problem, self.params.population.max(1), &mut breeder, rng);
        let mut generations = 0;
        while generations < u64::from(self.params.generations) && !stop() {
            generations += 1;
            let normalisation = PopulationObjective::over(&parents, objective.mean_weights());
            score(&mut parents, &normalisation);
            let mut family = offspring(&parents, &mut breeder, &normalisation, rng);
            family.append(&mut parents);
            let normalisation = PopulationObjective::over(&family, objective.mean_weights());
            score(&mut family, &normalisation);
            // Stable, so that of equals the offspring stays.
            family.sort_by(|a, b| a.fitness.total_cmp(&b.fitness));
            family.truncate(self.params.population.max(1));
            parents = family;
        }
        let best = parents.into_iter().min_by(|a, b| a.fitness.total_cmp(&b.fitness));
        let assignment = best.map(|chromosome| chromosome.genes).unwrap_or_default();
        let record =
            SearchRecord { evaluations: breeder.evaluations(), generations, ..SearchRecord::default() };
        Ok(RoutingDecision::new(problem, objective, assignment, record))
    }
}

/// P′ (Alg. 1 lines 10–16), evaluated.
fn offspring(
    parents: &[Chromosome],
    breeder: &mut Breeder<'_>,
    normalisation: &PopulationObjective,
    rng: &mut ChaCha8Rng,
) -> Vec<Chromosome> {
    let mut children = Vec::with_capacity(parents.len() * 2 + 1);
    while children.len() < parents.len() {
        let pair = [breeder.select(parents, rng), breeder.select(parents, rng)];
        for mut genes in breeder.cross_and_repair(pair, normalisation, rng) {
            breeder.mutate(&mut genes, rng);
            children.push(breeder.evaluated(genes));
        }
    }
    children.truncate(parents.len());
    children
}

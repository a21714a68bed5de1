//! Chromosomes, Algorithm 2 and the population's own normalisation (Eq. 6).

use rand_chacha::ChaCha8Rng;

use crate::domain::{DestinationOrd, Weights};
use crate::routing::baseline::{Division, earliest_finish_with};
use crate::routing::memetic_paper::operators::Breeder;
use crate::routing::objective::TermRange;
use crate::routing::problem::Problem;

/// Raw Q, C, E, T in this order: mean loss, USD, J, s.
pub(super) type Terms = [f64; 4];

/// An assignment with its raw terms and its J under the latest normalisation.
#[derive(Debug, Clone)]
pub(super) struct Chromosome {
    pub(super) genes: Vec<DestinationOrd>,
    pub(super) terms: Terms,
    pub(super) fitness: f64,
}

/// J with the bounds of a set of chromosomes.
#[derive(Debug)]
pub(super) struct PopulationObjective {
    weights: Terms,
    ranges: [TermRange; 4],
}

impl PopulationObjective {
    pub(super) fn over(set: &[Chromosome], weights: Weights) -> Self {
        let range = |term: usize| TermRange::over(set.iter().map(|chromosome| chromosome.terms[term]));
        Self {
            weights: [weights.quality, weights.cost, weights.energy, weights.time],
            ranges: [range(0), range(1), range(2), range(3)],
        }
    }

    pub(super) fn fitness(&self, terms: &Terms) -> f64 {
        let parts = self.ranges.iter().zip(terms).zip(&self.weights);
        parts.map(|((range, value), weight)| weight * range.normalise(*value)).sum()
    }
}

/// Recomputes J of every chromosome.
pub(super) fn score(set: &mut [Chromosome], objective: &PopulationObjective) {
    for chromosome in set {
        chromosome.fitness = objective.fitness(&chromosome.terms);
    }
}

/// Algorithm 2: one load-aware chromosome, the others random and legal.
pub(super) fn initial(
    problem: &Problem,
    size: usize,
    breeder: &mut Breeder<'_>,
    rng: &mut ChaCha8Rng,
) -> Vec<Chromosome> {
    let mut population = vec![breeder.evaluated(earliest_finish_with(problem, Division::Serial))];
    while population.len() < size {
        let genes = breeder.random(rng);
        population.push(breeder.evaluated(genes));
    }
    population
}

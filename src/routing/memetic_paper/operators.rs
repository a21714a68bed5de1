//! Selection, crossover, repair and mutation (Algorithm 1 lines 12–14, Algorithm 3).

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::domain::DestinationOrd;
use crate::routing::completion::{FiniteMax, completions, destination_finish_s};
use crate::routing::memetic_paper::MemeticPaperParams;
use crate::routing::memetic_paper::population::{Chromosome, PopulationObjective, Terms};
use crate::routing::places::Places;
use crate::routing::problem::Problem;

/// The legal sets D_r as lists.
#[derive(Debug)]
pub(super) struct LegalTable {
    sets: Vec<Vec<DestinationOrd>>,
}

impl LegalTable {
    pub(super) fn new(problem: &Problem) -> Self {
        let sets = (0..problem.n_requests()).map(|r| problem.legal_destinations(r).collect());
        Self { sets: sets.collect() }
    }

    fn draw(&self, r: usize, rng: &mut ChaCha8Rng) -> DestinationOrd {
        let set = &self.sets[r];
        set[rng.random_range(0..set.len())]
    }
}

/// Makes and evaluates chromosomes.
#[derive(Debug)]
pub(super) struct Breeder<'a> {
    problem: &'a Problem,
    legal: &'a LegalTable,
    params: MemeticPaperParams,
    cells: Vec<Terms>,
    /// Longest and total service per destination, seconds.
    sums_s: Vec<[f64; 2]>,
    evaluations: u64,
}

impl<'a> Breeder<'a> {
    pub(super) fn new(problem: &'a Problem, legal: &'a LegalTable, params: MemeticPaperParams) -> Self {
        let sums_s = vec![[0.0; 2]; problem.n_destinations()];
        Self { problem, legal, params, cells: cells(problem), sums_s, evaluations: 0 }
    }

    pub(super) fn evaluations(&self) -> u64 {
        self.evaluations
    }

    /// A random legal chromosome (Alg. 2 line 14).
    pub(super) fn random(&self, rng: &mut ChaCha8Rng) -> Vec<DestinationOrd> {
        (0..self.problem.n_requests()).map(|r| self.legal.draw(r, rng)).collect()
    }

    /// The chromosome of `genes` with its raw terms; fitness is set when a population is scored.
    ///
    /// Genes beyond a cap move first: the paper has no caps.
    pub(super) fn evaluated(&mut self, mut genes: Vec<DestinationOrd>) -> Chromosome {
        self.fit_caps(&mut genes);
        let terms = self.terms(&genes);
        Chromosome { genes, terms, fitness: f64::INFINITY }
    }

    /// In arrival order, each gene without a place moves to the open place that finishes it earliest.
    fn fit_caps(&self, genes: &mut [DestinationOrd]) {
        let Some(caps) = self.problem.caps() else { return };
        if caps.admit(genes.iter().map(|d| d.idx())) {
            return;
        }
        let mut places = Places::new(Some(caps));
        let mut total_s = vec![0.0; self.problem.n_destinations()];
        for (r, gene) in genes.iter_mut().enumerate() {
            if !places.take_if_open(r, gene.idx()) {
                let finish_s = |d: &DestinationOrd| {
                    let service_s = self.problem.service(r, *d).get();
                    destination_finish_s(
                        self.problem.destination(*d),
                        service_s,
                        total_s[d.idx()] + service_s,
                    )
                };
                let open = self.legal.sets[r].iter().copied().filter(|d| places.is_open(d.idx()));
                let earliest = open.min_by(|a, b| finish_s(a).total_cmp(&finish_s(b)));
                *gene = earliest.unwrap_or(*gene);
                places.take(r, gene.idx());
            }
            total_s[gene.idx()] += self.problem.service(r, *gene).get();
        }
    }

    /// Tournament selection.
    pub(super) fn select<'p>(&self, parents: &'p [Chromosome], rng: &mut ChaCha8Rng) -> &'p Chromosome {
        let mut best = &parents[rng.random_range(0..parents.len())];
        for _ in 1..self.params.tournament {
            let other = &parents[rng.random_range(0..parents.len())];
            if other.fitness < best.fitness {
                best = other;
            }
        }
        best
    }

    /// Algorithm 3.
    pub(super) fn cross_and_repair(
        &mut self,
        parents: [&Chromosome; 2],
        objective: &PopulationObjective,
        rng: &mut ChaCha8Rng,
    ) -> [Vec<DestinationOrd>; 2] {
        let mut children = parents.map(|parent| parent.genes.clone());
        if rng.random_bool(self.params.crossover_rate) {
            cross_at_two_points(&mut children, rng);
            if rng.random_bool(self.params.local_search_rate) {
                for child in &mut children {
                    self.repair(child, objective, rng);
                }
            }
        }
        children
    }

    /// Each gene with probability p_m to a random legal destination (Alg. 1 line 14).
    pub(super) fn mutate(&self, genes: &mut [DestinationOrd], rng: &mut ChaCha8Rng) {
        // 32 bits a gene: half the random numbers of `random_bool`, which dominate the run otherwise.
        let chance = (self.params.mutation_rate.clamp(0.0, 1.0) * (u64::from(u32::MAX) + 1) as f64) as u64;
        for (r, gene) in genes.iter_mut().enumerate() {
            if u64::from(rng.random::<u32>()) < chance {
                *gene = self.legal.draw(r, rng);
            }
        }
    }

    /// Worst-gene repair and 2-opt swap; the single best improving move stays (Alg. 3 lines 8–12).
    fn repair(
        &mut self,
        genes: &mut [DestinationOrd],
        objective: &PopulationObjective,
        rng: &mut ChaCha8Rng,
    ) {
        let mut best = objective.fitness(&self.terms(genes));
        let mut kept: Option<[(usize, DestinationOrd); 2]> = None;
        let mut try_genes =
            |breeder: &mut Self, genes: &mut [DestinationOrd], change: [(usize, DestinationOrd); 2]| {
                let before = change.map(|(r, _)| (r, genes[r]));
                write(genes, change);
                let fitness = objective.fitness(&breeder.terms(genes));
                write(genes, before);
                if fitness < best {
                    (best, kept) = (fitness, Some(change));
                }
            };
        let worst = worst_gene(self.problem, genes);
        for d in self.alternatives(worst, genes[worst], rng) {
            try_genes(self, genes, [(worst, d); 2]);
        }
        for _ in 0..self.params.repair_budget / 2 {
            let (a, b) = (rng.random_range(0..genes.len()), rng.random_range(0..genes.len()));
            let swapped = [(a, genes[b]), (b, genes[a])];
            if swapped.iter().all(|(r, d)| self.problem.is_legal(*r, *d)) {
                try_genes(self, genes, swapped);
            }
        }
        if let Some(change) = kept {
            write(genes, change);
        }
    }

    /// Up to L/2 legal destinations of `r` other than `now`, drawn without repetition.
    fn alternatives(&self, r: usize, now: DestinationOrd, rng: &mut ChaCha8Rng) -> Vec<DestinationOrd> {
        let mut others: Vec<DestinationOrd> =
            self.legal.sets[r].iter().copied().filter(|d| *d != now).collect();
        let count = others.len().min(self.params.repair_budget / 2);
        for i in 0..count {
            let other = rng.random_range(i..others.len());
            others.swap(i, other);
        }
        others.truncate(count);
        others
    }

    /// The BatchEvaluator on one chromosome.
    fn terms(&mut self, genes: &[DestinationOrd]) -> Terms {
        self.evaluations += 1;
        let m = self.problem.n_destinations();
        let mut terms = [0.0; 4];
        self.sums_s.fill([-1.0, 0.0]);
        for (d, row) in genes.iter().zip(self.cells.chunks_exact(m)) {
            let [quality_loss, cost, energy, service_s] = row[d.idx()];
            terms[0] += quality_loss;
            terms[1] += cost;
            terms[2] += energy;
            let [longest_s, total_s] = &mut self.sums_s[d.idx()];
            *longest_s = longest_s.finite_max(service_s);
            *total_s += service_s;
        }
        terms[0] /= genes.len() as f64;
        let loads = self.problem.destinations().iter().zip(&self.sums_s);
        let used = loads.filter(|(_, [longest_s, _])| *longest_s >= 0.0);
        let finishes =
            used.map(|(load, [longest_s, total_s])| destination_finish_s(load, *longest_s, *total_s));
        terms[3] = finishes.fold(0.0, f64::max);
        terms
    }
}

/// Raw quality loss, cost, energy and service side by side, R × M: what one gene contributes.
fn cells(problem: &Problem) -> Vec<Terms> {
    let tables = problem.tables();
    let costs = tables.quality_loss.iter().zip(&tables.cost_usd);
    let times = tables.energy_j.iter().zip(&tables.service_s);
    costs
        .zip(times)
        .map(|((quality_loss, cost), (energy, service))| [*quality_loss, *cost, *energy, *service])
        .collect()
}

fn write(genes: &mut [DestinationOrd], change: [(usize, DestinationOrd); 2]) {
    for (r, d) in change {
        genes[r] = d;
    }
}

/// Exchanges the genes between two cut points.
fn cross_at_two_points(children: &mut [Vec<DestinationOrd>; 2], rng: &mut ChaCha8Rng) {
    let [first, second] = children;
    let cuts = [rng.random_range(0..=first.len()), rng.random_range(0..=first.len())];
    let between = cuts[0].min(cuts[1])..cuts[0].max(cuts[1]);
    first[between.clone()].swap_with_slice(&mut second[between]);
}

/// r* = argmax T_r (Alg. 3 line 8).
fn worst_gene(problem: &Problem, genes: &[DestinationOrd]) -> usize {
    let times = completions(problem, genes);
    let latest = times.iter().enumerate().max_by(|a, b| a.1.get().total_cmp(&b.1.get()));
    latest.map_or(0, |(r, _)| r)
}

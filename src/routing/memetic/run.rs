//! One run of the search: seeds, bound, candidates, rounds.

use std::ops::RangeInclusive;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::domain::DestinationOrd;
use crate::routing::baseline::earliest_finish;
use crate::routing::decision::SearchRecord;
use crate::routing::memetic::MemeticParams;
use crate::routing::memetic::candidates::Candidates;
use crate::routing::memetic::coupling::{Coupling, Spreading};
use crate::routing::memetic::instance::Instance;
use crate::routing::memetic::population::Population;
use crate::routing::memetic::relaxation::Relaxation;
use crate::routing::memetic::search::Search;
use crate::routing::memetic::seeding::{greedy, longest_first, rounded, separable_minimum};
use crate::routing::problem::Problem;

/// Dual steps at the root, enough to settle most multipliers.
const ROOT_STEPS: u32 = 50;
/// Dual steps after a split; the parent's multipliers are a good start.
const SPLIT_STEPS: u32 = 12;
/// Splits before the rounds begin, if they are cheap.
const SPLITS_FIRST: u32 = 8;
/// Pairs the relaxation may price per assignment the search has scored: about a third of the time.
const PRICED_PER_EVALUATION: u64 = 8;
/// Assignments of the relaxation kept as starts.
const DUAL_STARTS: usize = 5;
/// Starts that descend by chains too before the rounds begin.
const FULL_STARTS: usize = 3;
/// One round in this many kicks a member; the others cross two.
const KICK_ONE_IN: u32 = 2;
/// Only the best are kicked.
const KICKED_MEMBERS: usize = 3;
/// Random genes of a kick.
const KICKED_GENES: RangeInclusive<usize> = 2..=4;
/// Random genes after a crossover.
const MUTATED_GENES: RangeInclusive<usize> = 0..=2;
/// One round in this many first descends towards an earlier completion time.
const AIM_ONE_IN: u32 = 2;
/// Largest share by which that time is earlier than the offspring's.
const AIM_EARLIER_MAX: f64 = 0.05;

/// State of a run. Values are J less its constant.
pub(super) struct Run<'a, C> {
    params: MemeticParams,
    constant: f64,
    search: Search<'a, C>,
    population: Population,
    relaxation: Option<Relaxation>,
    best: Vec<u32>,
    best_value: f64,
    /// Of the greedy choice in the order of the rows.
    greedy_value: Option<f64>,
    rounds: u64,
}

impl<'a, C: Coupling> Run<'a, C> {
    pub(super) fn new(instance: &'a Instance, coupling: C, params: MemeticParams, constant: f64) -> Self {
        Self {
            params,
            constant,
            search: Search::new(instance, coupling),
            population: Population::new(params.population),
            relaxation: None,
            best: vec![0; instance.n],
            best_value: f64::INFINITY,
            greedy_value: None,
            rounds: 0,
        }
    }

    /// The best assignment, and what was done for it.
    pub(super) fn outcome(&self) -> (Vec<DestinationOrd>, SearchRecord) {
        let record = SearchRecord {
            lower_bound: Some(self.lower_bound()),
            evaluations: self.search.evaluations,
            generations: self.rounds,
            greedy_objective: self.greedy_value.map(|value| value + self.constant),
        };
        (self.search.instance.to_destinations(&self.best), record)
    }

    /// A value J cannot be below.
    fn lower_bound(&self) -> f64 {
        let bound = match &self.relaxation {
            Some(relaxation) => relaxation.lower_bound(self.best_value),
            None => self.search.instance.least.iter().sum::<f64>().min(self.best_value),
        };
        bound + self.constant
    }

    pub(super) fn solve(&mut self, problem: &Problem, rng: &mut ChaCha8Rng, stop: &mut dyn FnMut() -> bool) {
        let mut starts = self.seed(problem);
        if !self.is_done(stop) {
            self.relax_root(&mut starts, &problem.tables().length_tokens, stop);
            if !self.is_done(stop) && self.descend_from(starts, stop) {
                self.evolve(rng, stop);
            }
        }
    }

    /// The informed starts with their values; the best is the first incumbent.
    fn seed(&mut self, problem: &Problem) -> Vec<(f64, Vec<u32>)> {
        let instance = self.search.instance;
        let length = &problem.tables().length_tokens;
        let arrival: Vec<usize> = (0..instance.n).collect();
        let mut assignments =
            vec![separable_minimum(instance), greedy(instance, &mut self.search.coupling, &arrival)];
        if C::MANY_STARTS {
            assignments.push(greedy(instance, &mut self.search.coupling, &longest_first(length)));
            assignments.push(instance.to_columns(&earliest_finish(problem)));
        }
        let starts: Vec<(f64, Vec<u32>)> =
            assignments.into_iter().map(|assignment| (self.consider(&assignment), assignment)).collect();
        self.greedy_value = starts.get(1).map(|(value, _)| *value);
        starts
    }

    /// Fills the population with local optima. Whether the search is to go on.
    fn descend_from(&mut self, mut starts: Vec<(f64, Vec<u32>)>, stop: &mut dyn FnMut() -> bool) -> bool {
        // Best first: a short budget may end before the last of them.
        starts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let candidates = self.candidates();
        for (_, start) in starts {
            self.search.restart(&start);
            self.search.descend_moves(&candidates, stop);
            self.keep();
            if self.is_done(stop) {
                return false;
            }
        }
        for i in 0..FULL_STARTS.min(self.population.len()) {
            self.search.restart(self.population.get(i));
            self.improve(&candidates, stop);
            if self.is_done(stop) {
                return false;
            }
        }
        for _ in 0..SPLITS_FIRST {
            self.tighten(stop);
            if self.is_done(stop) {
                return false;
            }
        }
        true
    }

    /// Rounds of recombination, kicks and descent until done or stalled.
    fn evolve(&mut self, rng: &mut ChaCha8Rng, stop: &mut dyn FnMut() -> bool) {
        let mut candidates = self.candidates();
        let mut child = vec![0; self.search.instance.n];
        let mut since_best = 0;
        let stall_rounds = self.params.stall_rounds.min(C::STALL_ROUNDS);
        while since_best < stall_rounds && !self.is_done(stop) {
            self.rounds += 1;
            since_best += 1;
            let origin = self.breed(&candidates, rng, &mut child);
            self.search.restart_near(&child, self.population.get(origin));
            if rng.random_range(0..AIM_ONE_IN) == 0 {
                let earlier = rng.random::<f64>() * AIM_EARLIER_MAX;
                if self.search.coupling.aim_earlier(earlier) {
                    self.search.descend(&candidates, stop);
                    self.search.coupling.forget_aim();
                }
            }
            if self.improve(&candidates, stop) {
                since_best = 0;
                candidates = self.candidates();
            }
            self.tighten(stop);
        }
    }

    fn relax_root(
        &mut self,
        starts: &mut Vec<(f64, Vec<u32>)>,
        length: &[f64],
        stop: &mut dyn FnMut() -> bool,
    ) {
        let Some(load) = self.search.coupling.relaxation() else { return };
        self.relaxation = Relaxation::new(self.search.instance, &load, self.best_value);
        let Some(mut relaxation) = self.relaxation.take() else { return };
        let mut dual = Population::new(DUAL_STARTS);
        let mut visit = |assignment: &[u32]| {
            // The relaxation knows no caps: what breaks them is not worth a repair at every step.
            if self.search.instance.admits(assignment) {
                dual.offer(assignment, self.consider(assignment));
            }
            self.best_value
        };
        relaxation.ascend(ROOT_STEPS, f64::INFINITY, &mut visit, stop);
        starts.extend(dual.into_members());
        let rounded = rounded(self.search.instance, &mut self.search.coupling, length, relaxation.history());
        starts.push((self.consider(&rounded), rounded));
        self.relaxation = Some(relaxation);
    }

    /// Splits the weakest interval of the bound and improves both halves, if the bound is due some effort.
    fn tighten(&mut self, stop: &mut dyn FnMut() -> bool) {
        let evaluations = self.search.evaluations;
        let is_due = |relaxation: &mut Relaxation| relaxation.work() < PRICED_PER_EVALUATION * evaluations;
        let Some(mut relaxation) = self.relaxation.take_if(is_due) else { return };
        relaxation.prune(self.best_value);
        if relaxation.split() {
            for _ in 0..2 {
                let mut visit = |assignment: &[u32]| {
                    if self.search.instance.admits(assignment) {
                        self.consider(assignment);
                    }
                    self.best_value
                };
                relaxation.ascend(SPLIT_STEPS, f64::INFINITY, &mut visit, stop);
            }
        }
        self.relaxation = Some(relaxation);
    }

    /// Values `assignment`, within the caps, and keeps it if it is the best yet.
    fn consider(&mut self, assignment: &[u32]) -> f64 {
        self.search.restart(assignment);
        let value = self.search.value();
        if value < self.best_value {
            self.best_value = value;
            self.best.copy_from_slice(&self.search.assignment);
        }
        value
    }

    /// Descends from where the search stands and keeps the result. Whether it is the best yet.
    fn improve(&mut self, candidates: &Candidates, stop: &mut dyn FnMut() -> bool) -> bool {
        self.search.descend(candidates, stop);
        self.keep()
    }

    /// Offers the assignment the search stands at. Whether it is the best yet.
    fn keep(&mut self) -> bool {
        let value = self.search.value();
        self.population.offer(&self.search.assignment, value);
        let is_best = value < self.best_value;
        if is_best {
            self.best_value = value;
            self.best.copy_from_slice(&self.search.assignment);
        }
        is_best
    }

    fn candidates(&mut self) -> Candidates {
        let instance = self.search.instance;
        match &mut self.relaxation {
            Some(relaxation) => {
                let reduced = relaxation.reduced_costs(instance.n, self.best_value);
                let at = |r: usize, d: usize| reduced[r * instance.m + d];
                Candidates::new(instance, &self.best, |r, d| at(r, d).is_finite(), at)
            }
            None => Candidates::new(instance, &self.best, |_, _| true, |r, d| instance.row(r)[d]),
        }
    }

    /// Writes an offspring to `child`; answers with the member it is a variant of.
    fn breed(&self, candidates: &Candidates, rng: &mut ChaCha8Rng, child: &mut [u32]) -> usize {
        let n = child.len();
        let (origin, genes) = if rng.random_range(0..KICK_ONE_IN) == 0 {
            let member = rng.random_range(0..self.population.len().min(KICKED_MEMBERS));
            child.copy_from_slice(self.population.get(member));
            (member, rng.random_range(KICKED_GENES))
        } else {
            (self.population.cross(rng, child), rng.random_range(MUTATED_GENES))
        };
        for _ in 0..genes {
            let r = rng.random_range(0..n.min(C::SEARCHED_ROWS));
            let row = candidates.row(r);
            child[r] = row[rng.random_range(0..row.len())].d;
        }
        origin
    }

    fn is_done(&self, stop: &mut dyn FnMut() -> bool) -> bool {
        let value = self.best_value + self.constant;
        let is_proven = value - self.lower_bound() <= self.params.gap_target * value.abs();
        let is_spent = self.params.evaluations_max.is_some_and(|max| self.search.evaluations >= max);
        is_proven || is_spent || stop()
    }
}

impl<C: Spreading> Run<'_, C> {
    /// Evens the best assignment out.
    pub(super) fn spread(&mut self, pair_price: f64) {
        self.search.restart(&self.best);
        self.search.spread(pair_price);
        self.best.copy_from_slice(&self.search.assignment);
    }
}

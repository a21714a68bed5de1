//! Local search over one assignment: moves, and chains of two moves (a swap is one).

use crate::routing::memetic::candidates::Candidates;
use crate::routing::memetic::coupling::{Coupling, Move};
use crate::routing::memetic::instance::Instance;

/// Relative improvement below which a step is rounding.
const IMPROVEMENT_MIN: f64 = 1e-11;

/// One assignment under change, with its J (less the constant).
pub(super) struct Search<'a, C> {
    pub(super) instance: &'a Instance,
    pub(super) coupling: C,
    pub(super) assignment: Vec<u32>,
    /// Candidate assignments scored so far.
    pub(super) evaluations: u64,
}

/// Two moves, the second out of the destination the first enters.
struct Chain {
    first: Move,
    second: Move,
}

impl<'a, C: Coupling> Search<'a, C> {
    pub(super) fn new(instance: &'a Instance, coupling: C) -> Self {
        Self { instance, coupling, assignment: vec![0; instance.n], evaluations: 0 }
    }

    /// Starts from `assignment`.
    pub(super) fn restart(&mut self, assignment: &[u32]) {
        self.assignment.copy_from_slice(assignment);
        self.coupling.assign(assignment);
        self.evaluations += 1;
    }

    /// J of the assignment, less the constant.
    pub(super) fn value(&self) -> f64 {
        self.instance.separable_sum(&self.assignment) + self.coupling.cost()
    }

    /// Descends to a local optimum of both neighbourhoods, or until `stop`.
    pub(super) fn descend(&mut self, candidates: &Candidates, stop: &mut dyn FnMut() -> bool) {
        loop {
            while self.move_pass(candidates) {
                if stop() {
                    return;
                }
            }
            if !self.chain_pass(candidates) || stop() {
                return;
            }
        }
    }

    fn threshold(&self) -> f64 {
        -IMPROVEMENT_MIN * self.coupling.cost().max(IMPROVEMENT_MIN)
    }

    /// Moves every request to its best place in turn. Whether anything moved.
    fn move_pass(&mut self, candidates: &Candidates) -> bool {
        let mut moved = false;
        for r in 0..self.instance.n {
            let from = self.assignment[r];
            let here = self.instance.at(r, from);
            let relief = self.coupling.relief(from);
            let row = candidates.row(r);
            if row.first().is_none_or(|best| best.separable >= here + relief) {
                continue;
            }
            let departure = self.coupling.depart(r, from);
            let (mut best, mut to) = (self.threshold(), from);
            for candidate in row {
                let gain = candidate.separable - here;
                if gain - relief >= best {
                    break;
                }
                if candidate.d == from {
                    continue;
                }
                self.evaluations += 1;
                let delta = gain + self.coupling.arrive_delta(&departure, r, candidate.d);
                if delta < best {
                    (best, to) = (delta, candidate.d);
                }
            }
            if to != from {
                self.apply(Move { r, from, to });
                moved = true;
            }
        }
        moved
    }

    /// Applies the best chain starting at each request in turn. Whether anything moved.
    fn chain_pass(&mut self, candidates: &Candidates) -> bool {
        let mut moved = false;
        for r in 0..self.instance.n {
            if let Some(chain) = self.best_chain(r, candidates) {
                self.apply(chain.first);
                self.apply(chain.second);
                moved = true;
            }
        }
        moved
    }

    fn best_chain(&mut self, r: usize, candidates: &Candidates) -> Option<Chain> {
        let from = self.assignment[r];
        let here = self.instance.at(r, from);
        let (relief, row) = (self.coupling.relief(from), candidates.row(r));
        let mut best: Option<Chain> = None;
        let mut best_delta = self.threshold();
        for candidate in row.iter().filter(|candidate| candidate.d != from) {
            let gain = candidate.separable - here;
            let relief = relief + self.coupling.relief(candidate.d);
            for member in self.coupling.members(candidate.d) {
                let second_r = *member as usize;
                let there = self.instance.at(second_r, candidate.d);
                for target in candidates.row(second_r) {
                    let separable = gain + target.separable - there;
                    if separable - relief >= best_delta {
                        break;
                    }
                    if target.d == candidate.d {
                        continue;
                    }
                    let first = Move { r, from, to: candidate.d };
                    let second = Move { r: second_r, from: candidate.d, to: target.d };
                    let delta = separable + self.coupling.chain_delta(first, second);
                    self.evaluations += 1;
                    if delta < best_delta {
                        best_delta = delta;
                        best = Some(Chain { first, second });
                    }
                }
            }
        }
        best
    }

    fn apply(&mut self, step: Move) {
        self.coupling.relocate(step);
        self.assignment[step.r] = step.to;
    }
}

//! Local search over one assignment: moves, and chains of two moves (a swap is one).

use crate::routing::memetic::candidates::Candidates;
use crate::routing::memetic::coupling::{Coupling, Move, Spreading};
use crate::routing::memetic::instance::Instance;
use crate::routing::memetic::seeding::repair;

/// Relative improvement below which a step is rounding.
const IMPROVEMENT_MIN: f64 = 1e-11;

/// Scored assignments between two looks at the stop condition inside a pass.
const EVALUATIONS_PER_POLL: u64 = 1_024;

/// Passes over all requests that even out the loads; a few are enough.
const SPREAD_PASSES_MAX: usize = 8;

/// One assignment under change, with its J (less the constant).
pub(super) struct Search<'a, C> {
    pub(super) instance: &'a Instance,
    pub(super) coupling: C,
    pub(super) assignment: Vec<u32>,
    /// Candidate assignments scored so far.
    pub(super) evaluations: u64,
    /// Destinations changed since the assignment was last known to be a local optimum.
    touched: Vec<bool>,
    /// What each request could save of its separable J by going where that is least.
    slack: Vec<f64>,
    /// Per destination the largest slack of its requests.
    slack_at: Vec<f64>,
    poll_at: u64,
    is_stopped: bool,
}

impl<'a, C: Coupling> Search<'a, C> {
    pub(super) fn new(instance: &'a Instance, coupling: C) -> Self {
        Self {
            instance,
            coupling,
            assignment: vec![0; instance.n],
            evaluations: 0,
            touched: vec![true; instance.m],
            slack: vec![0.0; instance.n],
            slack_at: vec![0.0; instance.m],
            poll_at: 0,
            is_stopped: false,
        }
    }

    /// Starts from any assignment, repaired where it is not within the caps.
    pub(super) fn restart(&mut self, assignment: &[u32]) {
        self.assignment.copy_from_slice(assignment);
        repair(self.instance, &mut self.coupling, &mut self.assignment);
        self.coupling.assign(&self.assignment);
        self.touched.fill(true);
        self.evaluations += 1;
    }

    /// Starts from a variant of the local optimum `origin`.
    pub(super) fn restart_near(&mut self, assignment: &[u32], origin: &[u32]) {
        self.restart(assignment);
        self.touched.fill(false);
        for (d, was) in self.assignment.iter().zip(origin) {
            if d != was {
                self.touched[*d as usize] = true;
                self.touched[*was as usize] = true;
            }
        }
    }

    /// J of the assignment, less the constant.
    pub(super) fn value(&self) -> f64 {
        self.instance.separable_sum(&self.assignment) + self.coupling.cost()
    }

    /// Descends to a local optimum of single moves, or until `stop`.
    pub(super) fn descend_moves(&mut self, candidates: &Candidates, stop: &mut dyn FnMut() -> bool) {
        while self.move_pass(candidates) && !self.poll(stop) {}
    }

    /// Descends to a local optimum of moves and chains, or until `stop`. Chains between destinations that
    /// have not been touched are taken to have been tried before.
    pub(super) fn descend(&mut self, candidates: &Candidates, stop: &mut dyn FnMut() -> bool) {
        loop {
            self.descend_moves(candidates, stop);
            if self.poll(stop) || !self.chain_pass(candidates, stop) {
                return;
            }
        }
    }

    /// Whether the search was told to stop; asks again only after some work.
    fn poll(&mut self, stop: &mut dyn FnMut() -> bool) -> bool {
        if !self.is_stopped && self.evaluations >= self.poll_at {
            self.poll_at = self.evaluations + EVALUATIONS_PER_POLL;
            self.is_stopped = stop();
        }
        self.is_stopped
    }

    /// Whether the cap of `d` is reached.
    fn is_full(&self, d: u32) -> bool {
        let caps = self.instance.caps.as_ref();
        caps.is_some_and(|caps| self.coupling.members(d).len() >= caps.most(d as usize))
    }

    fn threshold(&self) -> f64 {
        -IMPROVEMENT_MIN * self.coupling.cost().max(IMPROVEMENT_MIN)
    }

    /// Moves every request to its best place in turn. Whether anything moved.
    fn move_pass(&mut self, candidates: &Candidates) -> bool {
        let mut moved = false;
        for r in 0..self.instance.n.min(C::SEARCHED_ROWS) {
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
                if candidate.d == from || self.is_full(candidate.d) {
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
    fn chain_pass(&mut self, candidates: &Candidates, stop: &mut dyn FnMut() -> bool) -> bool {
        let mut moved = false;
        for d in 0..self.instance.m {
            self.measure_slack(d as u32, candidates);
        }
        for r in 0..self.instance.n.min(C::SEARCHED_ROWS) {
            if let Some(chain) = self.best_chain(r, candidates) {
                for step in chain {
                    self.apply(step);
                    self.measure_slack(step.from, candidates);
                    self.measure_slack(step.to, candidates);
                }
                moved = true;
            }
            if self.poll(stop) {
                return false;
            }
        }
        moved
    }

    /// The best two moves of which the first takes `r` away and the second makes room for it.
    fn best_chain(&mut self, r: usize, candidates: &Candidates) -> Option<[Move; 2]> {
        let from = self.assignment[r];
        let here = self.instance.at(r, from);
        let relief_from = self.coupling.relief(from);
        let (mut best, mut best_delta) = (None, self.threshold());
        for candidate in candidates.row(r).iter().filter(|candidate| candidate.d != from) {
            let first = Move { r, from, to: candidate.d };
            let gain = candidate.separable - here;
            let relief = relief_from + self.coupling.relief(candidate.d);
            let is_touched = self.touched[from as usize] || self.touched[candidate.d as usize];
            let is_hopeless = gain - relief - self.slack_at[candidate.d as usize] >= best_delta;
            if is_hopeless || (relief <= 0.0 && !is_touched) {
                continue;
            }
            for member in self.coupling.members(candidate.d) {
                let second_r = *member as usize;
                if gain - self.slack[second_r] - relief >= best_delta {
                    continue;
                }
                let targets = candidates.row(second_r);
                let gain = gain - self.instance.at(second_r, candidate.d);
                let passage = self.coupling.pass(first, second_r);
                let least = self.coupling.pass_delta_min(&passage);
                self.evaluations += 1;
                for target in targets {
                    let separable = gain + target.separable;
                    if separable + least >= best_delta {
                        break;
                    }
                    // Where the first came from is a swap and needs no place.
                    if target.d == candidate.d || (target.d != from && self.is_full(target.d)) {
                        continue;
                    }
                    self.evaluations += 1;
                    let delta = separable + self.coupling.chain_delta(&passage, target.d);
                    if delta < best_delta {
                        best_delta = delta;
                        best = Some([first, Move { r: second_r, from: candidate.d, to: target.d }]);
                    }
                }
            }
        }
        best
    }

    /// Brings the slacks of the requests at `d` up to date.
    fn measure_slack(&mut self, d: u32, candidates: &Candidates) {
        let mut largest = 0.0_f64;
        for member in self.coupling.members(d) {
            let r = *member as usize;
            let least = candidates.row(r).first().map_or(f64::INFINITY, |best| best.separable);
            self.slack[r] = self.instance.at(r, d) - least;
            largest = largest.max(self.slack[r]);
        }
        self.slack_at[d as usize] = largest;
    }

    fn apply(&mut self, step: Move) {
        self.touched[step.from as usize] = true;
        self.touched[step.to as usize] = true;
        self.coupling.relocate(step);
        self.assignment[step.r] = step.to;
    }
}

impl<C: Spreading> Search<'_, C> {
    /// Moves requests one by one to where J is least with `pair_price` for work queued behind work, which the
    /// search before leaves out; of places as good, to where the request finishes earliest. J of a makespan says
    /// nothing of how the destinations that do not decide it are filled, but whoever is planned next, or waits
    /// behind, gains from an even spread.
    pub(super) fn spread(&mut self, pair_price: f64) {
        for _ in 0..SPREAD_PASSES_MAX {
            let mut moved = false;
            for r in 0..self.instance.n {
                let from = self.assignment[r];
                let to = self.spread_one(r, from, pair_price);
                if to != from {
                    self.coupling.relocate(Move { r, from, to });
                    self.assignment[r] = to;
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn spread_one(&self, r: usize, from: u32, pair_price: f64) -> u32 {
        let departure = self.coupling.depart(r, from);
        let own_s = self.coupling.work_s(r, from);
        let behind = own_s * (self.coupling.queued_s(from) - own_s);
        let here = self.instance.at(r, from);
        let tolerance = IMPROVEMENT_MIN * (1.0 + here.abs() + self.coupling.cost());
        let (mut least, mut to) = (-tolerance, from);
        let mut earliest_s = self.coupling.finish_s(from) * (1.0 - IMPROVEMENT_MIN);
        for (d, separable) in (0..).zip(self.instance.row(r)) {
            if d == from || separable.is_infinite() || self.is_full(d) {
                continue;
            }
            let queueing = self.coupling.work_s(r, d) * self.coupling.queued_s(d) - behind;
            let delta =
                separable - here + self.coupling.arrive_delta(&departure, r, d) + pair_price * queueing;
            let finish_s = self.coupling.finish_with_s(r, d);
            let is_as_good = delta <= least + 2.0 * tolerance;
            if delta < least || (is_as_good && finish_s < earliest_s) {
                (least, earliest_s, to) = (delta.min(least), finish_s, d);
            }
        }
        to
    }
}

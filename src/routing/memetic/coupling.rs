//! The part of J that couples requests at a destination, behind a trait with cheap deltas.
//!
//! The search itself knows only a separable table and a [`Coupling`]; another completion model or time
//! term is another implementation of it.

use crate::routing::completion::FiniteMax;
use crate::routing::memetic::instance::{Instance, permuted};
use crate::routing::memetic::relaxation::LoadRelaxation;
use crate::routing::objective::Objective;
use crate::routing::problem::{DestinationLoad, Problem};

/// A change of one request's destination, as columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Move {
    pub(super) r: usize,
    pub(super) from: u32,
    pub(super) to: u32,
}

/// Cost of what requests do to each other, of the assignment it was last told.
///
/// Deltas are in units of J and leave the assignment as it is. Putting a request somewhere never lowers
/// the cost; taking it away lowers it by at most [`Coupling::relief`].
pub(super) trait Coupling {
    /// What a request leaves behind when it goes; makes trying many targets cheap.
    type Departure: Copy;
    /// What a chain of two moves leaves open: where its second request goes.
    type Passage: Copy;

    /// Steps begin at the first so many rows only.
    const SEARCHED_ROWS: usize = usize::MAX;
    /// Whether starts beyond a greedy choice are worth their time.
    const MANY_STARTS: bool = true;
    /// Rounds without a better assignment after which the search ends, however many its parameters allow.
    const STALL_ROUNDS: u64 = u64::MAX;

    /// Forgets every request.
    fn clear(&mut self);

    /// Takes over a whole assignment.
    fn assign(&mut self, assignment: &[u32]);

    /// Adds request `r` at `d`.
    fn insert(&mut self, r: usize, d: u32);

    /// Moves one request.
    fn relocate(&mut self, step: Move);

    /// Cost of the assignment.
    fn cost(&self) -> f64;

    /// Where a descent on the cost stalls, replaces it by one that is never below the true one and rewards progress
    /// at every destination that is late for a completion time earlier by `share`, not only at the one that decides
    /// the true cost. Says whether there is such a thing.
    fn aim_earlier(&mut self, _share: f64) -> bool {
        false
    }

    /// Goes back to the true cost.
    fn forget_aim(&mut self) {}

    /// Change of cost if `r` were added at `d`.
    fn insert_delta(&self, r: usize, d: u32) -> f64;

    /// The state with `r` taken away from `from`.
    fn depart(&self, r: usize, from: u32) -> Self::Departure;

    /// Change of cost if the departed `r` went to `to` instead of where it was.
    fn arrive_delta(&self, departure: &Self::Departure, r: usize, to: u32) -> f64;

    /// The state with `first` done and request `second`, which is where `first` enters, taken away.
    fn pass(&self, first: Move, second: usize) -> Self::Passage;

    /// The least change of cost wherever the second request of `passage` goes.
    fn pass_delta_min(&self, passage: &Self::Passage) -> f64;

    /// Change of cost of the whole chain if the second request goes to `to`. Where the first came from
    /// makes it a swap; `to` is not where it was.
    fn chain_delta(&self, passage: &Self::Passage, to: u32) -> f64;

    /// The most that taking requests away from `d` alone can save.
    fn relief(&self, d: u32) -> f64;

    /// The requests at `d`.
    fn members(&self, d: u32) -> &[u32];

    /// The relaxation that gives a lower bound, if there is one.
    fn relaxation(&self) -> Option<LoadRelaxation<'_>> {
        None
    }
}

/// A coupling that leaves open how destinations are filled that do not decide its cost.
pub(super) trait Spreading: Coupling {
    /// When `d` finishes, seconds.
    fn finish_s(&self, d: u32) -> f64;

    /// When `d` would finish with `r` added, seconds.
    fn finish_with_s(&self, r: usize, d: u32) -> f64;

    /// What `r` adds to the work at `d`, seconds.
    fn work_s(&self, r: usize, d: u32) -> f64;

    /// The work of its requests at `d`, without backlog, seconds.
    fn queued_s(&self, d: u32) -> f64;
}

#[derive(Debug, Clone, Default)]
struct Load {
    network_s: f64,
    backlog_s: f64,
    /// B_d + Σ service / k.
    queue_s: f64,
    longest_s: f64,
    /// Longest service but one.
    second_s: f64,
    members: Vec<u32>,
}

impl Load {
    fn count_in(&mut self, service_s: f64, work_s: f64) {
        self.queue_s += work_s;
        if service_s > self.longest_s {
            (self.second_s, self.longest_s) = (self.longest_s, service_s);
        } else if service_s > self.second_s {
            self.second_s = service_s;
        }
    }

    /// T_d if the destination is used.
    fn finish_with(&self, queue_s: f64, longest_s: f64) -> f64 {
        self.network_s + queue_s.finite_max(longest_s)
    }
}

/// `w · max T_d` over used destinations, model `fifo` (Eq. 4); with an aim `w · (aim + Σ max(0, T_d − aim))`.
///
/// Where several destinations finish almost last together, no single step lowers the maximum by much and
/// a descent on it stalls; the sum of what is late still falls.
#[derive(Debug)]
pub(super) struct FifoMakespan {
    m: usize,
    weight_per_s: f64,
    aim_s: Option<f64>,
    service_s: Vec<f64>,
    /// Service / k.
    work_s: Vec<f64>,
    loads: Vec<Load>,
    /// T_d; 0 while unused.
    finish_s: Vec<f64>,
    /// The destinations with the largest T_d, in falling order.
    latest: [(f64, u32); 3],
}

/// A chain of two moves but for the end. With an aim the times are changes of lateness.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passage {
    first: Move,
    second: usize,
    /// Largest T_d over destinations other than where the first request was.
    settled_s: f64,
    /// T_d of where the first request was, without it.
    left_s: f64,
}

const NOBODY: (f64, u32) = (0.0, u32::MAX);

impl FifoMakespan {
    pub(super) fn new(problem: &Problem, objective: &Objective, instance: &Instance) -> Self {
        let service_s = permuted(&problem.tables().service_s, &instance.columns);
        let mut work_s = service_s.clone();
        let columns = || instance.columns.iter().map(|d| problem.destination(*d));
        let speedups: Vec<f64> = columns().map(|d| d.batch_speedup).collect();
        for row in work_s.chunks_exact_mut(instance.m) {
            for (work, speedup) in row.iter_mut().zip(&speedups) {
                *work /= speedup;
            }
        }
        let load = |d: &DestinationLoad| Load {
            network_s: d.network_s,
            backlog_s: d.backlog_s,
            queue_s: d.backlog_s,
            ..Load::default()
        };
        Self {
            m: instance.m,
            weight_per_s: objective.time_weight_per_s(),
            aim_s: None,
            service_s,
            work_s,
            loads: columns().map(load).collect(),
            finish_s: vec![0.0; instance.m],
            latest: [NOBODY; 3],
        }
    }

    fn cell(&self, r: usize, d: u32) -> usize {
        r * self.m + d as usize
    }

    /// Largest T_d over destinations other than the given two.
    fn latest_but(&self, a: u32, b: u32) -> f64 {
        let others = self.latest.iter().find(|(_, d)| *d != a && *d != b);
        others.map_or(0.0, |(finish_s, _)| *finish_s)
    }

    /// T_d without `r`.
    fn finish_without(&self, r: usize, d: u32) -> f64 {
        let load = &self.loads[d as usize];
        if load.members.len() <= 1 {
            return 0.0;
        }
        let cell = self.cell(r, d);
        let longest_s = if self.service_s[cell] >= load.longest_s { load.second_s } else { load.longest_s };
        load.finish_with(load.queue_s - self.work_s[cell], longest_s)
    }

    /// T_d with `r` added.
    fn finish_with(&self, r: usize, d: u32) -> f64 {
        let (load, cell) = (&self.loads[d as usize], self.cell(r, d));
        load.finish_with(load.queue_s + self.work_s[cell], load.longest_s.finite_max(self.service_s[cell]))
    }

    /// T_d with `coming` in the place of `going`.
    fn finish_exchanged(&self, going: usize, coming: usize, d: u32) -> f64 {
        let load = &self.loads[d as usize];
        let (going, coming) = (self.cell(going, d), self.cell(coming, d));
        let longest_s = if self.service_s[going] >= load.longest_s { load.second_s } else { load.longest_s };
        let queue_s = load.queue_s - self.work_s[going] + self.work_s[coming];
        load.finish_with(queue_s, longest_s.finite_max(self.service_s[coming]))
    }

    /// What d's lateness for the aim grows by if it finished at `finish_s`.
    fn lateness_change(&self, aim_s: f64, d: u32, finish_s: f64) -> f64 {
        (finish_s - aim_s).finite_max(0.0) - (self.finish_s[d as usize] - aim_s).finite_max(0.0)
    }

    fn add(&mut self, r: usize, d: u32) {
        let cell = self.cell(r, d);
        let (service_s, work_s) = (self.service_s[cell], self.work_s[cell]);
        let load = &mut self.loads[d as usize];
        load.members.push(r as u32);
        load.count_in(service_s, work_s);
        self.finish_s[d as usize] = load.finish_with(load.queue_s, load.longest_s);
    }

    /// Sums afresh, so that rounding does not pile up over a long search.
    fn remove(&mut self, r: usize, d: u32) {
        let load = &mut self.loads[d as usize];
        load.members.retain(|member| *member != r as u32);
        let members = std::mem::take(&mut load.members);
        load.queue_s = load.backlog_s;
        (load.longest_s, load.second_s) = (0.0, 0.0);
        for member in &members {
            let cell = *member as usize * self.m + d as usize;
            load.count_in(self.service_s[cell], self.work_s[cell]);
        }
        self.finish_s[d as usize] =
            if members.is_empty() { 0.0 } else { load.finish_with(load.queue_s, load.longest_s) };
        load.members = members;
    }

    fn rank(&mut self) {
        let mut latest = [NOBODY; 3];
        for (d, finish_s) in (0_u32..).zip(&self.finish_s) {
            if *finish_s > latest[2].0 {
                latest[2] = (*finish_s, d);
                if latest[2].0 > latest[1].0 {
                    latest.swap(1, 2);
                    if latest[1].0 > latest[0].0 {
                        latest.swap(0, 1);
                    }
                }
            }
        }
        self.latest = latest;
    }
}

impl Coupling for FifoMakespan {
    /// T over everything but the request that left; with an aim the change of lateness. Seconds.
    type Departure = f64;
    type Passage = Passage;

    fn clear(&mut self) {
        for load in &mut self.loads {
            load.members.clear();
            load.queue_s = load.backlog_s;
            (load.longest_s, load.second_s) = (0.0, 0.0);
        }
        self.finish_s.fill(0.0);
        self.latest = [NOBODY; 3];
    }

    fn assign(&mut self, assignment: &[u32]) {
        self.clear();
        for (r, d) in assignment.iter().enumerate() {
            self.add(r, *d);
        }
        self.rank();
    }

    fn insert(&mut self, r: usize, d: u32) {
        self.add(r, d);
        self.rank();
    }

    fn relocate(&mut self, step: Move) {
        self.remove(step.r, step.from);
        self.add(step.r, step.to);
        let is_ranked = |d: u32| self.latest.iter().any(|(_, latest)| *latest == d);
        let overtakes = self.finish_s[step.to as usize] > self.latest[2].0;
        if overtakes || is_ranked(step.from) || is_ranked(step.to) {
            self.rank();
        }
    }

    fn cost(&self) -> f64 {
        let time_s = match self.aim_s {
            None => self.latest[0].0,
            Some(aim_s) => {
                aim_s + self.finish_s.iter().map(|finish_s| (finish_s - aim_s).finite_max(0.0)).sum::<f64>()
            }
        };
        self.weight_per_s * time_s
    }

    fn aim_earlier(&mut self, share: f64) -> bool {
        self.aim_s = Some(self.latest[0].0 * (1.0 - share));
        true
    }

    fn forget_aim(&mut self) {
        self.aim_s = None;
    }

    fn insert_delta(&self, r: usize, d: u32) -> f64 {
        let finish_s = self.finish_with(r, d);
        let later_s = match self.aim_s {
            None => (finish_s - self.latest[0].0).finite_max(0.0),
            Some(aim_s) => self.lateness_change(aim_s, d, finish_s),
        };
        self.weight_per_s * later_s
    }

    fn depart(&self, r: usize, from: u32) -> f64 {
        let left_s = self.finish_without(r, from);
        match self.aim_s {
            None => self.latest_but(from, from).finite_max(left_s),
            Some(aim_s) => self.lateness_change(aim_s, from, left_s),
        }
    }

    fn arrive_delta(&self, departure: &f64, r: usize, to: u32) -> f64 {
        let finish_s = self.finish_with(r, to);
        self.weight_per_s
            * match self.aim_s {
                // T_to only grows, so the largest of the others may include its old value.
                None => departure.finite_max(finish_s) - self.latest[0].0,
                Some(aim_s) => departure + self.lateness_change(aim_s, to, finish_s),
            }
    }

    fn pass(&self, first: Move, second: usize) -> Passage {
        let through_s = self.finish_exchanged(second, first.r, first.to);
        let left_s = self.finish_without(first.r, first.from);
        let (settled_s, left_s) = match self.aim_s {
            None => (self.latest_but(first.from, first.to).finite_max(through_s), left_s),
            Some(aim_s) => (
                self.lateness_change(aim_s, first.to, through_s),
                self.lateness_change(aim_s, first.from, left_s),
            ),
        };
        Passage { first, second, settled_s, left_s }
    }

    fn pass_delta_min(&self, passage: &Passage) -> f64 {
        self.weight_per_s
            * match self.aim_s {
                None => passage.settled_s.finite_max(passage.left_s) - self.latest[0].0,
                Some(_) => passage.settled_s + passage.left_s,
            }
    }

    fn chain_delta(&self, passage: &Passage, to: u32) -> f64 {
        let is_swap = to == passage.first.from;
        let finish_s = if is_swap {
            self.finish_exchanged(passage.first.r, passage.second, to)
        } else {
            self.finish_with(passage.second, to)
        };
        let left_s = if is_swap { 0.0 } else { passage.left_s };
        self.weight_per_s
            * match self.aim_s {
                None => passage.settled_s.finite_max(left_s).finite_max(finish_s) - self.latest[0].0,
                Some(aim_s) => passage.settled_s + left_s + self.lateness_change(aim_s, to, finish_s),
            }
    }

    fn relief(&self, d: u32) -> f64 {
        let relief_s = match self.aim_s {
            None if self.latest[0].1 == d => self.latest[0].0 - self.latest[1].0,
            None => 0.0,
            Some(aim_s) => (self.finish_s[d as usize] - aim_s).finite_max(0.0),
        };
        self.weight_per_s * relief_s
    }

    fn members(&self, d: u32) -> &[u32] {
        &self.loads[d as usize].members
    }

    fn relaxation(&self) -> Option<LoadRelaxation<'_>> {
        let floors = self.loads.iter().map(|load| (load.network_s, load.backlog_s)).collect();
        Some(LoadRelaxation {
            weight_per_s: self.weight_per_s,
            service_s: &self.service_s,
            work_s: &self.work_s,
            floors,
        })
    }
}

impl Spreading for FifoMakespan {
    fn finish_s(&self, d: u32) -> f64 {
        self.finish_s[d as usize]
    }

    fn finish_with_s(&self, r: usize, d: u32) -> f64 {
        self.finish_with(r, d)
    }

    fn work_s(&self, r: usize, d: u32) -> f64 {
        self.work_s[self.cell(r, d)]
    }

    fn queued_s(&self, d: u32) -> f64 {
        let load = &self.loads[d as usize];
        load.queue_s - load.backlog_s
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::RngExt;

    use super::*;
    use crate::routing::Evaluator;
    use crate::routing::policy::rng_for;
    use crate::routing::testing::random_problem;

    const TOLERANCE: f64 = 1e-9;

    /// A coupling told of a random assignment.
    fn coupled(seed: u64, n: usize, m: usize) -> (Problem, Objective, Instance, FifoMakespan, Vec<u32>) {
        let problem = random_problem(seed, n, m, false);
        let objective = Objective::batch(&problem);
        let instance = Instance::new(&problem, &objective);
        let mut coupling = FifoMakespan::new(&problem, &objective, &instance);
        let mut rng = rng_for(seed, 1);
        let assignment: Vec<u32> = (0..n).map(|_| rng.random_range(0..m as u32)).collect();
        coupling.assign(&assignment);
        (problem, objective, instance, coupling, assignment)
    }

    /// The cost by the definitions, from the naive evaluator.
    fn naive(
        (problem, objective, instance): (&Problem, &Objective, &Instance),
        assignment: &[u32],
        aim_s: Option<f64>,
    ) -> f64 {
        let x = instance.to_destinations(assignment);
        let times = Evaluator::new(problem, objective).completions(&x);
        let time_s = match aim_s {
            None => times.iter().map(|t| t.get()).fold(0.0, f64::max),
            Some(aim_s) => {
                // T_d is the completion of the longest-waiting or longest-running request there.
                let late = |d: u32| {
                    let here = assignment.iter().zip(&times).filter(|(x, _)| **x == d);
                    (here.map(|(_, t)| t.get()).fold(0.0, f64::max) - aim_s).max(0.0)
                };
                aim_s + (0..instance.m as u32).map(late).sum::<f64>()
            }
        };
        objective.time_weight_per_s() * time_s
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn deltas_equal_the_naive_evaluator(
            seed in any::<u64>(), n in 2..14_usize, m in 2..7_usize, aim in prop::option::of(0.0..0.8_f64),
        ) {
            let (problem, objective, instance, mut coupling, mut assignment) = coupled(seed, n, m);
            let parts = (&problem, &objective, &instance);
            let aim_s = aim.map(|share| coupling.latest[0].0 * (1.0 - share));
            aim.map(|share| coupling.aim_earlier(share));
            let mut rng = rng_for(seed, 2);
            for _ in 0..20 {
                let before = naive(parts, &assignment, aim_s);
                prop_assert!((coupling.cost() - before).abs() < TOLERANCE);
                let r = rng.random_range(0..n);
                let first = Move { r, from: assignment[r], to: rng.random_range(0..m as u32) };
                if first.to == first.from {
                    continue;
                }
                let mut after = assignment.clone();
                after[r] = first.to;
                let delta = coupling.arrive_delta(&coupling.depart(r, first.from), r, first.to);
                prop_assert!((delta - (naive(parts, &after, aim_s) - before)).abs() < TOLERANCE);
                prop_assert!(delta >= -coupling.relief(first.from) - TOLERANCE);
                for second in (0..n).filter(|second| assignment[*second] == first.to) {
                    let passage = coupling.pass(first, second);
                    // Every target but where it was; where the first came from is a swap.
                    for to in (0..m as u32).filter(|to| *to != first.to) {
                        let mut chained = after.clone();
                        chained[second] = to;
                        let delta = coupling.chain_delta(&passage, to);
                        prop_assert!((delta - (naive(parts, &chained, aim_s) - before)).abs() < TOLERANCE);
                        prop_assert!(coupling.pass_delta_min(&passage) <= delta + TOLERANCE);
                    }
                }
                coupling.relocate(first);
                assignment = after;
            }
        }

        #[test]
        fn inserting_adds_what_was_announced(seed in any::<u64>(), n in 2..14_usize, m in 2..7_usize) {
            let (.., mut coupling, assignment) = coupled(seed, n, m);
            let whole = coupling.cost();
            coupling.clear();
            let mut sum = 0.0;
            for (r, d) in assignment.iter().enumerate() {
                sum += coupling.insert_delta(r, *d);
                coupling.insert(r, *d);
            }
            prop_assert!((sum - whole).abs() < TOLERANCE);
        }
    }
}

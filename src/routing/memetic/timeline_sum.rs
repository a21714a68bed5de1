//! The coupling of time term `sum`: what requests cost each other on the timelines of their destinations.

use crate::domain::Work;
use crate::routing::completion::timeline::Timeline;
use crate::routing::memetic::coupling::{Coupling, Move};
use crate::routing::memetic::instance::Instance;
use crate::routing::objective::SumTerm;
use crate::routing::problem::SumTables;

/// Per destination, what its requests cost beyond what each would cost there alone, which is in the instance's
/// separable table. They are served in the order of the rows, so a destination's cost is one pass over them.
#[derive(Debug)]
pub(super) struct TimelineSum<'a> {
    m: usize,
    term: &'a SumTerm,
    /// What is at each destination before the batch.
    timelines: Vec<Timeline>,
    work: Vec<Work>,
    /// Cost alone, R × M.
    alone: &'a [f64],
    /// In the order of the rows.
    members: Vec<Vec<u32>>,
    /// Cost of each destination's requests beyond theirs alone.
    extra: Vec<f64>,
}

/// A chain of two moves but for the end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passage {
    first: Move,
    second: usize,
    /// Change where the first enters and the second leaves.
    through: f64,
    /// Change where the first was.
    left: f64,
}

/// A destination's requests with one taken away and one added.
#[derive(Clone, Copy, Default)]
struct Change {
    going: Option<usize>,
    coming: Option<usize>,
}

/// `term.added` of every request at every destination alone, R × M in the order of the instance's columns.
pub(super) fn alone(sum: &SumTables, term: &SumTerm, instance: &Instance) -> Vec<f64> {
    let cell = |r: usize| {
        let of =
            move |d: &crate::domain::DestinationOrd| term.added(r, sum.work(r, *d), &sum.timelines[d.idx()]);
        instance.columns.iter().map(of)
    };
    (0..instance.n).flat_map(cell).collect()
}

impl<'a> TimelineSum<'a> {
    pub(super) fn new(sum: &SumTables, term: &'a SumTerm, instance: &Instance, alone: &'a [f64]) -> Self {
        let row = |r: usize| instance.columns.iter().map(move |d| sum.work(r, *d));
        Self {
            m: instance.m,
            term,
            timelines: instance.columns.iter().map(|d| sum.timelines[d.idx()]).collect(),
            work: (0..instance.n).flat_map(row).collect(),
            alone,
            members: vec![Vec::new(); instance.m],
            extra: vec![0.0; instance.m],
        }
    }

    /// Cost of the requests at `d` after `change`, beyond theirs alone.
    fn extra_after(&self, d: u32, change: Change) -> f64 {
        let mut timeline = self.timelines[d as usize];
        let (mut extra, mut n_served) = (0.0, 0_u32);
        let mut serve = |r: usize| {
            let cell = r * self.m + d as usize;
            // The first is as good as alone.
            if n_served > 0 {
                extra += self.term.added(r, self.work[cell], &timeline) - self.alone[cell];
            }
            n_served += 1;
            timeline.push(self.work[cell]);
        };
        let mut coming = change.coming;
        for member in &self.members[d as usize] {
            let r = *member as usize;
            if coming.is_some_and(|coming| coming < r)
                && let Some(coming) = coming.take()
            {
                serve(coming);
            }
            if change.going != Some(r) {
                serve(r);
            }
        }
        if let Some(coming) = coming {
            serve(coming);
        }
        extra
    }

    fn delta(&self, d: u32, change: Change) -> f64 {
        self.extra_after(d, change) - self.extra[d as usize]
    }

    fn add(&mut self, r: usize, d: u32) {
        let members = &mut self.members[d as usize];
        let at = members.partition_point(|member| (*member as usize) < r);
        members.insert(at, r as u32);
    }

    fn measure(&mut self, d: u32) {
        self.extra[d as usize] = self.extra_after(d, Change::default());
    }
}

impl Coupling for TimelineSum<'_> {
    /// Change of cost where the request leaves.
    type Departure = f64;
    type Passage = Passage;

    // What comes later in the order is planned again before it can start.
    const SEARCHED_ROWS: usize = 16;
    const MANY_STARTS: bool = false;
    const STALL_ROUNDS: u64 = 4;

    fn clear(&mut self) {
        self.members.iter_mut().for_each(Vec::clear);
        self.extra.fill(0.0);
    }

    fn assign(&mut self, assignment: &[u32]) {
        self.clear();
        for (r, d) in assignment.iter().enumerate() {
            self.members[*d as usize].push(r as u32);
        }
        (0..self.m as u32).for_each(|d| self.measure(d));
    }

    fn insert(&mut self, r: usize, d: u32) {
        self.add(r, d);
        self.measure(d);
    }

    fn relocate(&mut self, step: Move) {
        self.members[step.from as usize].retain(|member| *member as usize != step.r);
        self.add(step.r, step.to);
        self.measure(step.from);
        self.measure(step.to);
    }

    fn cost(&self) -> f64 {
        self.extra.iter().sum()
    }

    fn insert_delta(&self, r: usize, d: u32) -> f64 {
        self.delta(d, Change { coming: Some(r), ..Change::default() })
    }

    fn depart(&self, r: usize, from: u32) -> f64 {
        self.delta(from, Change { going: Some(r), ..Change::default() })
    }

    fn arrive_delta(&self, departure: &f64, r: usize, to: u32) -> f64 {
        departure + self.insert_delta(r, to)
    }

    fn pass(&self, first: Move, second: usize) -> Passage {
        let change = Change { going: Some(second), coming: Some(first.r) };
        let (through, left) = (self.delta(first.to, change), self.depart(first.r, first.from));
        Passage { first, second, through, left }
    }

    fn pass_delta_min(&self, passage: &Passage) -> f64 {
        passage.through + passage.left
    }

    fn chain_delta(&self, passage: &Passage, to: u32) -> f64 {
        let Passage { first, second, through, left } = *passage;
        if to == first.from {
            through + self.delta(to, Change { going: Some(first.r), coming: Some(second) })
        } else {
            through + left + self.insert_delta(second, to)
        }
    }

    fn relief(&self, d: u32) -> f64 {
        self.extra[d as usize].max(0.0)
    }

    fn members(&self, d: u32) -> &[u32] {
        &self.members[d as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::RngExt;

    use super::*;
    use crate::routing::policy::rng_for;
    use crate::routing::testing::random_sum_problem;
    use crate::routing::{Evaluator, Objective};

    const TOLERANCE: f64 = 1e-9;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn deltas_equal_the_naive_evaluator(seed in any::<u64>(), n in 2..14_usize, m in 2..7_usize) {
            let problem = random_sum_problem(seed, n, m);
            let objective = Objective::batch(&problem);
            let (sum, term) = (problem.sum().unwrap(), objective.sum().unwrap());
            let mut instance = Instance::new(&problem, &objective);
            let alone = alone(sum, term, &instance);
            let mut coupling = TimelineSum::new(sum, term, &instance, &alone);
            instance.add(&alone);
            let value = |assignment: &[u32]| {
                let x = instance.to_destinations(assignment);
                Evaluator::new(&problem, &objective).objective(&x) - objective.constant()
            };
            let coupled = |assignment: &[u32]| value(assignment) - instance.separable_sum(assignment);
            let mut rng = rng_for(seed, 1);
            let mut assignment: Vec<u32> = (0..n).map(|_| rng.random_range(0..m as u32)).collect();
            coupling.assign(&assignment);
            for _ in 0..20 {
                let before = coupled(&assignment);
                prop_assert!((coupling.cost() - before).abs() < TOLERANCE);
                let r = rng.random_range(0..n);
                let first = Move { r, from: assignment[r], to: rng.random_range(0..m as u32) };
                if first.to == first.from {
                    continue;
                }
                let mut after = assignment.clone();
                after[r] = first.to;
                let delta = coupling.arrive_delta(&coupling.depart(r, first.from), r, first.to);
                prop_assert!((delta - (coupled(&after) - before)).abs() < TOLERANCE);
                for second in (0..n).filter(|second| assignment[*second] == first.to) {
                    let passage = coupling.pass(first, second);
                    for to in (0..m as u32).filter(|to| *to != first.to) {
                        let mut chained = after.clone();
                        chained[second] = to;
                        let delta = coupling.chain_delta(&passage, to);
                        prop_assert!((delta - (coupled(&chained) - before)).abs() < TOLERANCE);
                    }
                }
                coupling.relocate(first);
                assignment = after;
            }
        }
    }
}

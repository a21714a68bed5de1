//! The part of J that couples requests at a destination, behind a trait with cheap deltas.
//!
//! The search itself knows only a separable table and a [`Coupling`]; another completion model or time
//! term is another implementation of it.

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

    /// Change of cost if `r` were added at `d`.
    fn insert_delta(&self, r: usize, d: u32) -> f64;

    /// The state with `r` taken away from `from`.
    fn depart(&self, r: usize, from: u32) -> Self::Departure;

    /// Change of cost if the departed `r` went to `to` instead of where it was.
    fn arrive_delta(&self, departure: &Self::Departure, r: usize, to: u32) -> f64;

    /// Change of cost if `first` happened and `second`, which leaves the destination `first` enters, too.
    /// A swap is the case `second.to == first.from`.
    fn chain_delta(&self, first: Move, second: Move) -> f64;

    /// The most that taking requests away from `d` alone can save.
    fn relief(&self, d: u32) -> f64;

    /// The requests at `d`.
    fn members(&self, d: u32) -> &[u32];

    /// The relaxation that gives a lower bound, if there is one.
    fn relaxation(&self) -> Option<LoadRelaxation<'_>>;
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
    /// T_d; 0 while unused.
    finish_s: f64,
    members: Vec<u32>,
}

impl Load {
    /// T_d if the destination is used.
    fn finish_with(&self, queue_s: f64, longest_s: f64) -> f64 {
        self.network_s + queue_s.max(longest_s)
    }
}

/// `w · max T_d` over used destinations, model `fifo` (Eq. 4).
#[derive(Debug)]
pub(super) struct FifoMakespan {
    m: usize,
    weight_per_s: f64,
    service_s: Vec<f64>,
    /// Service / k.
    work_s: Vec<f64>,
    loads: Vec<Load>,
    /// The destinations with the largest T_d, in falling order.
    latest: [(f64, u32); 3],
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
            service_s,
            work_s,
            loads: columns().map(load).collect(),
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
        load.finish_with(load.queue_s + self.work_s[cell], load.longest_s.max(self.service_s[cell]))
    }

    /// T_d with `coming` in the place of `going`.
    fn finish_exchanged(&self, going: usize, coming: usize, d: u32) -> f64 {
        let load = &self.loads[d as usize];
        let (going, coming) = (self.cell(going, d), self.cell(coming, d));
        let longest_s = if self.service_s[going] >= load.longest_s { load.second_s } else { load.longest_s };
        let queue_s = load.queue_s - self.work_s[going] + self.work_s[coming];
        load.finish_with(queue_s, longest_s.max(self.service_s[coming]))
    }

    fn add(&mut self, r: usize, d: u32) {
        let cell = self.cell(r, d);
        let (service_s, work_s) = (self.service_s[cell], self.work_s[cell]);
        let load = &mut self.loads[d as usize];
        load.members.push(r as u32);
        load.queue_s += work_s;
        load.second_s = load.second_s.max(service_s.min(load.longest_s));
        load.longest_s = load.longest_s.max(service_s);
        load.finish_s = load.finish_with(load.queue_s, load.longest_s);
    }

    /// Sums afresh, so that rounding does not pile up over a long search.
    fn remove(&mut self, r: usize, d: u32) {
        let load = &mut self.loads[d as usize];
        load.members.retain(|member| *member != r as u32);
        let members = std::mem::take(&mut load.members);
        load.queue_s = load.backlog_s;
        (load.longest_s, load.second_s, load.finish_s) = (0.0, 0.0, 0.0);
        for member in &members {
            let cell = *member as usize * self.m + d as usize;
            let service_s = self.service_s[cell];
            load.queue_s += self.work_s[cell];
            load.second_s = load.second_s.max(service_s.min(load.longest_s));
            load.longest_s = load.longest_s.max(service_s);
        }
        if !members.is_empty() {
            load.finish_s = load.finish_with(load.queue_s, load.longest_s);
        }
        load.members = members;
    }

    fn rank(&mut self) {
        let mut latest = [NOBODY; 3];
        for (d, load) in (0_u32..).zip(&self.loads) {
            if load.finish_s > latest[2].0 {
                latest[2] = (load.finish_s, d);
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
    /// T over everything but the request that left, seconds.
    type Departure = f64;

    fn clear(&mut self) {
        for load in &mut self.loads {
            load.members.clear();
            load.queue_s = load.backlog_s;
            (load.longest_s, load.second_s, load.finish_s) = (0.0, 0.0, 0.0);
        }
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
        self.rank();
    }

    fn cost(&self) -> f64 {
        self.weight_per_s * self.latest[0].0
    }

    fn insert_delta(&self, r: usize, d: u32) -> f64 {
        self.weight_per_s * (self.finish_with(r, d) - self.latest[0].0).max(0.0)
    }

    fn depart(&self, r: usize, from: u32) -> f64 {
        self.latest_but(from, from).max(self.finish_without(r, from))
    }

    fn arrive_delta(&self, departure: &f64, r: usize, to: u32) -> f64 {
        // T_to only grows, so the largest of the others may include its old value.
        self.weight_per_s * (departure.max(self.finish_with(r, to)) - self.latest[0].0)
    }

    fn chain_delta(&self, first: Move, second: Move) -> f64 {
        let through_s = self.finish_exchanged(second.r, first.r, first.to);
        let others_s = self.latest_but(first.from, first.to).max(through_s);
        let time_s = if second.to == first.from {
            others_s.max(self.finish_exchanged(first.r, second.r, first.from))
        } else {
            let left_s = self.finish_without(first.r, first.from);
            others_s.max(left_s).max(self.finish_with(second.r, second.to))
        };
        self.weight_per_s * (time_s - self.latest[0].0)
    }

    fn relief(&self, d: u32) -> f64 {
        if self.latest[0].1 == d { self.weight_per_s * (self.latest[0].0 - self.latest[1].0) } else { 0.0 }
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

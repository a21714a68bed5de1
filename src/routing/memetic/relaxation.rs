//! Lower bound and warm starts: Lagrangian relaxation of the loads, branching on the makespan.
//!
//! With T the makespan, `J = Σ a + w·T` where every used destination satisfies
//! `ν_d + B_d + Σ work ≤ T` and every pair used `ν_d + max(s, B_d + work) ≤ T`. For T in `[lo, hi]`, pricing
//! the first kind with λ ≥ 0, Σ λ ≤ w, and dropping pairs that break the second at hi gives
//!
//! `L(λ) = Σ_r min_d (a + λ_d·work) + w·lo − Σ_d λ_d·max(0, lo − ν_d − B_d)`,
//!
//! which no assignment with a makespan in `[lo, hi]` undercuts: the terms in T do not fall as T grows, and
//! an unused destination only makes the subtracted part smaller. Intervals are split where the bound is
//! weakest. A pair whose reduced cost exceeds the gap to the incumbent cannot be part of anything better;
//! what is left are the candidate lists of the local search.

use std::collections::VecDeque;

use crate::routing::memetic::instance::Instance;

/// What the relaxation needs of the coupling: the linear load and its floors.
#[derive(Debug)]
pub(super) struct LoadRelaxation<'a> {
    /// J per second of makespan.
    pub(super) weight_per_s: f64,
    /// s_rd, R × M.
    pub(super) service_s: &'a [f64],
    /// s_rd / k_d, R × M.
    pub(super) work_s: &'a [f64],
    /// ν_d and B_d.
    pub(super) floors: Vec<(f64, f64)>,
}

/// A pair that may be part of a better assignment.
#[derive(Debug, Clone, Copy)]
struct Cell {
    separable: f64,
    work_s: f64,
    single_finish_s: f64,
    d: u32,
}

/// The pairs left, by request.
#[derive(Debug, Clone, Default)]
struct Cells {
    entries: Vec<Cell>,
    starts: Vec<u32>,
}

impl Cells {
    fn rows(&self) -> impl Iterator<Item = &[Cell]> {
        self.starts.windows(2).map(|ends| &self.entries[ends[0] as usize..ends[1] as usize])
    }

    fn filtered(&self, keep: impl Fn(usize, &Cell) -> bool) -> Self {
        let mut kept = Self { entries: Vec::with_capacity(self.entries.len()), starts: vec![0] };
        for (r, row) in self.rows().enumerate() {
            kept.entries.extend(row.iter().filter(|cell| keep(r, cell)));
            kept.starts.push(kept.entries.len() as u32);
        }
        kept
    }
}

/// Assignments with a makespan in `[lo, hi]`.
#[derive(Debug, Clone)]
struct Interval {
    lo_s: f64,
    hi_s: f64,
    bound: f64,
    multipliers: Vec<f64>,
    cells: Cells,
}

/// Bounds over all intervals not yet ruled out, in units of J less its constant.
#[derive(Debug)]
pub(super) struct Relaxation {
    m: usize,
    weight_per_s: f64,
    /// ν_d + B_d.
    floor_s: Vec<f64>,
    intervals: Vec<Interval>,
    /// The last assignments met, oldest first: together they approximate the fractional optimum.
    history: VecDeque<Vec<u32>>,
    scratch: Scratch,
    /// Pairs priced so far.
    work: u64,
}

#[derive(Debug, Default)]
struct Scratch {
    assignment: Vec<u32>,
    row_least: Vec<f64>,
    load_s: Vec<f64>,
    direction: Vec<f64>,
}

/// Assignments remembered.
const HISTORY: usize = 24;
/// Share of the last direction kept in the next: damps the zigzag of subgradients.
const MOMENTUM: f64 = 0.4;
/// Steps without progress before the step length is halved.
const PATIENCE: u32 = 3;
/// Dual steps between two attempts to drop pairs.
const STEPS_PER_FILTER: u32 = 6;
/// Pairs held by all intervals together beyond which no interval is split; bounds memory.
const CELLS_SPLIT_MAX: usize = 1 << 20;
/// Rounding allowed when a bound rules something out, relative to the incumbent.
const SLACK: f64 = 1e-9;

impl Relaxation {
    /// The root interval, given the value of an incumbent. `None` if time has no weight.
    pub(super) fn new(instance: &Instance, load: &LoadRelaxation<'_>, upper: f64) -> Option<Self> {
        if load.weight_per_s <= 0.0 {
            return None;
        }
        let least: f64 = instance.least.iter().sum();
        let hi_s = (upper - least) / load.weight_per_s * (1.0 + SLACK);
        let (cells, lo_s) = root_cells(instance, load, hi_s);
        let m = instance.m;
        let root = Interval {
            lo_s,
            hi_s,
            bound: least + load.weight_per_s * lo_s,
            multipliers: vec![load.weight_per_s / m as f64; m],
            cells,
        };
        let scratch = Scratch {
            assignment: vec![0; instance.n],
            row_least: vec![0.0; instance.n],
            load_s: vec![0.0; m],
            direction: vec![0.0; m],
        };
        let floor_s = load.floors.iter().map(|(network_s, backlog_s)| network_s + backlog_s).collect();
        Some(Self {
            m,
            weight_per_s: load.weight_per_s,
            floor_s,
            intervals: vec![root],
            history: VecDeque::with_capacity(HISTORY),
            scratch,
            work: 0,
        })
    }

    /// A value no assignment is below, given an incumbent's.
    pub(super) fn lower_bound(&self, upper: f64) -> f64 {
        self.intervals.iter().map(|interval| interval.bound).fold(upper, f64::min)
    }

    /// Improves the bound of the weakest interval. Each assignment met on the way is given to `visit`,
    /// which answers with its value or that of a better incumbent.
    pub(super) fn ascend(
        &mut self,
        steps: u32,
        mut upper: f64,
        visit: &mut dyn FnMut(&[u32]) -> f64,
        stop: &mut dyn FnMut() -> bool,
    ) {
        let Some(mut interval) = self.take_weakest() else { return };
        let mut multipliers = interval.multipliers.clone();
        let (mut length, mut without_progress) = (1.0, 0);
        self.scratch.direction.fill(0.0);
        for step in 1..=steps {
            let value = self.relax(&interval, &multipliers);
            upper = upper.min(visit(&self.scratch.assignment));
            self.remember();
            if value > interval.bound {
                let progress = value - interval.bound;
                interval.bound = value;
                interval.multipliers.copy_from_slice(&multipliers);
                if step % STEPS_PER_FILTER == 0 {
                    interval.cells = self.unpruned(&interval, upper);
                }
                without_progress = if progress > 1e-4 * (upper - value) { 0 } else { without_progress + 1 };
            } else {
                without_progress += 1;
            }
            if interval.bound >= upper * (1.0 - SLACK) || stop() {
                break;
            }
            if without_progress > PATIENCE {
                (length, without_progress) = (length * 0.5, 0);
                multipliers.copy_from_slice(&interval.multipliers);
                self.scratch.direction.fill(0.0);
            }
            self.step(&interval, &mut multipliers, length * (upper - value));
        }
        self.intervals.push(interval);
        self.prune(upper);
    }

    /// Splits the weakest interval in the middle; false if there is none left, or too much to copy.
    pub(super) fn split(&mut self) -> bool {
        let cells: usize = self.intervals.iter().map(|interval| interval.cells.entries.len()).sum();
        if cells > CELLS_SPLIT_MAX {
            return false;
        }
        let Some(interval) = self.take_weakest() else { return false };
        let middle_s = 0.5 * (interval.lo_s + interval.hi_s);
        let mut late = interval.clone();
        let mut early = interval;
        late.lo_s = middle_s;
        early.hi_s = middle_s;
        early.cells = early.cells.filtered(|_, cell| cell.single_finish_s <= middle_s);
        self.intervals.push(late);
        if early.cells.rows().all(|row| !row.is_empty()) {
            self.intervals.push(early);
        }
        true
    }

    /// Drops intervals and pairs that cannot beat `upper`.
    pub(super) fn prune(&mut self, upper: f64) {
        self.intervals.retain(|interval| interval.bound < upper * (1.0 - SLACK));
    }

    /// Marks the pairs (R × M) that may be part of an assignment better than `upper`, with a priority:
    /// the reduced cost, infinite for the others.
    pub(super) fn reduced_costs(&mut self, n: usize, upper: f64) -> Vec<f64> {
        let mut reduced = vec![f64::INFINITY; n * self.m];
        let intervals = std::mem::take(&mut self.intervals);
        for interval in &intervals {
            self.relax(interval, &interval.multipliers);
            let gap = upper - interval.bound;
            for (r, row) in interval.cells.rows().enumerate() {
                for cell in row {
                    let d = cell.d as usize;
                    let cost =
                        cell.separable + interval.multipliers[d] * cell.work_s - self.scratch.row_least[r];
                    if cost <= gap {
                        let marked = &mut reduced[r * self.m + d];
                        *marked = marked.min(cost);
                    }
                }
            }
        }
        self.intervals = intervals;
        reduced
    }

    /// Pairs priced so far: the effort spent.
    pub(super) fn work(&self) -> u64 {
        self.work
    }

    /// The last assignments met, oldest first.
    pub(super) fn history(&self) -> &VecDeque<Vec<u32>> {
        &self.history
    }

    fn remember(&mut self) {
        let mut oldest = if self.history.len() >= HISTORY { self.history.pop_front() } else { None };
        let entry = oldest.get_or_insert_with(|| vec![0; self.scratch.assignment.len()]);
        entry.copy_from_slice(&self.scratch.assignment);
        self.history.extend(oldest);
    }

    fn take_weakest(&mut self) -> Option<Interval> {
        let by_bound = |a: &(usize, &Interval), b: &(usize, &Interval)| a.1.bound.total_cmp(&b.1.bound);
        let weakest = self.intervals.iter().enumerate().min_by(by_bound).map(|(i, _)| i)?;
        Some(self.intervals.swap_remove(weakest))
    }

    /// L(λ); leaves the minimising assignment, its loads and row minima in the scratch space.
    fn relax(&mut self, interval: &Interval, multipliers: &[f64]) -> f64 {
        let scratch = &mut self.scratch;
        scratch.load_s.fill(0.0);
        self.work += interval.cells.entries.len() as u64;
        let mut sum = 0.0;
        for (r, row) in interval.cells.rows().enumerate() {
            let (mut least, mut best) = (f64::INFINITY, 0);
            for (i, cell) in row.iter().enumerate() {
                let priced = cell.separable + multipliers[cell.d as usize] * cell.work_s;
                if priced < least {
                    (least, best) = (priced, i);
                }
            }
            sum += least;
            scratch.row_least[r] = least;
            if let Some(cell) = row.get(best) {
                scratch.assignment[r] = cell.d;
                scratch.load_s[cell.d as usize] += cell.work_s;
            }
        }
        let floors = self.floor_s.iter().zip(multipliers);
        let early: f64 = floors.map(|(floor_s, price)| price * (interval.lo_s - floor_s).max(0.0)).sum();
        sum + self.weight_per_s * interval.lo_s - early
    }

    /// The pairs of the interval whose reduced cost at its multipliers leaves room below `upper`; expects
    /// the row minima of those multipliers in the scratch space.
    fn unpruned(&self, interval: &Interval, upper: f64) -> Cells {
        let gap = (upper - interval.bound) + SLACK * upper.abs();
        interval.cells.filtered(|r, cell| {
            let priced = cell.separable + interval.multipliers[cell.d as usize] * cell.work_s;
            priced - self.scratch.row_least[r] <= gap
        })
    }

    /// One deflected Polyak step and projection onto `λ ≥ 0, Σ λ ≤ w`.
    fn step(&mut self, interval: &Interval, multipliers: &mut [f64], length: f64) {
        let scratch = &mut self.scratch;
        let mut norm = 0.0;
        for ((direction, load_s), floor_s) in
            scratch.direction.iter_mut().zip(&scratch.load_s).zip(&self.floor_s)
        {
            let subgradient = load_s - (interval.lo_s - floor_s).max(0.0);
            *direction = subgradient + MOMENTUM * *direction;
            norm += *direction * *direction;
        }
        if norm <= 0.0 {
            return;
        }
        for (price, direction) in multipliers.iter_mut().zip(&scratch.direction) {
            *price += length / norm * direction;
        }
        project(multipliers, self.weight_per_s);
    }
}

/// Every legal pair that fits below `hi_s`, and the least makespan any assignment can have.
fn root_cells(instance: &Instance, load: &LoadRelaxation<'_>, hi_s: f64) -> (Cells, f64) {
    let mut cells = Cells { entries: Vec::with_capacity(instance.n * instance.m), starts: vec![0] };
    let mut lo_s = 0.0_f64;
    for r in 0..instance.n {
        let mut earliest_s = f64::INFINITY;
        for (d, separable) in instance.row(r).iter().enumerate() {
            if !separable.is_finite() {
                continue;
            }
            let (network_s, backlog_s) = load.floors[d];
            let i = r * instance.m + d;
            let single_finish_s = network_s + load.service_s[i].max(backlog_s + load.work_s[i]);
            earliest_s = earliest_s.min(single_finish_s);
            if single_finish_s <= hi_s {
                let (separable, work_s) = (*separable, load.work_s[i]);
                cells.entries.push(Cell { separable, work_s, single_finish_s, d: d as u32 });
            }
        }
        lo_s = lo_s.max(earliest_s);
        cells.starts.push(cells.entries.len() as u32);
    }
    (cells, lo_s)
}

/// The nearest point with no negative entry and a sum of at most `limit`.
fn project(values: &mut [f64], limit: f64) {
    for value in values.iter_mut() {
        *value = value.max(0.0);
    }
    // Each round takes the same off every positive entry; entries that reach zero leave the next round.
    for _ in 0..values.len() {
        let sum: f64 = values.iter().sum();
        let excess = sum - limit;
        if excess <= limit * 1e-15 {
            return;
        }
        let positive = values.iter().filter(|value| **value > 0.0).count();
        let share = excess / positive.max(1) as f64;
        let mut clipped = false;
        for value in values.iter_mut().filter(|value| **value > 0.0) {
            clipped |= *value < share;
            *value = (*value - share).max(0.0);
        }
        if !clipped {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projection_is_the_nearest_point_of_the_simplex() {
        let is_near = |got: &[f64], want: &[f64]| got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-12);
        let mut inside = [0.2, -1.0, 0.3];
        project(&mut inside, 1.0);
        assert!(is_near(&inside, &[0.2, 0.0, 0.3]), "{inside:?}");
        // 0.9 + 0.5 + 0.1 = 1.5: 1/6 off each leaves the last negative; then 0.2 off the other two.
        let mut outside = [0.9, 0.5, 0.1];
        project(&mut outside, 1.0);
        assert!(is_near(&outside, &[0.7, 0.3, 0.0]), "{outside:?}");
    }
}

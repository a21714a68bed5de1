//! Informed starting points.

use std::collections::VecDeque;

use crate::routing::memetic::coupling::Coupling;
use crate::routing::memetic::instance::Instance;

/// Each request at its best place as if it were alone.
pub(super) fn separable_minimum(instance: &Instance) -> Vec<u32> {
    let best = |r| {
        let cells = (0_u32..).zip(instance.row(r));
        cells.min_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(d, _)| d)
    };
    (0..instance.n).map(best).collect()
}

/// Requests by falling length.
pub(super) fn longest_first(length: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..length.len()).collect();
    order.sort_by(|a, b| length[*b].total_cmp(&length[*a]));
    order
}

/// Requests in the given order, each where it adds least to J.
pub(super) fn greedy<C: Coupling>(instance: &Instance, coupling: &mut C, order: &[usize]) -> Vec<u32> {
    let mut assignment = vec![0; instance.n];
    coupling.clear();
    for r in order.iter().copied() {
        let added = |(d, separable): (u32, &f64)| (d, separable + coupling.insert_delta(r, d));
        let cells = (0_u32..).zip(instance.row(r)).map(added);
        let best = cells.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(d, _)| d);
        coupling.insert(r, best);
        assignment[r] = best;
    }
    assignment
}

/// Requests on which all of `history` agrees stay there; the others, longest first, each go where they add
/// least to J among the destinations they were seen at. A rounding of the relaxation's fractional optimum.
pub(super) fn rounded<C: Coupling>(
    instance: &Instance,
    coupling: &mut C,
    length: &[f64],
    history: &VecDeque<Vec<u32>>,
) -> Vec<u32> {
    let Some(mut assignment) = history.back().cloned() else { return separable_minimum(instance) };
    coupling.clear();
    let mut open: Vec<usize> = Vec::new();
    for (r, d) in assignment.iter().enumerate() {
        if history.iter().all(|past| past[r] == *d) {
            coupling.insert(r, *d);
        } else {
            open.push(r);
        }
    }
    open.sort_by(|a, b| length[*b].total_cmp(&length[*a]));
    for r in open {
        let added = |past: &Vec<u32>| (past[r], instance.at(r, past[r]) + coupling.insert_delta(r, past[r]));
        let best = history.iter().map(added).min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(d, _)| d);
        coupling.insert(r, best);
        assignment[r] = best;
    }
    assignment
}

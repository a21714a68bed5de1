//! Informed starting points.

use std::collections::VecDeque;

use crate::routing::memetic::coupling::Coupling;
use crate::routing::memetic::instance::Instance;
use crate::routing::places::Places;

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
    let mut places = Places::new(instance.caps.as_ref());
    for r in order.iter().copied() {
        assignment[r] = place_best(instance, coupling, &mut places, r);
    }
    assignment
}

/// Puts request `r` at the open place where it adds least to J.
fn place_best<C: Coupling>(instance: &Instance, coupling: &mut C, places: &mut Places<'_>, r: usize) -> u32 {
    places.look(r);
    let added = |(d, separable): (u32, &f64)| (d, separable + coupling.insert_delta(r, d));
    let open = (0_u32..).zip(instance.row(r)).filter(|(d, _)| places.is_open(*d as usize));
    let best = open.map(added).min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(d, _)| d);
    places.take(r, best as usize);
    coupling.insert(r, best);
    best
}

/// Brings a legal assignment within the caps. Those who would lose most keep their place; the others, in
/// the same order, each go to the open place where they add least to J. Leaves `coupling` undefined.
pub(super) fn repair<C: Coupling>(instance: &Instance, coupling: &mut C, assignment: &mut [u32]) {
    if instance.admits(assignment) {
        return;
    }
    let loss = |(r, here): (usize, &u32)| {
        let others = (0_u32..).zip(instance.row(r)).filter(|(d, _)| d != here).map(|(_, a)| *a);
        (r, others.fold(f64::INFINITY, f64::min) - instance.at(r, *here))
    };
    let mut order: Vec<(usize, f64)> = assignment.iter().enumerate().map(loss).collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut places = Places::new(instance.caps.as_ref());
    let mut displaced = Vec::new();
    coupling.clear();
    for (r, _) in order {
        let here = assignment[r];
        if places.take_if_open(r, here as usize) {
            coupling.insert(r, here);
        } else {
            displaced.push(r);
        }
    }
    for r in displaced {
        assignment[r] = place_best(instance, coupling, &mut places, r);
    }
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

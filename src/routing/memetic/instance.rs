//! The problem as the search sees it: columns in an order of their own, raw numbers, no names.

use std::cmp::Ordering;

use crate::domain::DestinationOrd;
use crate::routing::objective::Objective;
use crate::routing::places::Caps;
use crate::routing::problem::Problem;

/// Separable table and column order.
///
/// Columns are sorted by content, so that the search takes the same path however destinations are labelled.
#[derive(Debug)]
pub(super) struct Instance {
    /// R.
    pub(super) n: usize,
    /// M.
    pub(super) m: usize,
    /// `a[r][d]`, row-major; infinite where illegal.
    pub(super) separable: Vec<f64>,
    /// The destination of each column.
    pub(super) columns: Vec<DestinationOrd>,
    /// Least `a` of each row.
    pub(super) least: Vec<f64>,
    /// In the order of the columns; only where one can bind.
    pub(super) caps: Option<Caps>,
}

impl Instance {
    pub(super) fn new(problem: &Problem, objective: &Objective) -> Self {
        let (n, m) = (problem.n_requests(), problem.n_destinations());
        let columns = columns_by_content(problem, objective);
        let separable = permuted(objective.separable(), &columns);
        let least = least(&separable, m);
        let order = || columns.iter().map(|d| d.idx()).collect::<Vec<_>>();
        let caps = problem.caps().map(|caps| caps.permuted(&order()));
        Self { n, m, separable, columns, least, caps }
    }

    /// Adds `table`, in the order of the columns, to the separable one.
    pub(super) fn add(&mut self, table: &[f64]) {
        self.separable.iter_mut().zip(table).for_each(|(a, more)| *a += more);
        self.least = least(&self.separable, self.m);
    }

    /// Row `r` of the separable table.
    pub(super) fn row(&self, r: usize) -> &[f64] {
        &self.separable[r * self.m..(r + 1) * self.m]
    }

    /// The separable part of J for one cell.
    pub(super) fn at(&self, r: usize, d: u32) -> f64 {
        self.separable[r * self.m + d as usize]
    }

    /// Σ a over an assignment.
    pub(super) fn separable_sum(&self, assignment: &[u32]) -> f64 {
        assignment.iter().enumerate().map(|(r, d)| self.at(r, *d)).sum()
    }

    /// Whether an assignment is within the caps.
    pub(super) fn admits(&self, assignment: &[u32]) -> bool {
        self.caps.as_ref().is_none_or(|caps| caps.admit(assignment.iter().map(|d| *d as usize)))
    }

    /// An assignment in the problem's own order of destinations.
    pub(super) fn to_destinations(&self, assignment: &[u32]) -> Vec<DestinationOrd> {
        assignment.iter().map(|d| self.columns[*d as usize]).collect()
    }

    /// An assignment in this instance's order of columns.
    pub(super) fn to_columns(&self, assignment: &[DestinationOrd]) -> Vec<u32> {
        let mut column_of = vec![0_u32; self.m];
        for (column, d) in (0_u32..).zip(&self.columns) {
            column_of[d.idx()] = column;
        }
        assignment.iter().map(|d| column_of[d.idx()]).collect()
    }
}

fn least(separable: &[f64], m: usize) -> Vec<f64> {
    separable.chunks_exact(m).map(|row| row.iter().copied().fold(f64::INFINITY, f64::min)).collect()
}

/// A table with its columns in the given order.
pub(super) fn permuted(table: &[f64], columns: &[DestinationOrd]) -> Vec<f64> {
    let mut sorted = Vec::with_capacity(table.len());
    for row in table.chunks_exact(columns.len()) {
        sorted.extend(columns.iter().map(|d| row[d.idx()]));
    }
    sorted
}

fn columns_by_content(problem: &Problem, objective: &Objective) -> Vec<DestinationOrd> {
    let m = problem.n_destinations();
    let services = &problem.tables().service_s;
    let mut keys = vec![[0.0_f64; 2]; m];
    for (row_a, row_s) in objective.separable().chunks_exact(m).zip(services.chunks_exact(m)) {
        for ((key, a), s) in keys.iter_mut().zip(row_a).zip(row_s) {
            key[0] += a;
            key[1] += s;
        }
    }
    let by_content = |a: &DestinationOrd, b: &DestinationOrd| {
        let (key_a, key_b) = (keys[a.idx()], keys[b.idx()]);
        let (load_a, load_b) = (problem.destination(*a), problem.destination(*b));
        key_a[0]
            .total_cmp(&key_b[0])
            .then(key_a[1].total_cmp(&key_b[1]))
            .then(load_a.backlog_s.total_cmp(&load_b.backlog_s))
            .then(load_a.network_s.total_cmp(&load_b.network_s))
            .then(load_a.batch_speedup.total_cmp(&load_b.batch_speedup))
            .then(load_a.cap.cmp(&load_b.cap))
            .then_with(|| by_cells(objective.separable(), m, *a, *b))
            .then_with(|| by_cells(services, m, *a, *b))
    };
    let mut columns: Vec<DestinationOrd> = (0_u32..).map(DestinationOrd).take(m).collect();
    columns.sort_by(by_content);
    columns
}

/// Compares two columns cell by cell; needed only where a legality pattern makes both sums infinite.
fn by_cells(table: &[f64], m: usize, a: DestinationOrd, b: DestinationOrd) -> Ordering {
    let compare = |row: &[f64]| row[a.idx()].total_cmp(&row[b.idx()]);
    table.chunks_exact(m).map(compare).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

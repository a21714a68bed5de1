//! Candidate lists: per request the destinations still worth trying, best separable part first.

use crate::routing::memetic::instance::Instance;

/// Longest list per request. Destinations beyond it are further from the request's best place than any
/// load makes sensible; the bound keeps wide fleets cheap.
pub(super) const CANDIDATES_MAX: usize = 24;

/// A destination worth trying for a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// `a[r][d]`.
    pub(super) separable: f64,
    /// Column.
    pub(super) d: u32,
}

/// Lists of all requests; each has at least one entry and rises in `separable`.
#[derive(Debug)]
pub(super) struct Candidates {
    entries: Vec<Candidate>,
    starts: Vec<u32>,
}

impl Candidates {
    /// For each request the destinations that `keep` accepts by `(r, d)`, always including `incumbent[r]`.
    ///
    /// `rank` orders those that compete for the last places of a list.
    pub(super) fn new(
        instance: &Instance,
        incumbent: &[u32],
        keep: impl Fn(usize, usize) -> bool,
        rank: impl Fn(usize, usize) -> f64,
    ) -> Self {
        let mut entries = Vec::with_capacity(instance.n * 4);
        let mut starts = Vec::with_capacity(instance.n + 1);
        let mut list: Vec<(f64, Candidate)> = Vec::with_capacity(instance.m);
        starts.push(0);
        for (r, incumbent) in incumbent.iter().enumerate() {
            list.clear();
            for (d, separable) in (0_u32..).zip(instance.row(r)) {
                let wanted = separable.is_finite() && keep(r, d as usize);
                if wanted || d == *incumbent {
                    let priority = if d == *incumbent { f64::NEG_INFINITY } else { rank(r, d as usize) };
                    list.push((priority, Candidate { separable: *separable, d }));
                }
            }
            if list.len() > CANDIDATES_MAX {
                list.select_nth_unstable_by(CANDIDATES_MAX, |a, b| a.0.total_cmp(&b.0));
                list.truncate(CANDIDATES_MAX);
            }
            list.sort_unstable_by(|a, b| a.1.separable.total_cmp(&b.1.separable).then(a.1.d.cmp(&b.1.d)));
            entries.extend(list.iter().map(|(_, candidate)| *candidate));
            starts.push(entries.len() as u32);
        }
        Self { entries, starts }
    }

    /// The list of request `r`.
    pub(super) fn row(&self, r: usize) -> &[Candidate] {
        &self.entries[self.starts[r] as usize..self.starts[r + 1] as usize]
    }
}

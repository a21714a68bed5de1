//! The approximate index for profiles too large to scan: HNSW over the same vectors, squared Euclidean.

use usearch::{Index, IndexOptions, MetricKind, ScalarKind};

use crate::profiler::quality::estimator::profile::VECTOR_STRIDE;
use crate::profiler::quality::estimator::vectors::{Neighbour, PromptVector, VectorMatrix};

/// Prompts up to which every prediction scans all of them.
pub const EXACT_ROWS_MAX: usize = 10_000;

/// Edges per node of the graph.
const CONNECTIVITY: usize = 16;
/// Candidates considered while building and while searching; must exceed the neighbours asked for.
const EXPANSION: usize = 256;
/// Most threads that search at the same time; more of them scan exactly.
const SEARCHERS_MAX: usize = 64;

/// An HNSW graph over the rows of a [`VectorMatrix`]; never changed once built.
pub(super) struct ApproximateIndex {
    index: Index,
}

impl ApproximateIndex {
    /// Adds every row of `vectors`.
    pub(super) fn build(vectors: &VectorMatrix) -> Result<Self, String> {
        let options = IndexOptions {
            dimensions: VECTOR_STRIDE,
            metric: MetricKind::L2sq,
            quantization: ScalarKind::F32,
            connectivity: CONNECTIVITY,
            expansion_add: EXPANSION,
            expansion_search: EXPANSION,
            multi: false,
        };
        let index = Index::new(&options).map_err(|e| e.to_string())?;
        index.reserve_capacity_and_threads(vectors.len(), SEARCHERS_MAX).map_err(|e| e.to_string())?;
        for row in 0..vectors.len() {
            index.add(row as u64, vectors.row(row)).map_err(|e| e.to_string())?;
        }
        Ok(Self { index })
    }

    /// Leaves about the `k` nearest rows in `found`, nearest first. `false`, with `found` cleared, if the
    /// search failed.
    pub(super) fn nearest(&self, query: &PromptVector, k: usize, found: &mut Vec<Neighbour>) -> bool {
        found.clear();
        let Ok(matches) = self.index.search(query.as_slice(), k) else { return false };
        found.extend(matches.keys.iter().zip(&matches.distances).filter_map(|(key, distance)| {
            Some(Neighbour { row: u32::try_from(*key).ok()?, squared_distance: distance.max(0.0) })
        }));
        !found.is_empty()
    }
}

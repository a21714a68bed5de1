//! The approximate index for profiles too large to scan: HNSW over the same vectors, squared Euclidean.
//!
//! It takes minutes to build and is kept in a file beside the store, which the next start maps into memory. The file's
//! name is a hash of all vectors, so it can only be found by the embedding model, the format scaling and the prompts it
//! was made of; whatever else there is under such a name is of another time and goes when a new one is written.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

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

/// Beginning and end of the file's name.
const FILE_PREFIX: &str = "vectors-";
const FILE_EXTENSION: &str = "usearch";

impl ApproximateIndex {
    /// Adds every row of `vectors`, on as many threads as there are cores.
    pub(super) fn build(vectors: &VectorMatrix) -> Result<Self, String> {
        let index = empty_index()?;
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from).min(SEARCHERS_MAX);
        index.reserve_capacity_and_threads(vectors.len(), SEARCHERS_MAX).map_err(|e| e.to_string())?;
        let add = |first: usize| -> Result<(), String> {
            let mut rows = (first..vectors.len()).step_by(n_threads);
            rows.try_for_each(|row| index.add(row as u64, vectors.row(row)).map_err(|e| e.to_string()))
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..n_threads).map(|first| scope.spawn(move || add(first))).collect();
            let joined =
                threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("panic".into())));
            joined.collect::<Result<Vec<()>, String>>()
        })?;
        Ok(Self { index })
    }

    /// Where the index of these vectors is kept in `dir`.
    pub(super) fn file_in(dir: &Path, vectors: &VectorMatrix) -> PathBuf {
        dir.join(format!("{FILE_PREFIX}{:.32}.{FILE_EXTENSION}", vectors.sha256()))
    }

    /// Maps the file at `path`, if it is there and holds `n` vectors.
    pub(super) fn map(path: &Path, n: usize) -> Option<Self> {
        let index = path.is_file().then(empty_index)?.ok()?;
        // Before the file, which would otherwise allow as many as there are cores.
        index.reserve_capacity_and_threads(0, SEARCHERS_MAX).ok()?;
        index.view(path.to_str()?).ok()?;
        (index.size() == n && index.dimensions() == VECTOR_STRIDE).then_some(Self { index })
    }

    /// Writes the file at `path`, whole or not at all, and removes those of other vectors beside it.
    pub(super) fn save(&self, path: &Path) -> Result<(), String> {
        let partial = path.with_extension("partial");
        let name = partial.to_str().ok_or("the store's path is not UTF-8")?;
        self.index.save(name).map_err(|e| e.to_string())?;
        let durable = || {
            std::fs::File::open(&partial)?.sync_all()?;
            std::fs::rename(&partial, path)
        };
        durable().map_err(|e| e.to_string())?;
        for entry in path.parent().into_iter().flat_map(std::fs::read_dir).flatten().flatten() {
            let other = entry.path();
            let is_index = other.extension() == Some(OsStr::new(FILE_EXTENSION))
                && entry.file_name().to_string_lossy().starts_with(FILE_PREFIX);
            if is_index && other != path {
                // Somebody else's to remove, then.
                let _ = std::fs::remove_file(other);
            }
        }
        Ok(())
    }

    /// Vector `row`.
    pub(super) fn vector(&self, row: usize) -> Option<PromptVector> {
        let mut vector = [0.0; VECTOR_STRIDE];
        let n = self.index.get(row as u64, &mut vector).ok()?;
        (n == 1).then_some(vector)
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

fn empty_index() -> Result<Index, String> {
    let options = IndexOptions {
        dimensions: VECTOR_STRIDE,
        metric: MetricKind::L2sq,
        quantization: ScalarKind::F32,
        connectivity: CONNECTIVITY,
        expansion_add: EXPANSION,
        expansion_search: EXPANSION,
        multi: false,
    };
    Index::new(&options).map_err(|e| e.to_string())
}

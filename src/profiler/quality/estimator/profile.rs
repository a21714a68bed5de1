//! The profiled prompts of a store, in the shape the estimator computes with.

use crate::profiler::quality::embedder::EMBEDDING_DIMENSIONS;
use crate::profiler::quality::format::FORMAT_NUMBERS;

/// Numbers per prompt vector: embedding, format numbers, and zeros up to a multiple of the SIMD width.
pub const VECTOR_STRIDE: usize = (EMBEDDING_DIMENSIONS + FORMAT_NUMBERS).next_multiple_of(16);

/// What one model scored on one prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProfileCell {
    /// Score in `[0, 1]`.
    pub score: f32,
    /// Length of the answer, where it was recorded; not negative.
    pub completion_tokens: Option<f32>,
}

/// N prompts × M models of recorded scores, entries missing where a model was not asked.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    models: Vec<String>,
    /// N × [`VECTOR_STRIDE`], row-major; only the embedding is filled in.
    vectors: Vec<f32>,
    format: Vec<[f64; FORMAT_NUMBERS]>,
    /// N × M, row-major.
    cells: Vec<Option<ProfileCell>>,
}

impl Profile {
    /// An empty profile of these models.
    #[must_use]
    pub fn new(models: Vec<String>) -> Self {
        Self { models, ..Self::default() }
    }

    /// Adds a prompt with its embedding, its format numbers and one cell per model.
    pub fn push(
        &mut self,
        embedding: &[f32; EMBEDDING_DIMENSIONS],
        format: [f64; FORMAT_NUMBERS],
        cells: &[Option<ProfileCell>],
    ) {
        debug_assert_eq!(cells.len(), self.models.len(), "one cell per model");
        self.vectors.extend_from_slice(embedding);
        self.vectors.resize(self.vectors.len().next_multiple_of(VECTOR_STRIDE), 0.0);
        self.format.push(format);
        self.cells.extend_from_slice(cells);
    }

    /// N, the number of prompts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.format.len()
    }

    /// Whether there is no prompt.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.format.is_empty()
    }

    /// The M models, in the order of the cells.
    #[must_use]
    pub fn models(&self) -> &[String] {
        &self.models
    }

    /// The embedding of prompt `row`.
    #[must_use]
    pub fn embedding(&self, row: usize) -> &[f32; EMBEDDING_DIMENSIONS] {
        &self.vectors[row * VECTOR_STRIDE..][..EMBEDDING_DIMENSIONS].as_chunks().0[0]
    }

    /// The format numbers of prompt `row`.
    #[must_use]
    pub fn format(&self, row: usize) -> &[f64; FORMAT_NUMBERS] {
        &self.format[row]
    }

    /// The prompts `rows` alone, in that order.
    #[must_use]
    pub fn subset(&self, rows: &[usize]) -> Self {
        let mut subset = Self::new(self.models.clone());
        for row in rows {
            subset.push(self.embedding(*row), *self.format(*row), self.cells(*row));
        }
        subset
    }

    /// The M cells of prompt `row`.
    #[must_use]
    pub fn cells(&self, row: usize) -> &[Option<ProfileCell>] {
        let m = self.models.len();
        &self.cells[row * m..(row + 1) * m]
    }

    /// Share of the N × M cells that hold a score, in `[0, 1]`; 0 for an empty profile.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "cell counts stay far below 2^52")]
    pub fn coverage(&self) -> f64 {
        let filled = self.cells.iter().flatten().count();
        if self.cells.is_empty() { 0.0 } else { filled as f64 / self.cells.len() as f64 }
    }

    pub(super) fn into_parts(self) -> ProfileParts {
        ProfileParts { models: self.models, vectors: self.vectors, format: self.format, cells: self.cells }
    }
}

/// The columns of a [`Profile`].
pub(super) struct ProfileParts {
    pub(super) models: Vec<String>,
    pub(super) vectors: Vec<f32>,
    pub(super) format: Vec<[f64; FORMAT_NUMBERS]>,
    pub(super) cells: Vec<Option<ProfileCell>>,
}

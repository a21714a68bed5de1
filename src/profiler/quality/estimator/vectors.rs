//! Prompt vectors and the search for the nearest of them.
//!
//! A vector is the embedding beside the z-scored format numbers, scaled by 1/√14; the squared distance
//! d² of two vectors gives the similarity s′ = 1 − d²/2: the cosine of the embeddings minus a penalty
//! for differing formats.

use sha2::{Digest as _, Sha256};

use crate::profiler::quality::embedder::EMBEDDING_DIMENSIONS;
use crate::profiler::quality::estimator::profile::VECTOR_STRIDE;
use crate::profiler::quality::format::FORMAT_NUMBERS;

/// z-scores are clipped here, so that one odd message does not outweigh its meaning.
const Z_SCORE_MAX: f64 = 4.0;
/// Added to the standard deviation, for formats that never vary.
const DEVIATION_MIN: f64 = 1e-6;
const LANES: usize = 16;

/// One prompt vector, padded with zeros.
pub type PromptVector = [f32; VECTOR_STRIDE];

/// A profiled prompt and its squared distance to the one asked about.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Neighbour {
    /// Row in the profile.
    pub row: u32,
    /// d², not negative.
    pub squared_distance: f32,
}

impl Neighbour {
    /// s′ = 1 − d²/2.
    #[must_use]
    pub fn similarity(&self) -> f64 {
        1.0 - f64::from(self.squared_distance) / 2.0
    }

    /// Nearest first; of equals the first row.
    pub(super) fn order(&self, other: &Self) -> std::cmp::Ordering {
        self.squared_distance.total_cmp(&other.squared_distance).then(self.row.cmp(&other.row))
    }
}

/// How format numbers become part of a vector.
#[derive(Debug, Clone, PartialEq)]
pub struct FormatScaling {
    mean: [f64; FORMAT_NUMBERS],
    deviation: [f64; FORMAT_NUMBERS],
}

impl FormatScaling {
    /// Mean and (population) standard deviation over `rows`.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "row counts stay far below 2^52")]
    pub fn fit(rows: &[[f64; FORMAT_NUMBERS]]) -> Self {
        let n = rows.len().max(1) as f64;
        let average = |f: &dyn Fn(&[f64; FORMAT_NUMBERS]) -> f64| rows.iter().map(f).sum::<f64>() / n;
        let mean = std::array::from_fn(|i| average(&|row| row[i]));
        let deviation =
            std::array::from_fn(|i| average(&|row| (row[i] - mean[i]).powi(2)).sqrt() + DEVIATION_MIN);
        Self { mean, deviation }
    }

    #[expect(clippy::cast_possible_truncation, reason = "vectors are single precision by design")]
    fn scale(&self, numbers: &[f64; FORMAT_NUMBERS]) -> [f32; FORMAT_NUMBERS] {
        const SCALE: f64 = FORMAT_NUMBERS as f64;
        std::array::from_fn(|i| {
            let z = (numbers[i] - self.mean[i]) / self.deviation[i];
            (z.clamp(-Z_SCORE_MAX, Z_SCORE_MAX) / SCALE.sqrt()) as f32
        })
    }
}

/// N prompt vectors, searched exactly.
#[derive(Debug, Clone)]
pub struct VectorMatrix {
    /// N × [`VECTOR_STRIDE`].
    rows: Vec<f32>,
    squared_norms: Vec<f32>,
    scaling: Option<FormatScaling>,
}

impl VectorMatrix {
    /// Completes `rows` (N × [`VECTOR_STRIDE`], embeddings filled in) with the scaled `format` numbers.
    /// Without `scaling` the format does not count and distances are those of the embeddings.
    pub(super) fn new(
        mut rows: Vec<f32>,
        format: &[[f64; FORMAT_NUMBERS]],
        scaling: Option<FormatScaling>,
    ) -> Self {
        if let Some(scaling) = &scaling {
            for (row, numbers) in rows.chunks_exact_mut(VECTOR_STRIDE).zip(format) {
                row[EMBEDDING_DIMENSIONS..][..FORMAT_NUMBERS].copy_from_slice(&scaling.scale(numbers));
            }
        }
        let squared_norms = rows.chunks_exact(VECTOR_STRIDE).map(|row| dot(row, row)).collect();
        Self { rows, squared_norms, scaling }
    }

    /// N.
    #[must_use]
    pub fn len(&self) -> usize {
        self.squared_norms.len()
    }

    /// Whether there is no vector.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.squared_norms.is_empty()
    }

    /// Vector `row`, padding included.
    pub(super) fn row(&self, row: usize) -> &PromptVector {
        &self.rows.as_chunks().0[row]
    }

    /// Forgets the rows: there is an index that holds them. Nothing is found here any more.
    pub(super) fn give_up_rows(&mut self) {
        self.rows = Vec::new();
    }

    /// SHA-256 of all vectors, in hexadecimal.
    pub(super) fn sha256(&self) -> String {
        let mut hasher = Sha256::new();
        let mut bytes = [0; VECTOR_STRIDE * size_of::<f32>()];
        for row in self.rows.as_chunks::<VECTOR_STRIDE>().0 {
            for (number, place) in row.iter().zip(bytes.as_chunks_mut().0) {
                *place = number.to_le_bytes();
            }
            hasher.update(bytes);
        }
        hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The vector of a message.
    #[must_use]
    pub fn vector(
        &self,
        embedding: &[f32; EMBEDDING_DIMENSIONS],
        format: &[f64; FORMAT_NUMBERS],
    ) -> PromptVector {
        let mut vector = [0.0; VECTOR_STRIDE];
        vector[..EMBEDDING_DIMENSIONS].copy_from_slice(embedding);
        if let Some(scaling) = &self.scaling {
            vector[EMBEDDING_DIMENSIONS..][..FORMAT_NUMBERS].copy_from_slice(&scaling.scale(format));
        }
        vector
    }

    /// Leaves the `k` nearest rows in `found`, nearest first up to `sorted`, the rest in no order.
    pub fn nearest(&self, query: &PromptVector, k: usize, sorted: usize, found: &mut Vec<Neighbour>) {
        let query_norm = dot(query, query);
        found.clear();
        found.extend((0u32..).zip(self.rows.chunks_exact(VECTOR_STRIDE)).zip(&self.squared_norms).map(
            |((row, vector), norm)| {
                let squared_distance = (query_norm + norm - 2.0 * dot(query, vector)).max(0.0);
                Neighbour { row, squared_distance }
            },
        ));
        keep_nearest(found, k, sorted);
    }
}

/// Shortens `found` to its `k` nearest, nearest first up to `sorted`.
pub(in crate::profiler::quality) fn keep_nearest(found: &mut Vec<Neighbour>, k: usize, sorted: usize) {
    for part in [k, sorted] {
        if part > 0 && part < found.len() {
            found.select_nth_unstable_by(part - 1, Neighbour::order);
        }
        if part == k {
            found.truncate(k);
        }
    }
    let sorted = sorted.min(found.len());
    found[..sorted].sort_unstable_by(Neighbour::order);
}

/// d² of two vectors, summed as [`dot`] sums.
pub(in crate::profiler::quality) fn squared_distance(a: &PromptVector, b: &PromptVector) -> f32 {
    let mut sums = [0.0f32; LANES];
    for (a, b) in a.as_chunks::<LANES>().0.iter().zip(b.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            let difference = a[lane] - b[lane];
            sums[lane] += difference * difference;
        }
    }
    sums.iter().sum()
}

/// Dot product with independent sums, which the compiler turns into SIMD lanes.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    for (a, b) in a.as_chunks::<LANES>().0.iter().zip(b.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unit(axis: usize) -> [f32; EMBEDDING_DIMENSIONS] {
        let mut embedding = [0.0; EMBEDDING_DIMENSIONS];
        embedding[axis] = 1.0;
        embedding
    }

    fn matrix(embeddings: &[[f32; EMBEDDING_DIMENSIONS]]) -> VectorMatrix {
        let mut rows = Vec::new();
        for embedding in embeddings {
            rows.extend_from_slice(embedding);
            rows.resize(rows.len().next_multiple_of(VECTOR_STRIDE), 0.0);
        }
        VectorMatrix::new(rows, &vec![[0.0; FORMAT_NUMBERS]; embeddings.len()], None)
    }

    #[test]
    fn similarity_of_unit_vectors_is_their_cosine() {
        let mut between = unit(0);
        (between[0], between[1]) = (0.6, 0.8);
        let matrix = matrix(&[unit(0), unit(1), between]);
        let mut found = Vec::new();
        matrix.nearest(&matrix.vector(&unit(0), &[0.0; FORMAT_NUMBERS]), 3, 3, &mut found);
        assert_eq!(found.iter().map(|n| n.row).collect::<Vec<_>>(), [0, 2, 1]);
        for (neighbour, cosine) in found.iter().zip([1.0, 0.6, 0.0]) {
            assert!((neighbour.similarity() - cosine).abs() < 1e-6, "{neighbour:?}");
        }
    }

    #[test]
    fn format_numbers_are_z_scored_clipped_and_scaled() {
        let mut rows = [[1.0; FORMAT_NUMBERS]; 4];
        for (row, value) in rows.iter_mut().zip([0.0, 0.0, 2.0, 2.0]) {
            row[0] = value;
        }
        let scaling = FormatScaling::fit(&rows);
        let mut numbers = [1.0; FORMAT_NUMBERS];
        numbers[0] = 3.0;
        numbers[1] = 2.0;
        // Mean 1 and deviation 1: z = 2. Constant column: deviation 1e-6, z clipped to 4.
        let scaled = scaling.scale(&numbers);
        let root = f64::sqrt(14.0);
        assert!((f64::from(scaled[0]) - 2.0 / root).abs() < 1e-5, "{scaled:?}");
        assert!((f64::from(scaled[1]) - 4.0 / root).abs() < 1e-5, "{scaled:?}");
        assert!(scaled[2].abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn keeps_exactly_the_nearest(
            distances in prop::collection::vec(0.0f32..4.0, 0..60),
            k in 0..70usize,
            sorted in 0..20usize,
        ) {
            let mut found: Vec<_> =
                (0u32..).zip(&distances).map(|(row, d)| Neighbour { row, squared_distance: *d }).collect();
            let mut all = found.clone();
            all.sort_by(Neighbour::order);
            keep_nearest(&mut found, k, sorted);
            let k = k.min(all.len());
            let sorted = sorted.min(k);
            prop_assert_eq!(&found[..sorted], &all[..sorted]);
            found.sort_by(Neighbour::order);
            prop_assert_eq!(&found[..], &all[..k]);
        }
    }
}

//! k-means over prompt embeddings: the prompt clusters of UniRoute.

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

const ROUNDS_MAX: usize = 50;

/// K cluster centres.
#[derive(Debug, Clone, PartialEq)]
pub struct KMeans {
    centres: Vec<Vec<f32>>,
}

impl KMeans {
    /// Clusters `rows` (all of one length, at least one) into at most `k` groups: k-means++ seeding, then
    /// Lloyd's rounds until nothing moves.
    #[must_use]
    pub fn fit(rows: &[&[f32]], k: usize, rng: &mut ChaCha8Rng) -> Self {
        let mut clusters = Self { centres: seeds(rows, k, rng) };
        let mut of_row = vec![usize::MAX; rows.len()];
        for _ in 0..ROUNDS_MAX {
            let next: Vec<usize> = rows.iter().map(|row| clusters.nearest(row)).collect();
            if next == of_row {
                break;
            }
            of_row = next;
            clusters.move_to_means(rows, &of_row);
        }
        clusters
    }

    /// K.
    #[must_use]
    pub fn len(&self) -> usize {
        self.centres.len()
    }

    /// Whether there is no cluster, which only happens without rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.centres.is_empty()
    }

    /// The cluster with the nearest centre; the first of equals.
    #[must_use]
    pub fn nearest(&self, row: &[f32]) -> usize {
        let distances = self.centres.iter().map(|centre| squared_distance(centre, row)).enumerate();
        distances.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(cluster, _)| cluster)
    }

    /// An empty cluster keeps its centre.
    fn move_to_means(&mut self, rows: &[&[f32]], of_row: &[usize]) {
        let mut sums = vec![vec![0.0_f32; rows.first().map_or(0, |row| row.len())]; self.len()];
        let mut counts = vec![0.0_f32; self.len()];
        for (row, cluster) in rows.iter().zip(of_row) {
            counts[*cluster] += 1.0;
            sums[*cluster].iter_mut().zip(*row).for_each(|(sum, x)| *sum += x);
        }
        for ((centre, sum), count) in self.centres.iter_mut().zip(sums).zip(counts) {
            if count > 0.0 {
                *centre = sum.into_iter().map(|x| x / count).collect();
            }
        }
    }
}

/// k-means++: each further seed is drawn with probability proportional to its squared distance from those
/// there are; fewer than `k` where the rows do not differ enough.
fn seeds(rows: &[&[f32]], k: usize, rng: &mut ChaCha8Rng) -> Vec<Vec<f32>> {
    if rows.is_empty() || k == 0 {
        return Vec::new();
    }
    let mut centres = vec![rows[rng.random_range(0..rows.len())].to_vec()];
    let mut nearest: Vec<f32> = rows.iter().map(|row| squared_distance(row, &centres[0])).collect();
    while centres.len() < k {
        let total: f32 = nearest.iter().sum();
        if total <= 0.0 {
            break;
        }
        let mut left = rng.random::<f32>() * total;
        let drawn = nearest.iter().position(|distance| {
            left -= distance;
            left < 0.0
        });
        let seed = rows[drawn.unwrap_or(rows.len() - 1)];
        centres.push(seed.to_vec());
        for (distance, row) in nearest.iter_mut().zip(rows) {
            *distance = distance.min(squared_distance(row, seed));
        }
    }
    centres
}

fn squared_distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::rng_for;

    #[test]
    fn three_heaps_are_found() {
        let points: Vec<[f32; 2]> = (0..30_u8)
            .map(|i| {
                let (heap, shift) = (i % 3, f32::from(i) / 100.0);
                [[0.0, 0.0], [5.0, 0.0], [0.0, 9.0]][usize::from(heap)].map(|x| x + shift)
            })
            .collect();
        let rows: Vec<&[f32]> = points.iter().map(|p| p.as_slice()).collect();
        let clusters = KMeans::fit(&rows, 3, &mut rng_for(1, 0));
        assert_eq!(clusters, KMeans::fit(&rows, 3, &mut rng_for(1, 0)), "same seed, same clusters");
        for i in 0..30 {
            assert_eq!(clusters.nearest(rows[i]), clusters.nearest(rows[i % 3]), "row {i}");
        }
        assert_ne!(clusters.nearest(rows[0]), clusters.nearest(rows[1]));
        assert_ne!(clusters.nearest(rows[0]), clusters.nearest(rows[2]));
    }

    #[test]
    fn fewer_distinct_rows_than_clusters_is_no_fault() {
        let row = [1.0_f32, 2.0];
        assert_eq!(KMeans::fit(&[&row, &row], 20, &mut rng_for(1, 0)).len(), 1);
        assert!(KMeans::fit(&[], 20, &mut rng_for(1, 0)).is_empty());
    }
}

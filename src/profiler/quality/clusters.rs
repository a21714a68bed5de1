//! k-means over prompt embeddings: the prompt clusters of UniRoute, and how often each destination errs on them.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::profiler::quality::embedder::EMBEDDING_DIMENSIONS;
use crate::profiler::quality::estimator::profile::Profile;
use crate::profiler::quality::params::FleetPriors;

/// Clusters of UniRoute.
pub const CLUSTERS: usize = 20;

const ROUNDS_MAX: usize = 50;

/// Prompts that the centres are fitted to, evenly spread over a larger profile.
const FITTED_ROWS_MAX: usize = 10_000;

/// Seed of the clustering: a property of the profile, the same for every run.
const SEED: u64 = 0;

/// The clusters of a profile.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptClusters {
    centres: KMeans,
    /// Clusters × M, row-major.
    error: Vec<f64>,
    n_destinations: usize,
}

impl PromptClusters {
    /// Of the destinations of `priors`, which find their scores by model name. The error of a cluster is the mean loss
    /// of its prompts, of all prompts where none of its was scored, and the prior's where there are no scores at all.
    #[must_use]
    pub fn new(profile: &Profile, priors: &FleetPriors) -> Self {
        let step = profile.len().div_ceil(FITTED_ROWS_MAX).max(1);
        let fitted: Vec<&[f32]> =
            (0..profile.len()).step_by(step).map(|row| profile.embedding(row).as_slice()).collect();
        let centres = KMeans::fit(&fitted, CLUSTERS, &mut ChaCha8Rng::seed_from_u64(SEED));
        // Without a prompt there is one cluster of none.
        let mut rows_of = vec![Vec::new(); centres.len().max(1)];
        for row in 0..profile.len() {
            rows_of[centres.nearest(profile.embedding(row))].push(row);
        }
        let all: Vec<usize> = (0..profile.len()).collect();
        let mean_loss = |rows: &[usize], column: usize| {
            let losses =
                rows.iter().filter_map(|row| Some(1.0 - f64::from(profile.cells(*row)[column]?.score)));
            let (n, sum) = losses.fold((0.0, 0.0), |(n, sum), loss| (n + 1.0, sum + loss));
            (n > 0.0).then(|| sum / n)
        };
        let overall: Vec<(Option<usize>, f64)> = priors
            .destinations
            .iter()
            .map(|prior| {
                let column = profile.models().iter().position(|name| **name == *prior.model);
                let loss = column.and_then(|column| mean_loss(&all, column));
                (column, loss.unwrap_or(1.0 - prior.quality.get()))
            })
            .collect();
        let error = rows_of
            .iter()
            .flat_map(|rows| overall.iter().map(move |(column, overall)| (rows, column, overall)))
            .map(|(rows, column, overall)| column.and_then(|c| mean_loss(rows, c)).unwrap_or(*overall))
            .collect();
        Self { centres, error, n_destinations: priors.destinations.len() }
    }

    /// The cluster of a prompt.
    #[must_use]
    pub fn of(&self, embedding: &[f32; EMBEDDING_DIMENSIONS]) -> usize {
        self.centres.nearest(embedding)
    }

    /// Mean loss per cluster and destination, row-major.
    #[must_use]
    pub fn error(&self) -> &[f64] {
        &self.error
    }

    /// Mean loss of a cluster at the M destinations.
    #[must_use]
    pub fn error_of(&self, cluster: usize) -> &[f64] {
        &self.error[cluster * self.n_destinations..][..self.n_destinations]
    }
}

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
    use crate::profiler::quality::estimator::profile::ProfileCell;
    use crate::profiler::quality::format::FORMAT_NUMBERS;
    use crate::profiler::quality::params::DestinationPrior;
    use crate::units::{Quality, Tokens};

    fn rng() -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(1)
    }

    #[test]
    fn three_heaps_are_found() {
        let points: Vec<[f32; 2]> = (0..30_u8)
            .map(|i| {
                let (heap, shift) = (i % 3, f32::from(i) / 100.0);
                [[0.0, 0.0], [5.0, 0.0], [0.0, 9.0]][usize::from(heap)].map(|x| x + shift)
            })
            .collect();
        let rows: Vec<&[f32]> = points.iter().map(|p| p.as_slice()).collect();
        let clusters = KMeans::fit(&rows, 3, &mut rng());
        assert_eq!(clusters, KMeans::fit(&rows, 3, &mut rng()), "same seed, same clusters");
        for i in 0..30 {
            assert_eq!(clusters.nearest(rows[i]), clusters.nearest(rows[i % 3]), "row {i}");
        }
        assert_ne!(clusters.nearest(rows[0]), clusters.nearest(rows[1]));
        assert_ne!(clusters.nearest(rows[0]), clusters.nearest(rows[2]));
    }

    #[test]
    fn fewer_distinct_rows_than_clusters_is_no_fault() {
        let row = [1.0_f32, 2.0];
        assert_eq!(KMeans::fit(&[&row, &row], 20, &mut rng()).len(), 1);
        assert!(KMeans::fit(&[], 20, &mut rng()).is_empty());
    }

    #[test]
    fn errors_are_those_of_the_cluster_where_it_was_scored() {
        let mut profile = Profile::new(vec!["m".into(), "n".into()]);
        let unit = |axis: usize| {
            let mut embedding = [0.0; EMBEDDING_DIMENSIONS];
            embedding[axis] = 1.0;
            embedding
        };
        let cell = |score: f32| Some(ProfileCell { score, completion_tokens: None });
        profile.push(&unit(0), [0.0; FORMAT_NUMBERS], &[cell(1.0), cell(0.25)]);
        profile.push(&unit(0), [0.0; FORMAT_NUMBERS], &[cell(0.5), None]);
        profile.push(&unit(1), [0.0; FORMAT_NUMBERS], &[cell(0.0), None]);
        let prior = |model: &str| DestinationPrior {
            model: model.into(),
            quality: Quality(0.6),
            completion_tokens: Tokens(100.0),
        };
        let priors = FleetPriors { destinations: ["m", "n", "x"].map(prior).to_vec() };
        let clusters = PromptClusters::new(&profile, &priors);
        assert_eq!(clusters.error_of(clusters.of(&unit(0))), [0.25, 0.75, 0.4]);
        assert_eq!(clusters.error_of(clusters.of(&unit(1))), [1.0, 0.75, 0.4], "n: as everywhere");
        let none = PromptClusters::new(&Profile::new(vec!["m".into()]), &priors);
        assert_eq!(none.error_of(none.of(&unit(0))), [0.4, 0.4, 0.4]);
    }
}

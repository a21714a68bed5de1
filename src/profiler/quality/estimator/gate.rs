//! How far a prompt may lie from the profiled ones before the mean is the better prediction (`ood: mean`).
//!
//! Out of domain nothing retrieved beats the mean. The profile itself says what is far: with s₅ the mean s′ of a
//! prompt's five nearest neighbours, trust rises from 0 to 1 between the 1 % and the 10 % quantile of s₅ over the
//! profiled prompts, each without itself; q̂ becomes μ_d + trust · (q̂ − μ_d).

use crate::profiler::quality::estimator::vectors::Neighbour;
use crate::profiler::quality::estimator::{Estimator, Scratch};
use crate::statistics::quantile;

/// Neighbours whose similarity says how far a prompt is.
pub(super) const GATE_NEIGHBOURS: usize = 5;

/// Quantiles of s₅ between which the gate opens.
const CLOSED_QUANTILE: f64 = 0.01;
const OPEN_QUANTILE: f64 = 0.10;

/// Prompts that the quantiles are of, evenly spread over the profile: enough for the hundredth.
const SAMPLE_ROWS: usize = 2_000;

/// Trust as a function of similarity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gate {
    closed_at: f64,
    open_at: f64,
}

impl Gate {
    /// That of the profile behind `estimator`; open everywhere for a profile too small to say anything.
    pub(super) fn fit(estimator: &Estimator) -> Self {
        let n = estimator.rows();
        let mut scratch = Scratch::default();
        let step = n.div_ceil(SAMPLE_ROWS).max(1);
        let similarity = |row| mean_similarity(estimator.nearest_others(row, GATE_NEIGHBOURS, &mut scratch));
        let mut similarities: Vec<f64> = (0..n).step_by(step).filter_map(similarity).collect();
        similarities.sort_unstable_by(f64::total_cmp);
        if similarities.is_empty() {
            return Self { closed_at: f64::NEG_INFINITY, open_at: f64::NEG_INFINITY };
        }
        Self {
            closed_at: quantile(&similarities, CLOSED_QUANTILE),
            open_at: quantile(&similarities, OPEN_QUANTILE),
        }
    }

    /// Share of the neighbours in q̂, in `[0, 1]`; the nearest come first in `neighbours`.
    #[must_use]
    pub fn trust(&self, neighbours: &[Neighbour]) -> f64 {
        let Some(similarity) = mean_similarity(neighbours) else { return 0.0 };
        if similarity >= self.open_at {
            1.0
        } else {
            // closed_at < open_at here, or the similarity would be below neither.
            ((similarity - self.closed_at) / (self.open_at - self.closed_at)).clamp(0.0, 1.0)
        }
    }
}

fn mean_similarity(neighbours: &[Neighbour]) -> Option<f64> {
    let nearest = &neighbours[..neighbours.len().min(GATE_NEIGHBOURS)];
    let sum: f64 = nearest.iter().map(Neighbour::similarity).sum();
    (!nearest.is_empty()).then(|| sum / nearest.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(similarity: f32) -> Neighbour {
        Neighbour { row: 0, squared_distance: 2.0 * (1.0 - similarity) }
    }

    #[test]
    fn trust_rises_between_the_two_quantiles() {
        let gate = Gate { closed_at: 0.2, open_at: 0.6 };
        let trust = |similarity: f32| gate.trust(&[at(similarity); 7]);
        for (similarity, expected) in [(0.1, 0.0), (0.2, 0.0), (0.4, 0.5), (0.6, 1.0), (0.9, 1.0)] {
            assert!((trust(similarity) - expected).abs() < 1e-6, "{similarity}");
        }
        // Only the five nearest count.
        assert!((gate.trust(&[at(0.9), at(0.9), at(0.9), at(0.9), at(0.9), at(-1.0)]) - 1.0).abs() < 1e-9);
        assert!(gate.trust(&[]).abs() < 1e-9);
    }
}

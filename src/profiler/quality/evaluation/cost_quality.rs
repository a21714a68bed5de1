//! What a ranking of models is worth in money: the cost–quality curve and its area.
//!
//! For each λ every prompt goes to the model with the highest q̂ − λ · (mean cost of the model); mean score over mean cost
//! of the choices is a point. The area under the upper, non-decreasing hull of the points, between the mean costs of the
//! cheapest and the dearest model and divided by their distance, is RouterBench's AIQ ("average improvement in quality").

use crate::profiler::quality::evaluation::JudgedPrompt;
use crate::statistics::mean;

/// λ on costs divided by the largest mean cost, from 10⁻⁴ to 10², and 0.
const LAMBDAS: usize = 121;
const LAMBDA_EXPONENTS: (f64, f64) = (-4.0, 2.0);

/// Mean cost and mean score.
pub type Point = [f64; 2];

/// Choices of every λ on the prompts that have scores and costs of all models.
#[derive(Debug, Clone)]
pub struct CostSweep {
    /// Per λ and prompt, cost and score of the choice.
    choices: Vec<Vec<Point>>,
    /// Per model and prompt.
    models: Vec<Vec<Point>>,
}

impl CostSweep {
    /// `None` where no prompt has costs of all models.
    #[must_use]
    pub fn new(rows: &[JudgedPrompt], n_models: usize) -> Option<Self> {
        let complete: Vec<(Vec<f64>, Vec<Point>)> = rows
            .iter()
            .filter_map(|row| {
                let quality = row.quality.iter().copied().collect::<Option<Vec<f64>>>()?;
                let points = row.truth.iter().map(|truth| {
                    let truth = (*truth)?;
                    Some([truth.cost_usd?, truth.score])
                });
                Some((quality, points.collect::<Option<Vec<Point>>>()?))
            })
            .collect();
        if complete.is_empty() || n_models == 0 {
            return None;
        }
        let models: Vec<Vec<Point>> =
            (0..n_models).map(|model| complete.iter().map(|(_, points)| points[model]).collect()).collect();
        let cost: Vec<f64> = models.iter().map(|points| average(points, None)[0]).collect();
        let dearest = cost.iter().copied().fold(0.0, f64::max);
        let choose = |lambda: f64| {
            let pick = |(quality, points): &(Vec<f64>, Vec<Point>)| {
                let value =
                    |model: usize| quality[model] - lambda * cost[model] / dearest.max(f64::MIN_POSITIVE);
                let best = (1..n_models)
                    .fold(0, |best, model| if value(model) > value(best) { model } else { best });
                points[best]
            };
            complete.iter().map(pick).collect()
        };
        Some(Self { choices: lambdas().map(choose).collect(), models })
    }

    /// Prompts that count.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.models[0].len()
    }

    /// Each model always.
    #[must_use]
    pub fn singles(&self, weights: Option<&[f64]>) -> Vec<Point> {
        self.models.iter().map(|points| average(points, weights)).collect()
    }

    /// The hull of what λ can reach, cheapest first; prompts count by `weights` (once each without).
    #[must_use]
    pub fn curve(&self, weights: Option<&[f64]>) -> Vec<Point> {
        hull(self.choices.iter().map(|points| average(points, weights)).collect())
    }

    /// The area under the curve as a mean score.
    #[must_use]
    pub fn aiq(&self, weights: Option<&[f64]>) -> f64 {
        let costs: Vec<f64> = self.singles(weights).iter().map(|point| point[0]).collect();
        let cheapest = costs.iter().copied().fold(f64::INFINITY, f64::min);
        let dearest = costs.iter().copied().fold(0.0, f64::max);
        area(&self.curve(weights), cheapest, dearest)
    }
}

fn lambdas() -> impl Iterator<Item = f64> {
    let (from, to) = LAMBDA_EXPONENTS;
    let exponent = move |i: usize| from + (to - from) * i as f64 / (LAMBDAS - 1) as f64;
    std::iter::once(0.0).chain((0..LAMBDAS).map(move |i| 10_f64.powf(exponent(i))))
}

fn average(points: &[Point], weights: Option<&[f64]>) -> Point {
    match weights {
        None => [0, 1].map(|axis| mean(&points.iter().map(|point| point[axis]).collect::<Vec<_>>())),
        Some(weights) => {
            let total: f64 = weights.iter().sum();
            [0, 1].map(|axis| points.iter().zip(weights).map(|(p, w)| p[axis] * w).sum::<f64>() / total)
        }
    }
}

/// The upper hull, cheapest first, score never falling.
fn hull(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_by(|a, b| a[0].total_cmp(&b[0]).then(b[1].total_cmp(&a[1])));
    let mut hull: Vec<Point> = Vec::new();
    for point in points {
        if hull.last().is_some_and(|last| point[1] <= last[1]) {
            continue;
        }
        while let [.., a, b] = hull[..] {
            // b lies on or below the line from a to the point.
            if (b[1] - a[1]) * (point[0] - a[0]) > (point[1] - a[1]) * (b[0] - a[0]) {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

/// Mean height of the hull, level beyond its ends, from `lo` to `hi`.
fn area(hull: &[Point], lo: f64, hi: f64) -> f64 {
    let (Some(first), Some(last)) = (hull.first(), hull.last()) else { return 0.0 };
    if hi <= lo {
        return last[1];
    }
    let at = |x: f64| {
        let after = hull.iter().position(|point| point[0] >= x);
        match after {
            Some(0) => first[1],
            None => last[1],
            Some(i) => {
                let (a, b) = (hull[i - 1], hull[i]);
                a[1] + (b[1] - a[1]) * (x - a[0]) / (b[0] - a[0])
            }
        }
    };
    let mut xs: Vec<f64> = hull.iter().map(|point| point[0]).filter(|x| *x > lo && *x < hi).collect();
    xs.insert(0, lo);
    xs.push(hi);
    xs.windows(2).map(|x| (x[1] - x[0]) * f64::midpoint(at(x[0]), at(x[1]))).sum::<f64>() / (hi - lo)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiler::quality::evaluation::Truth;

    fn row(quality: [f64; 2], scores: [f64; 2]) -> JudgedPrompt {
        let truth = |model: usize| {
            let cost_usd = Some([1.0, 3.0][model]);
            Some(Truth { score: scores[model], completion_tokens: None, cost_usd })
        };
        JudgedPrompt {
            quality: quality.map(Some).to_vec(),
            truth: (0..2).map(truth).collect(),
            ..JudgedPrompt::default()
        }
    }

    #[test]
    fn the_area_by_hand() {
        // The dear model is needed for one of two prompts, and the predictions know it.
        let rows = [row([0.9, 0.91], [1.0, 1.0]), row([0.1, 0.9], [0.0, 1.0])];
        let sweep = CostSweep::new(&rows, 2).unwrap();
        // Cheap for both: 0.5 at 1; as predicted: 1 at 2; dear for both is on neither hull nor curve.
        let curve = sweep.curve(None);
        assert_eq!(curve, [[1.0, 0.5], [2.0, 1.0]]);
        // From 1 to 3: mean of 0.75 and 1.
        assert!((sweep.aiq(None) - 0.875).abs() < 1e-12);
        // Only the second prompt: cheap 0 at 1, dear 1 at 3.
        assert!((sweep.aiq(Some(&[0.0, 1.0])) - 0.5).abs() < 1e-12);
        assert_eq!(sweep.singles(None), [[1.0, 0.5], [3.0, 1.0]]);
    }

    #[test]
    fn points_below_the_hull_do_not_count() {
        let points = vec![[3.0, 0.6], [0.0, 0.2], [1.0, 0.3], [2.0, 0.6], [1.5, 0.1]];
        assert_eq!(hull(points), [[0.0, 0.2], [2.0, 0.6]]);
    }

    #[test]
    fn without_costs_there_is_no_curve() {
        let mut without = row([0.5, 0.5], [1.0, 1.0]);
        without.truth[1] = None;
        assert!(CostSweep::new(&[without], 2).is_none());
        assert!(CostSweep::new(&[], 0).is_none());
    }
}

//! Robust statistics of a few noisy measurements.

use serde::Serialize;

/// The middle of `values` (the mean of the two middle ones); `None` where there are none.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The `q`-quantile of `values`, `q` in `[0, 1]`, linear between neighbours; `None` where there are none.
#[must_use]
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let at = q.clamp(0.0, 1.0) * last as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and `last`")]
    let below = at.floor() as usize;
    let above = (below + 1).min(last);
    Some(sorted[below] + (at - at.floor()) * (sorted[above] - sorted[below]))
}

/// Several measurements of one thing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The 10 % quantile.
    pub low: f64,
    /// The 90 % quantile.
    pub high: f64,
    /// How many there are.
    pub n: usize,
}

impl Spread {
    /// Of `values`; `None` where there are none.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        Some(Self {
            median: median(values)?,
            low: quantile(values, 0.1)?,
            high: quantile(values, 0.9)?,
            n: values.len(),
        })
    }
}

/// A line through points.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LineFit {
    /// Units of y per unit of x.
    pub slope: f64,
    /// y at x = 0.
    pub intercept: f64,
    /// Median distance of the points from the line, in units of y.
    pub residual: f64,
}

impl LineFit {
    /// y at `x`.
    #[must_use]
    pub fn at(&self, x: f64) -> f64 {
        self.intercept + self.slope * x
    }
}

/// The Theil–Sen line: the median of the slopes between all pairs, the median of what they leave as the intercept.
/// Almost a third of the points may be arbitrarily wrong. `None` without two different x.
#[must_use]
pub fn theil_sen(points: &[[f64; 2]]) -> Option<LineFit> {
    let mut slopes = Vec::new();
    for (i, [x, y]) in points.iter().enumerate() {
        let others = points[i + 1..].iter().filter(|[other, _]| (other - x).abs() > 0.0);
        slopes.extend(others.map(|[other_x, other_y]| (other_y - y) / (other_x - x)));
    }
    let slope = median(&slopes)?;
    let rests: Vec<f64> = points.iter().map(|[x, y]| y - slope * x).collect();
    let intercept = median(&rests)?;
    let distances: Vec<f64> = rests.iter().map(|rest| (rest - intercept).abs()).collect();
    Some(LineFit { slope, intercept, residual: median(&distances)? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9 * (1.0 + a.abs().max(b.abs()))
    }

    #[test]
    fn quantiles_are_linear_between_neighbours() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert!(close(median(&values).unwrap(), 2.5));
        // Position 0.1 × 3 = 0.3 between 1 and 2.
        assert!(close(quantile(&values, 0.1).unwrap(), 1.3));
        assert!(close(quantile(&values, 1.0).unwrap(), 4.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_line_with_a_wild_point_is_found() {
        // y = 0.5 + 0.01 x, and one point 100 too high.
        let mut points: Vec<_> = [10.0, 20.0, 40.0, 80.0, 160.0].map(|x| [x, 0.5 + 0.01 * x]).to_vec();
        points.push([160.0, 102.1]);
        let line = theil_sen(&points).unwrap();
        // 14 slopes (one pair shares its x): ten of 0.01, four far above.
        assert!(close(line.slope, 0.01), "{line:?}");
        assert!(close(line.intercept, 0.5), "{line:?}");
        assert!(line.residual.abs() < 1e-9 && close(line.at(100.0), 1.5), "{line:?}");
    }

    #[test]
    fn one_x_makes_no_line() {
        assert_eq!(theil_sen(&[[1.0, 2.0], [1.0, 3.0]]), None);
    }

    proptest! {
        #[test]
        fn exact_lines_are_found_exactly(
            slope in -5.0..5.0_f64,
            intercept in -5.0..5.0_f64,
            xs in prop::collection::btree_set(-1_000..1_000_i32, 2..12),
        ) {
            let points: Vec<_> = xs.iter().map(|x| [f64::from(*x), intercept + slope * f64::from(*x)]).collect();
            let line = theil_sen(&points).unwrap();
            prop_assert!((line.slope - slope).abs() < 1e-6);
            prop_assert!((line.intercept - intercept).abs() < 1e-6);
            prop_assert!(line.residual < 1e-6);
        }
    }
}

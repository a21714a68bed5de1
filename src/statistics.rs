//! Means, quantiles and confidence intervals of samples.

/// Half the width of a 95 % interval of a normal mean, in standard errors.
const Z_95: f64 = 1.96;

/// Mean; 0 without samples.
#[must_use]
pub fn mean(samples: &[f64]) -> f64 {
    if samples.is_empty() { 0.0 } else { samples.iter().sum::<f64>() / samples.len() as f64 }
}

/// Half the width of the 95 % confidence interval of the mean (normal approximation); 0 below two samples.
#[must_use]
pub fn ci95_half(samples: &[f64]) -> f64 {
    if samples.len() < 2 {
        return 0.0;
    }
    let (n, mean) = (samples.len() as f64, mean(samples));
    let variance = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
    Z_95 * (variance / n).sqrt()
}

/// The 95 % interval `[lo, hi]` of the mean by Student's t, such as of paired differences; `None` below two samples.
#[must_use]
pub fn t_interval(samples: &[f64]) -> Option<[f64; 2]> {
    if samples.len() < 2 {
        return None;
    }
    let (n, mean) = (samples.len() as f64, mean(samples));
    let variance = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let half = t_95(samples.len() - 1) * (variance / n).sqrt();
    Some([mean - half, mean + half])
}

/// The 97.5 % point of Student's t: by table up to 10 degrees of freedom, from there by Cornish and Fisher's
/// expansion, which is exact to 0.001.
fn t_95(degrees: usize) -> f64 {
    const TABLE: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    if let Some(t) = degrees.checked_sub(1).and_then(|i| TABLE.get(i)) {
        return *t;
    }
    let (z, v) = (1.959_964_f64, degrees as f64);
    let (z3, z5, z7) = (z.powi(3), z.powi(5), z.powi(7));
    z + (z3 + z) / (4.0 * v)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * v.powi(2))
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * v.powi(3))
}

/// The nearest-rank quantile `q` in `[0, 1]` of ascending samples; 0 without samples.
#[must_use]
pub fn quantile(ascending: &[f64], q: f64) -> f64 {
    let n = ascending.len();
    if n == 0 {
        return 0.0;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank from 1 to n")]
    let rank = (q * n as f64).ceil().clamp(1.0, n as f64) as usize;
    ascending[rank - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_samples_by_hand() {
        let samples = [1.0, 2.0, 3.0, 6.0];
        assert!((mean(&samples) - 3.0).abs() < 1e-12);
        // Variance (4 + 1 + 0 + 9) / 3, standard error sqrt(14 / 12).
        assert!((ci95_half(&samples) - 1.96 * (14.0_f64 / 12.0).sqrt()).abs() < 1e-12);
        assert!((quantile(&samples, 0.5) - 2.0).abs() < 1e-12);
        assert!((quantile(&samples, 0.51) - 3.0).abs() < 1e-12);
        assert!((quantile(&samples, 0.99) - 6.0).abs() < 1e-12);
        assert!((quantile(&samples, 0.0) - 1.0).abs() < 1e-12);
        // Differences 1, 2, 6: mean 3, variance 7, t of 2 degrees of freedom.
        let [lo, hi] = t_interval(&[1.0, 2.0, 6.0]).unwrap();
        let half = 4.303 * (7.0_f64 / 3.0).sqrt();
        assert!((hi - 3.0 - half).abs() + (lo - 3.0 + half).abs() < 1e-12);
        assert_eq!(t_interval(&[5.0]), None);
        // From the printed table.
        for (degrees, t) in [(1, 12.706), (10, 2.228), (11, 2.201), (19, 2.093), (60, 2.000)] {
            assert!((t_95(degrees) - t).abs() < 1e-3, "{degrees}: {}", t_95(degrees));
        }
        assert!(mean(&[]).abs() + ci95_half(&[1.0]).abs() + quantile(&[], 0.5).abs() < 1e-12);
    }
}

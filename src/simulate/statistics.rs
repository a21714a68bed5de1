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
        assert!(mean(&[]).abs() + ci95_half(&[1.0]).abs() + quantile(&[], 0.5).abs() < 1e-12);
    }
}

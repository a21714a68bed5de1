//! Filters that follow a figure through noisy samples: moving averages on a logarithmic scale that weigh a sample by
//! how much is known already.
//!
//! A ratio of two is as far from one as a ratio of a half, so figures are followed by the logarithm of their ratio
//! to a reference. Each filter knows its own variance: what is hardly known moves fast, what is known well moves by
//! about a sixth of the way at each sample (an EWMA), and knowledge fades between samples.

/// Variance of one sample of a duration, on the logarithmic scale: about a fifth either way.
const SAMPLE_VARIANCE: f64 = 0.04;
/// Variance that a figure gains from sample to sample.
const FADES_PER_SAMPLE: f64 = 0.0016;
/// Variance that it gains in a second.
const FADES_PER_SECOND: f64 = 1e-4;
/// A sample further off than this many standard deviations counts as so far off: one outlier moves little.
const OUTLIER: f64 = 3.0;

/// How much a figure may differ from its reference, and how well the reference is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Prior {
    /// Standard deviation of the logarithm.
    pub(super) deviation: f64,
    /// Largest factor either way.
    pub(super) drift_max: f64,
}

/// Follows the logarithm of a figure's ratio to its reference.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogFilter {
    prior: Prior,
    ln_ratio: f64,
    variance: f64,
}

impl LogFilter {
    pub(super) fn new(prior: Prior) -> Self {
        Self { prior, ln_ratio: 0.0, variance: prior.deviation.powi(2) }
    }

    /// Takes in a sample of the ratio, positive, `since_s` seconds after the last.
    pub(super) fn observe(&mut self, ratio: f64, since_s: f64) {
        let known = self.variance + FADES_PER_SAMPLE + FADES_PER_SECOND * since_s;
        self.variance = known.min(self.prior.deviation.powi(2));
        let spread = self.variance + SAMPLE_VARIANCE;
        let surprise = clipped(ratio.ln() - self.ln_ratio, spread);
        let gain = self.variance / spread;
        self.ln_ratio = bounded(self.ln_ratio + gain * surprise, self.prior.drift_max);
        self.variance *= 1.0 - gain;
    }

    /// The ratio to the reference.
    pub(super) fn ratio(&self) -> f64 {
        self.ln_ratio.exp()
    }
}

/// Follows how long a token takes: `(1 + a (n − 1)) / r1` with n requests in company.
///
/// An extended Kalman filter over the logarithms of `1/r1` and of `a`, relative to a reference. A slow sample in
/// little company says that r1 is lower; one in much company may be due to either, and is shared out by what is
/// known of both.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecodeFilter {
    reference: Decode,
    priors: [Prior; 2],
    /// Logarithms of the ratios: of the time of a token alone, and of the slowdown.
    state: [f64; 2],
    /// Their variances and the covariance.
    variance: [f64; 2],
    covariance: f64,
}

/// Generation speed of a destination.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Decode {
    /// r1: tokens a second of one request alone.
    pub(super) alone_tps: f64,
    /// a.
    pub(super) slowdown: f64,
}

impl Decode {
    /// Seconds that a token of a request takes in a company of `n`, itself included; at least 1.
    pub(super) fn token_time(self, n: f64) -> f64 {
        (1.0 + self.slowdown * (n - 1.0).max(0.0)) / self.alone_tps
    }
}

impl DecodeFilter {
    /// `priors` of the speed alone and of the slowdown.
    pub(super) fn new(reference: Decode, priors: [Prior; 2]) -> Self {
        let variance = priors.map(|prior| prior.deviation.powi(2));
        Self { reference, priors, state: [0.0; 2], variance, covariance: 0.0 }
    }

    /// A token took `token_s` seconds in a mean company of `n`; `since_s` seconds after the last sample.
    pub(super) fn observe(&mut self, token_s: f64, n: f64, since_s: f64) {
        let fades = FADES_PER_SAMPLE + FADES_PER_SECOND * since_s;
        for (variance, prior) in self.variance.iter_mut().zip(&self.priors) {
            *variance = (*variance + fades).min(prior.deviation.powi(2));
        }
        let now = self.decode();
        let shared = now.slowdown * (n - 1.0).max(0.0);
        // How the logarithm of the sample answers to both.
        let slope = shared / (1.0 + shared);
        let with_first = self.variance[0] + slope * self.covariance;
        let with_second = self.covariance + slope * self.variance[1];
        let spread = with_first + slope * with_second + SAMPLE_VARIANCE;
        let surprise = clipped((token_s / now.token_time(n)).ln(), spread);
        let gains = [with_first / spread, with_second / spread];
        for ((state, gain), prior) in self.state.iter_mut().zip(gains).zip(&self.priors) {
            *state = bounded(*state + gain * surprise, prior.drift_max);
        }
        self.variance[0] -= gains[0] * with_first;
        self.variance[1] -= gains[1] * with_second;
        self.covariance -= gains[0] * with_second;
    }

    pub(super) fn decode(&self) -> Decode {
        Decode {
            alone_tps: self.reference.alone_tps / self.state[0].exp(),
            slowdown: self.reference.slowdown * self.state[1].exp(),
        }
    }
}

fn clipped(surprise: f64, variance: f64) -> f64 {
    let most = OUTLIER * variance.sqrt();
    surprise.clamp(-most, most)
}

fn bounded(ln_ratio: f64, drift_max: f64) -> f64 {
    let most = drift_max.ln();
    ln_ratio.clamp(-most, most)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GUESS: Prior = Prior { deviation: 1.0, drift_max: 8.0 };
    const MEASURED: Prior = Prior { deviation: 0.2, drift_max: 4.0 };

    #[test]
    fn a_guess_gives_way_to_the_first_samples_and_a_measurement_does_not() {
        let (mut guess, mut measured) = (LogFilter::new(GUESS), LogFilter::new(MEASURED));
        for filter in [&mut guess, &mut measured] {
            filter.observe(0.5, 0.0);
        }
        // Gains 1/1.04 and 0.04/0.08.
        assert!((guess.ratio() - 0.5_f64.powf(1.0 / 1.04)).abs() < 1e-3, "{}", guess.ratio());
        assert!((measured.ratio() - 0.5_f64.powf(0.5)).abs() < 1e-3, "{}", measured.ratio());
        for _ in 0..30 {
            measured.observe(0.5, 1.0);
        }
        assert!((measured.ratio() - 0.5).abs() < 0.005);
        // What is known well moves by a sixth or so of the way.
        measured.observe(0.75, 1.0);
        let moved = (measured.ratio() / 0.5).ln() / 1.5_f64.ln();
        assert!((0.12..0.25).contains(&moved), "{moved}");
    }

    #[test]
    fn an_outlier_counts_as_far_off_and_no_further() {
        let mut filters = [LogFilter::new(MEASURED); 2];
        filters[0].observe(1e-9, 0.0);
        filters[1].observe(0.1, 0.0);
        assert!((filters[0].ratio() - filters[1].ratio()).abs() < 1e-9);
    }

    #[test]
    fn speed_alone_and_slowdown_are_told_apart() {
        let reference = Decode { alone_tps: 100.0, slowdown: 0.05 };
        let truth = Decode { alone_tps: 40.0, slowdown: 0.2 };
        let mut filter = DecodeFilter::new(reference, [GUESS; 2]);
        for n in [1.0, 4.0, 2.0, 8.0, 1.5, 6.0, 3.0].repeat(6) {
            filter.observe(truth.token_time(n), n, 1.0);
        }
        let found = filter.decode();
        assert!((found.alone_tps / 40.0 - 1.0).abs() < 0.03, "{found:?}");
        assert!((found.slowdown / 0.2 - 1.0).abs() < 0.1, "{found:?}");
    }

    #[test]
    fn without_company_nothing_is_learnt_of_the_slowdown() {
        let reference = Decode { alone_tps: 100.0, slowdown: 0.05 };
        let mut filter = DecodeFilter::new(reference, [GUESS; 2]);
        for _ in 0..50 {
            filter.observe(0.03, 1.0, 1.0);
        }
        assert!((filter.decode().slowdown - 0.05).abs() < 1e-12);
        assert!((filter.decode().alone_tps - 1.0 / 0.03).abs() < 0.5);
    }

    proptest! {
        #[test]
        fn figures_stay_within_their_bounds_and_the_filter_well_formed(
            samples in prop::collection::vec((1e-6..1e3_f64, 1.0..64.0_f64, 0.0..1e4_f64), 1..100),
        ) {
            let reference = Decode { alone_tps: 100.0, slowdown: 0.05 };
            let mut filter = DecodeFilter::new(reference, [GUESS, MEASURED]);
            for (token_s, n, since_s) in samples {
                filter.observe(token_s, n, since_s);
                let Decode { alone_tps, slowdown } = filter.decode();
                prop_assert!((12.49..=800.1).contains(&alone_tps), "{}", alone_tps);
                prop_assert!((0.0124..=0.2001).contains(&slowdown), "{}", slowdown);
                let [first, second] = filter.variance;
                prop_assert!(first > 0.0 && second > 0.0);
                prop_assert!(filter.covariance.powi(2) <= first * second * (1.0 + 1e-9));
            }
        }
    }
}

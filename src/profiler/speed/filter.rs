//! Filters that follow a figure through noisy samples: moving averages on a logarithmic scale that weigh a sample by
//! how much is known already.
//!
//! A ratio of two is as far from one as a ratio of a half, so figures are followed by the logarithm of their ratio
//! to a reference. Each filter knows its own variance: what is hardly known moves fast; what is known well is an EWMA
//! over half a minute or so, however many samples that brings, for what is known fades with time.

use std::collections::VecDeque;

use crate::units::Tokens;

/// Variance of one sample of a duration, on the logarithmic scale: about a fifth either way.
const SAMPLE_VARIANCE: f64 = 0.04;
/// Variance that a figure gains in a second.
const FADES_PER_SECOND: f64 = 4e-5;
/// Time constant of what is usual for a figure.
const USUAL_IN: f64 = 600.0;
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
    usual: Usual,
}

/// A slow average of a filter's logarithm: of all samples at first, of the last ten minutes later.
#[derive(Debug, Clone, Copy, Default)]
struct Usual {
    ln_ratio: f64,
    n: u32,
}

impl Usual {
    fn observe(&mut self, ln_ratio: f64, since_s: f64) {
        self.n = self.n.saturating_add(1);
        let weight = (1.0 - (-since_s / USUAL_IN).exp()).max(1.0 / f64::from(self.n));
        self.ln_ratio += weight * (ln_ratio - self.ln_ratio);
    }
}

impl LogFilter {
    pub(super) fn new(prior: Prior) -> Self {
        Self { prior, ln_ratio: 0.0, variance: prior.deviation.powi(2), usual: Usual::default() }
    }

    /// Takes in a sample of the ratio, positive, `since_s` seconds after the last.
    pub(super) fn observe(&mut self, ratio: f64, since_s: f64) {
        let known = self.variance + FADES_PER_SECOND * since_s;
        self.variance = known.min(self.prior.deviation.powi(2));
        let spread = self.variance + SAMPLE_VARIANCE;
        let surprise = clipped(ratio.ln() - self.ln_ratio, spread);
        let gain = self.variance / spread;
        self.ln_ratio = bounded(self.ln_ratio + gain * surprise, self.prior.drift_max);
        self.variance *= 1.0 - gain;
        self.usual.observe(self.ln_ratio, since_s);
    }

    /// Nothing has been seen for a while: where less than usual was seen last, moves by `share` of the way back.
    pub(super) fn recover(&mut self, share: f64) {
        self.ln_ratio += share * (self.usual.ln_ratio - self.ln_ratio).max(0.0);
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
    /// Of the time of a token alone.
    usual: Usual,
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
        Self { reference, priors, state: [0.0; 2], variance, covariance: 0.0, usual: Usual::default() }
    }

    /// A token took `token_s` seconds in a mean company of `n`; `since_s` seconds after the last sample.
    pub(super) fn observe(&mut self, token_s: f64, n: f64, since_s: f64) {
        let fades = FADES_PER_SECOND * since_s;
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
        self.usual.observe(self.state[0], since_s);
    }

    /// Nothing has been seen for a while: where it was slower than usual last, moves by `share` of the way back.
    pub(super) fn recover(&mut self, share: f64) {
        self.state[0] -= share * (self.state[0] - self.usual.ln_ratio).max(0.0);
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

/// What even a prompt that nobody has sent before finds in the cache: the lower quartile of the last few.
#[derive(Debug, Clone, Default)]
pub(super) struct CachedFloor {
    last: VecDeque<f64>,
}

impl CachedFloor {
    /// Prompts looked at.
    const MEMORY: usize = 32;
    /// Fewer say nothing.
    const SAMPLES_MIN: usize = 3;

    pub(super) fn observe(&mut self, cached: Tokens) {
        if self.last.len() == Self::MEMORY {
            self.last.pop_front();
        }
        self.last.push_back(cached.0);
    }

    pub(super) fn floor(&self) -> Tokens {
        if self.last.len() < Self::SAMPLES_MIN {
            return Tokens::ZERO;
        }
        let mut sorted: Vec<f64> = self.last.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        Tokens(sorted[sorted.len() / 4])
    }
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
        assert!((measured.ratio() - 0.5).abs() < 0.02, "{}", measured.ratio());
        // What is known well moves little.
        let known = measured.ratio();
        measured.observe(0.75, 1.0);
        let moved = (measured.ratio() / known).ln() / (0.75 / known).ln();
        assert!((0.02..0.06).contains(&moved), "{moved}");
    }

    #[test]
    fn an_outlier_counts_as_far_off_and_no_further() {
        let mut filters = [LogFilter::new(MEASURED); 2];
        filters[0].observe(1e-9, 0.0);
        filters[1].observe(0.1, 0.0);
        assert!((filters[0].ratio() - filters[1].ratio()).abs() < 1e-9);
    }

    #[test]
    fn a_figure_takes_half_a_minute_to_follow_however_many_samples_come() {
        for per_second in [1, 10] {
            let mut filter = LogFilter::new(MEASURED);
            let mut run = |ratio: f64, seconds: u32| {
                (0..seconds * per_second).for_each(|_| filter.observe(ratio, 1.0 / f64::from(per_second)));
                filter.ratio().ln() / 0.5_f64.ln()
            };
            assert!(run(1.0, 100).abs() < 1e-9);
            let (soon, later) = (run(0.5, 3), run(0.5, 117));
            assert!(soon < 0.3 && later > 0.9, "{per_second}: {soon} {later}");
        }
    }

    #[test]
    fn what_was_slower_than_usual_recovers_when_nothing_is_seen() {
        let reference = Decode { alone_tps: 100.0, slowdown: 0.05 };
        let (mut filter, mut decode) = (LogFilter::new(GUESS), DecodeFilter::new(reference, [GUESS; 2]));
        for (ratio, n) in [(0.5, 600), (0.1, 60)] {
            for _ in 0..n {
                filter.observe(ratio, 1.0);
                decode.observe(1.0 / (100.0 * ratio), 1.0, 1.0);
            }
        }
        assert!(filter.ratio() < 0.2 && decode.decode().alone_tps < 20.0);
        for _ in 0..100 {
            filter.recover(0.05);
            decode.recover(0.05);
        }
        assert!((0.4..0.51).contains(&filter.ratio()), "{}", filter.ratio());
        assert!((40.0..51.0).contains(&decode.decode().alone_tps));
        // What is faster than usual stays so.
        (0..60).for_each(|_| filter.observe(2.0, 1.0));
        let fast = filter.ratio();
        filter.recover(0.5);
        assert!((filter.ratio() - fast).abs() < 1e-12 && fast > 1.0);
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

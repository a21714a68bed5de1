//! When requests arrive.

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use crate::units::Seconds;

/// Requests of one burst.
pub const BURST: usize = 30;

/// On and off phases have exponential lengths of these means, seconds.
const PHASES_S: [f64; 2] = [6.0, 9.0];
/// Arrival rate in each, in multiples of the mean rate: 6 · 2 + 9 / 3 = 15.
const PHASE_RATES: [f64; 2] = [2.0, 1.0 / 3.0];

/// How arrivals are spread over time.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrivals {
    /// One by one, with exponential gaps.
    Poisson,
    /// Bursts of [`BURST`] at the same instant, with exponential gaps between bursts and the same mean rate.
    Bursty,
    /// Phases of 6 s on average at twice the mean rate, between them phases of 9 s at a third of it; in each, one by
    /// one with exponential gaps.
    OnOff,
    /// At these times, ascending, not negative.
    At(Vec<Seconds>),
}

impl Arrivals {
    /// `n` arrival times at `per_s` requests a second on average, ascending from 0. [`Arrivals::At`] has a
    /// rate of its own and at most as many as it lists.
    #[must_use]
    pub fn times(&self, n: usize, per_s: f64, rng: &mut ChaCha8Rng) -> Vec<Seconds> {
        let burst = match self {
            Self::At(times) => return times.iter().copied().take(n).collect(),
            Self::Poisson => 1,
            Self::Bursty => BURST,
            Self::OnOff => return on_off_times(n, per_s, rng),
        };
        let mut now_s = 0.0;
        let mut times = Vec::with_capacity(n + burst);
        while times.len() < n {
            now_s += exponential(burst as f64 / per_s, rng);
            times.extend(std::iter::repeat_n(Seconds(now_s), burst));
        }
        times.truncate(n);
        times
    }
}

fn exponential(mean: f64, rng: &mut ChaCha8Rng) -> f64 {
    -(1.0 - rng.random::<f64>()).ln() * mean
}

fn on_off_times(n: usize, per_s: f64, rng: &mut ChaCha8Rng) -> Vec<Seconds> {
    let mut times = Vec::with_capacity(n);
    let (mut now_s, mut phase) = (0.0, 0);
    let mut until_s = exponential(PHASES_S[phase], rng);
    while times.len() < n {
        let next_s = now_s + exponential(1.0 / (per_s * PHASE_RATES[phase]), rng);
        if next_s <= until_s {
            now_s = next_s;
            times.push(Seconds(now_s));
        } else {
            // Exponential gaps have no memory: the rest is drawn again at the other rate.
            now_s = until_s;
            phase = 1 - phase;
            until_s += exponential(PHASES_S[phase], rng);
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::rng_for;

    #[test]
    fn all_processes_keep_the_rate() {
        for arrivals in [Arrivals::Poisson, Arrivals::Bursty, Arrivals::OnOff] {
            let times = arrivals.times(30_000, 20.0, &mut rng_for(3, 0));
            assert!(times.windows(2).all(|pair| pair[0].0 <= pair[1].0));
            let rate = 30_000.0 / times[29_999].0;
            // 1,000 bursts: standard error about 3 %; 200 phases: about 8 %.
            assert!((rate / 20.0 - 1.0).abs() < 0.2, "{arrivals:?}: {rate}");
        }
    }

    #[test]
    fn on_off_arrivals_crowd() {
        // In windows of 3 s the count of a Poisson process has a variance of its mean; phases add to it.
        let dispersion = |arrivals: Arrivals| {
            let times = arrivals.times(30_000, 20.0, &mut rng_for(5, 0));
            let mut counts = vec![0.0; 400];
            for at in times.iter().filter(|at| at.0 < 1_200.0) {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 399")]
                let window = (at.0 / 3.0) as usize;
                counts[window] += 1.0;
            }
            let mean = counts.iter().sum::<f64>() / 400.0;
            counts.iter().map(|n| (n - mean) * (n - mean)).sum::<f64>() / 400.0 / mean
        };
        assert!((dispersion(Arrivals::Poisson) - 1.0).abs() < 0.3);
        assert!(dispersion(Arrivals::OnOff) > 10.0);
    }

    #[test]
    fn bursts_come_at_once() {
        let times = Arrivals::Bursty.times(BURST + 1, 5.0, &mut rng_for(1, 0));
        assert_eq!(times[0], times[BURST - 1]);
        assert!(times[BURST].0 > times[0].0);
    }
}

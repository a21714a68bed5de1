//! When requests arrive.

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use crate::units::Seconds;

/// Requests of one burst.
pub const BURST: usize = 30;

/// How arrivals are spread over time.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrivals {
    /// One by one, with exponential gaps.
    Poisson,
    /// Bursts of [`BURST`] at the same instant, with exponential gaps between bursts and the same mean rate.
    Bursty,
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
        };
        let mut now_s = 0.0;
        let mut times = Vec::with_capacity(n + burst);
        while times.len() < n {
            now_s += -(1.0 - rng.random::<f64>()).ln() * burst as f64 / per_s;
            times.extend(std::iter::repeat_n(Seconds(now_s), burst));
        }
        times.truncate(n);
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::rng_for;

    #[test]
    fn both_processes_keep_the_rate() {
        for arrivals in [Arrivals::Poisson, Arrivals::Bursty] {
            let times = arrivals.times(30_000, 20.0, &mut rng_for(3, 0));
            assert!(times.windows(2).all(|pair| pair[0].0 <= pair[1].0));
            let rate = 30_000.0 / times[29_999].0;
            // 1,000 bursts: standard error about 3 %.
            assert!((rate / 20.0 - 1.0).abs() < 0.1, "{arrivals:?}: {rate}");
        }
    }

    #[test]
    fn bursts_come_at_once() {
        let times = Arrivals::Bursty.times(BURST + 1, 5.0, &mut rng_for(1, 0));
        assert_eq!(times[0], times[BURST - 1]);
        assert!(times[BURST].0 > times[0].0);
    }
}

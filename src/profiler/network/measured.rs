//! Averages of measured figures that forget with age.

use std::time::Duration;

use tokio::time::Instant;

use crate::units::{BytesPerSec, Seconds};

/// Age after which a figure has lost most of its weight against a new sample (1 − 1/e of it).
const FORGETS_IN: Duration = Duration::from_secs(300);
/// Least weight of a new sample, however soon it comes after the last.
const LEAST_WEIGHT: f64 = 0.2;

/// A figure averaged over samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured<T> {
    /// The average.
    pub value: T,
    /// When the last sample was taken.
    pub at: Instant,
    /// Samples so far.
    pub samples: u32,
}

/// What can be averaged.
pub trait Quantity: Copy {
    /// Its number.
    fn raw(self) -> f64;
    /// The quantity of that number.
    fn from_raw(raw: f64) -> Self;
}

impl Quantity for Seconds {
    fn raw(self) -> f64 {
        self.0
    }

    fn from_raw(raw: f64) -> Self {
        Self(raw)
    }
}

impl Quantity for BytesPerSec {
    fn raw(self) -> f64 {
        self.0
    }

    fn from_raw(raw: f64) -> Self {
        Self(raw)
    }
}

impl<T: Quantity> Measured<T> {
    /// The average once `sample` is in it: an EWMA whose weight is `max(1/n, 0.2, 1 − exp(−age / 300 s))`, n
    /// the samples with this one and age the time since the last. The first sample stands alone.
    #[must_use]
    pub fn with(previous: Option<Self>, sample: T, now: Instant) -> Self {
        let Some(Self { value, at, samples }) = previous else {
            return Self { value: sample, at: now, samples: 1 };
        };
        let samples = samples.saturating_add(1);
        let age = now.saturating_duration_since(at).as_secs_f64() / FORGETS_IN.as_secs_f64();
        let weight = (1.0 / f64::from(samples)).max(LEAST_WEIGHT).max(1.0 - (-age).exp());
        let value = value.raw() + weight * (sample.raw() - value.raw());
        Self { value: T::from_raw(value), at: now, samples }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn few_samples_are_averaged_and_many_move_a_fifth_of_the_way() {
        let now = Instant::now();
        let mut figure = None;
        for (sample, expected) in [(10.0, 10.0), (20.0, 15.0), (30.0, 20.0), (40.0, 25.0), (50.0, 30.0)] {
            let next = Measured::with(figure, Seconds(sample), now);
            assert!((next.value.0 - expected).abs() < 1e-9, "{next:?}");
            figure = Some(next);
        }
        // 1/6 is less than a fifth.
        let next = Measured::with(figure, Seconds(130.0), now);
        assert!((next.value.0 - 50.0).abs() < 1e-9 && next.samples == 6, "{next:?}");
    }

    #[test]
    fn an_old_figure_counts_little() {
        let now = Instant::now();
        let old = Measured { value: Seconds(10.0), at: now, samples: 100 };
        // After 300 s, 1 − 1/e = 0.632 of the way from 10 to 20; after an hour all of it.
        let next = Measured::with(Some(old), Seconds(20.0), now + FORGETS_IN);
        assert!((next.value.0 - 16.321).abs() < 1e-3, "{next:?}");
        let next = Measured::with(Some(old), Seconds(20.0), now + 12 * FORGETS_IN);
        assert!((next.value.0 - 20.0).abs() < 1e-3, "{next:?}");
    }

    proptest! {
        #[test]
        fn an_average_stays_within_its_samples(samples in prop::collection::vec((1e-6..1e6_f64, 0..900_u64), 1..40)) {
            let mut now = Instant::now();
            let mut figure = None;
            for (sample, pause_s) in &samples {
                now += Duration::from_secs(*pause_s);
                figure = Some(Measured::with(figure, BytesPerSec(*sample), now));
            }
            let values = || samples.iter().map(|(sample, _)| *sample);
            let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
            let average = figure.unwrap();
            prop_assert!((least * (1.0 - 1e-9)..=most * (1.0 + 1e-9)).contains(&average.value.0));
            prop_assert_eq!(average.samples as usize, samples.len());
        }
    }
}

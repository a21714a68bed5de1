//! How fast a destination makes progress right now, relative to its figures.
//!
//! Figures follow finished requests; one that got stuck finishes none. So progress is compared with what the
//! figures lead one to expect every half second: tokens of streams that have come, waits that are over, and waits
//! that should be over and are not.

use crate::units::Seconds;

/// Time constant over which progress is compared.
const WINDOW: Seconds = Seconds(2.0);
/// Progress that is taken for granted: next to no evidence says next to nothing.
const GRANTED: Seconds = Seconds(0.25);
/// Least expected progress for a verdict.
const EVIDENCE_MIN: Seconds = Seconds(0.5);
/// A pace between these is the usual one, to which the figures themselves will come: tokens come in bursts, and stand
/// still while prompts are read.
const USUAL: std::ops::RangeInclusive<f64> = 0.55..=1.8;
/// Bounds of the pace.
pub(super) const SLOWEST: f64 = 0.125;
const FASTEST: f64 = 3.0;
/// Time constant with which the pace returns to the usual one where nothing is seen.
const FORGETS_IN: Seconds = Seconds(8.0);

/// Compares progress seen with progress expected.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    expected_s: f64,
    seen_s: f64,
    pace: f64,
}

impl Pace {
    pub(super) const fn new() -> Self {
        Self { expected_s: 0.0, seen_s: 0.0, pace: 1.0 }
    }

    /// Progress of all requests together, in seconds at the usual pace: what was expected, and what was seen.
    pub(super) fn observe(&mut self, expected_s: f64, seen_s: f64) {
        self.expected_s += expected_s;
        self.seen_s += seen_s;
    }

    /// `span` has passed.
    pub(super) fn advance(&mut self, span: Seconds) {
        if self.expected_s >= EVIDENCE_MIN.0 {
            let ratio = (self.seen_s + GRANTED.0) / (self.expected_s + GRANTED.0);
            self.pace = if USUAL.contains(&ratio) { 1.0 } else { ratio.clamp(SLOWEST, FASTEST) };
        } else {
            self.pace += (1.0 - self.pace) * (1.0 - (-span.0 / FORGETS_IN.0).exp());
        }
        let kept = (-span.0 / WINDOW.0).exp();
        self.expected_s *= kept;
        self.seen_s *= kept;
    }

    /// 1 = as the figures say.
    pub(super) const fn pace(&self) -> f64 {
        self.pace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Seconds = Seconds(0.5);

    fn run(pace: &mut Pace, n_streams: f64, speed: f64, seconds: f64) {
        let n_ticks = (seconds / TICK.0).round() as usize;
        for _ in 0..n_ticks {
            pace.observe(n_streams * TICK.0, n_streams * TICK.0 * speed);
            pace.advance(TICK);
        }
    }

    #[test]
    fn a_third_of_the_speed_is_seen_within_three_seconds_and_so_is_its_return() {
        let mut pace = Pace::new();
        run(&mut pace, 2.0, 1.0, 10.0);
        assert!((pace.pace() - 1.0).abs() < 1e-9);
        run(&mut pace, 2.0, 1.0 / 3.0, 3.0);
        assert!((0.3..0.55).contains(&pace.pace()), "{}", pace.pace());
        run(&mut pace, 2.0, 1.0 / 3.0, 20.0);
        assert!((0.33..0.45).contains(&pace.pace()), "{}", pace.pace());
        run(&mut pace, 2.0, 1.0, 3.0);
        assert!((pace.pace() - 1.0).abs() < 1e-9, "{}", pace.pace());
    }

    #[test]
    fn a_single_stream_that_stands_still_is_bounded_and_forgotten_when_it_is_gone() {
        let mut pace = Pace::new();
        run(&mut pace, 1.0, 0.0, 60.0);
        assert!((SLOWEST..0.2).contains(&pace.pace()), "{}", pace.pace());
        run(&mut pace, 0.0, 0.0, 30.0);
        assert!(pace.pace() > 0.95, "{}", pace.pace());
    }

    #[test]
    fn small_differences_are_left_to_the_figures() {
        let mut pace = Pace::new();
        for speed in [0.8, 1.3] {
            run(&mut pace, 4.0, speed, 10.0);
            assert!((pace.pace() - 1.0).abs() < 1e-9, "{speed}");
        }
    }
}

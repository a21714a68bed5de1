//! From what a meter says to the energy of an interval. Pure: time is an argument.

use crate::units::{Joules, Seconds, Watts};

/// No node draws more; whatever says so is broken.
const POWER_MAX: Watts = Watts(100e3);
/// No counter gets further: [`POWER_MAX`] for ten years. DCGM writes 9.2e18 mJ where it knows nothing.
const COUNTER_MAX: Joules = Joules(100e3 * 10.0 * 365.25 * 86_400.0);
/// Sampled power says nothing of what lies between samples further apart than this.
const SAMPLES_APART_MAX: Seconds = Seconds(10.0);

/// What a meter says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Figure {
    /// Energy since some start.
    Counter {
        /// The count.
        total: Joules,
        /// Where the counter begins anew at 0; `None` = it does not.
        wraps_at: Option<Joules>,
    },
    /// Power at this moment.
    Power(Watts),
}

/// The figures of a node's boards added up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Reading {
    /// The sum.
    pub(super) figure: Figure,
    /// Boards in it, at least 1.
    pub(super) n_boards: usize,
}

impl Reading {
    /// Adds up the counters of boards.
    pub(super) fn counters(boards: impl IntoIterator<Item = Joules>) -> Option<Self> {
        let (total, n_boards) = sum(boards.into_iter().map(Joules::get));
        let figure = Figure::Counter { total: Joules(total), wraps_at: None };
        (n_boards > 0).then_some(Self { figure, n_boards })
    }

    /// Adds up the power of boards.
    pub(super) fn powers(boards: impl IntoIterator<Item = Watts>) -> Option<Self> {
        let (watts, n_boards) = sum(boards.into_iter().map(Watts::get));
        (n_boards > 0).then_some(Self { figure: Figure::Power(Watts(watts)), n_boards })
    }

    /// Whether anything could truly be so. A node that runs draws something: 0 W is what some exporters
    /// write where they know nothing.
    pub(super) fn is_plausible(&self) -> bool {
        match self.figure {
            Figure::Counter { total, .. } => (0.0..=COUNTER_MAX.0).contains(&total.0),
            Figure::Power(watts) => watts.0 > 0.0 && watts.0 <= POWER_MAX.0,
        }
    }
}

/// One absurd board makes the sum absurd: NaN, so that no other board can make up for a negative one.
fn sum(boards: impl Iterator<Item = f64>) -> (f64, usize) {
    boards.fold((0.0, 0), |(sum, n), board| (sum + if board < 0.0 { f64::NAN } else { board }, n + 1))
}

/// An interval whose energy is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Interval {
    /// Its beginning.
    pub(super) from: Seconds,
    /// Its end, later than its beginning.
    pub(super) to: Seconds,
    /// What was drawn in it.
    pub(super) energy: Joules,
}

impl Interval {
    /// Mean power.
    pub(super) fn watts(&self) -> Watts {
        Watts(self.energy.0 / (self.to - self.from).0)
    }
}

/// Why a reading was not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dropped {
    /// Nothing draws so much, or less than nothing.
    Absurd,
    /// A counter went back, or counts other boards than before: what was drawn meanwhile is not known.
    Reset,
}

impl Dropped {
    /// Metric label.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Absurd => "absurd",
            Self::Reset => "reset",
        }
    }
}

/// The readings of one meter, one after the other.
#[derive(Debug, Default)]
pub(super) struct Series {
    last: Option<(Seconds, Reading)>,
}

impl Series {
    /// Takes a reading. The interval since the last one that counted, or `None` where there was none or the
    /// counter still stands: exporters refresh more slowly than they are asked, and the energy of the whole
    /// time shows when they do.
    pub(super) fn read(&mut self, now: Seconds, reading: Reading) -> Result<Option<Interval>, Dropped> {
        if !reading.is_plausible() {
            return Err(Dropped::Absurd);
        }
        let Some((from, last)) = self.last.filter(|(from, _)| *from < now) else {
            self.last = Some((now, reading));
            return Ok(None);
        };
        let energy = match (last.figure, reading.figure) {
            (Figure::Power(_), Figure::Power(_)) if (now - from).0 > SAMPLES_APART_MAX.0 => None,
            (Figure::Power(before), Figure::Power(after)) => {
                Some(Watts((before.0 + after.0) / 2.0).over(now - from))
            }
            (Figure::Counter { total: before, .. }, Figure::Counter { total: after, wraps_at }) => {
                match (after - before, wraps_at) {
                    _ if last.n_boards != reading.n_boards => return self.begin_anew(now, reading),
                    (drawn, _) if drawn.0 > 0.0 => Some(drawn),
                    (drawn, _) if drawn.0 >= 0.0 => return Ok(None),
                    (drawn, Some(range)) if (drawn + range).0 >= 0.0 => Some(drawn + range),
                    _ => return self.begin_anew(now, reading),
                }
            }
            _ => None,
        };
        self.last = Some((now, reading));
        let Some(energy) = energy else { return Ok(None) };
        let interval = Interval { from, to: now, energy };
        // A counter that leaps is believed from there on; if the leap was the fault, it comes back with a reset.
        if interval.watts().0 > POWER_MAX.0 { Err(Dropped::Absurd) } else { Ok(Some(interval)) }
    }

    /// Forgets the last reading: the next one begins anew.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }

    fn begin_anew(&mut self, now: Seconds, reading: Reading) -> Result<Option<Interval>, Dropped> {
        self.last = Some((now, reading));
        Err(Dropped::Reset)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counter(total: f64) -> Reading {
        Reading::counters([Joules(total)]).unwrap()
    }

    fn power(watts: f64) -> Reading {
        Reading::powers([Watts(watts)]).unwrap()
    }

    /// Reads everything; what each reading gave.
    fn read(readings: &[(f64, Reading)]) -> Vec<Result<Option<f64>, Dropped>> {
        let mut series = Series::default();
        let mut one =
            |(now, reading)| series.read(Seconds(now), reading).map(|i| i.map(|i| i.energy.0.round()));
        readings.iter().map(|r| one(*r)).collect()
    }

    #[test]
    fn a_counter_gives_differences_and_power_the_mean_over_time() {
        let counted = read(&[(0.0, counter(1e6)), (1.0, counter(1e6 + 250.0)), (3.0, counter(1e6 + 700.0))]);
        assert_eq!(counted, [Ok(None), Ok(Some(250.0)), Ok(Some(450.0))]);
        // (100 + 300) / 2 W over 2 s.
        assert_eq!(read(&[(0.0, power(100.0)), (2.0, power(300.0))]), [Ok(None), Ok(Some(400.0))]);
    }

    #[test]
    fn a_counter_that_stands_is_an_exporter_that_has_not_looked() {
        let mut series = Series::default();
        for (now, total) in [(0.0, 100.0), (1.0, 100.0), (2.0, 100.0)] {
            assert_eq!(series.read(Seconds(now), counter(total)), Ok(None));
        }
        let interval = series.read(Seconds(3.0), counter(1000.0)).unwrap().unwrap();
        assert_eq!(interval, Interval { from: Seconds(0.0), to: Seconds(3.0), energy: Joules(900.0) });
        assert_eq!(interval.watts(), Watts(300.0));
    }

    #[test]
    fn absurd_readings_are_dropped_and_leave_no_trace() {
        for absurd in [counter(9.2e15), counter(-1.0), counter(f64::NAN), counter(f64::INFINITY)] {
            let all = read(&[(0.0, counter(10.0)), (1.0, absurd), (2.0, counter(30.0))]);
            assert_eq!(all, [Ok(None), Err(Dropped::Absurd), Ok(Some(20.0))], "{absurd:?}");
        }
        for absurd in [power(0.0), power(-3.0), power(1.4e14), power(f64::NAN)] {
            let all = read(&[(0.0, power(10.0)), (1.0, absurd), (2.0, power(20.0))]);
            assert_eq!(all, [Ok(None), Err(Dropped::Absurd), Ok(Some(30.0))], "{absurd:?}");
        }
    }

    #[test]
    fn a_leap_is_dropped_and_counting_goes_on_from_there() {
        let leap = read(&[(0.0, counter(0.0)), (1.0, counter(2e5)), (2.0, counter(2e5 + 100.0))]);
        assert_eq!(leap, [Ok(None), Err(Dropped::Absurd), Ok(Some(100.0))]);
        let glitch =
            read(&[(0.0, counter(0.0)), (1.0, counter(2e5)), (2.0, counter(5.0)), (3.0, counter(8.0))]);
        assert_eq!(glitch, [Ok(None), Err(Dropped::Absurd), Err(Dropped::Reset), Ok(Some(3.0))]);
    }

    #[test]
    fn a_counter_that_goes_back_was_reset_or_has_wrapped() {
        let reset = read(&[(0.0, counter(500.0)), (1.0, counter(3.0)), (2.0, counter(9.0))]);
        assert_eq!(reset, [Ok(None), Err(Dropped::Reset), Ok(Some(6.0))]);
        let wrapping = |total| Reading {
            figure: Figure::Counter { total: Joules(total), wraps_at: Some(Joules(262.0)) },
            n_boards: 1,
        };
        // 262 - 250 before the wrap and 30 after it.
        assert_eq!(read(&[(0.0, wrapping(250.0)), (1.0, wrapping(30.0))]), [Ok(None), Ok(Some(42.0))]);
    }

    #[test]
    fn other_boards_than_before_are_a_reset() {
        let two = Reading::counters([Joules(10.0), Joules(20.0)]).unwrap();
        assert_eq!(read(&[(0.0, counter(10.0)), (1.0, two)]), [Ok(None), Err(Dropped::Reset)]);
        assert!(Reading::counters([]).is_none() && Reading::powers([]).is_none());
    }

    #[test]
    fn no_board_makes_up_for_an_absurd_one() {
        assert!(!Reading::counters([Joules(1e6), Joules(-5.0)]).unwrap().is_plausible());
        assert!(!Reading::powers([Watts(300.0), Watts(-5.0)]).unwrap().is_plausible());
        assert!(Reading::powers([Watts(300.0), Watts(0.0)]).unwrap().is_plausible());
    }

    #[test]
    fn samples_of_power_far_apart_say_nothing_of_between() {
        assert_eq!(read(&[(0.0, power(100.0)), (11.0, power(100.0))]), [Ok(None), Ok(None)]);
    }

    proptest! {
        /// Whatever a meter says, the power of an interval is neither negative nor absurd, and intervals do
        /// not overlap.
        #[test]
        fn intervals_are_sound(readings in proptest::collection::vec((0.0..3.0_f64, prop_oneof![
            (-10.0..1e6_f64).prop_map(counter), Just(counter(9.2e15)), (-1.0..2e5_f64).prop_map(power),
        ]), 1..40)) {
            let mut series = Series::default();
            let (mut now, mut covered) = (0.0, 0.0);
            for (step, reading) in readings {
                now += step;
                if let Ok(Some(interval)) = series.read(Seconds(now), reading) {
                    prop_assert!(interval.from.0 >= covered && interval.to.0 > interval.from.0);
                    prop_assert!((0.0..=POWER_MAX.0).contains(&interval.watts().0));
                    covered = interval.to.0;
                }
            }
        }
    }
}

//! When one destination serves requests that come in a given order, by either completion model.

use super::slots::SlotTimeline;
use crate::domain::{CompletionModel, Destination, DestinationState, Work};
use crate::units::Seconds;

/// When a request is served, counted from now and without the network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServiceTimes {
    /// It gets a slot.
    pub start: Seconds,
    /// Its prompt begins to be read.
    pub reading: Seconds,
    /// Its prompt has been read: its first token comes.
    pub first_content: Seconds,
    /// Its last token comes.
    pub finish: Seconds,
}

/// What is at a destination, and when more would be served there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Timeline {
    /// Model `fifo`.
    Fifo(FifoTimeline),
    /// Model `slots`.
    Slots(SlotTimeline),
}

impl Timeline {
    /// The timeline of a destination in a state.
    #[must_use]
    pub fn new(model: CompletionModel, destination: &Destination, state: &DestinationState) -> Self {
        match model {
            CompletionModel::Fifo => Self::Fifo(FifoTimeline {
                busy_s: state.backlog.0,
                batch_speedup: destination.throughput.batch_speedup,
                pace: state.pace,
            }),
            CompletionModel::Slots => Self::Slots(SlotTimeline {
                speed: destination.throughput.slot_speed(),
                load: state.load,
                pace: state.pace,
            }),
        }
    }

    /// When one more request would be served.
    #[must_use]
    pub fn predict(&self, work: Work) -> ServiceTimes {
        match self {
            Self::Fifo(fifo) => fifo.predict(work),
            Self::Slots(slots) => slots.predict(work),
        }
    }

    /// One more request is sent there.
    pub fn push(&mut self, work: Work) {
        match self {
            Self::Fifo(fifo) => fifo.busy_s += fifo.saturated_work(work).0,
            Self::Slots(slots) => slots.push(work),
        }
    }

    /// By how much one more request delays those that are there already, all of them together.
    #[must_use]
    pub fn externality(&self, work: Work) -> Seconds {
        match self {
            Self::Fifo(_) => Seconds::ZERO,
            Self::Slots(slots) => slots.externality(work),
        }
    }

    /// What a request takes of the destination's time when it is saturated.
    #[must_use]
    pub fn saturated_work(&self, work: Work) -> Seconds {
        match self {
            Self::Fifo(fifo) => fifo.saturated_work(work),
            Self::Slots(slots) => slots.saturated_work(work),
        }
    }
}

/// First in, first out (Eq. 4): `max(s, B + Σ s / k)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FifoTimeline {
    /// B_d and what was added, wall-clock seconds.
    pub busy_s: f64,
    /// k_d, at least 1.
    pub batch_speedup: f64,
    /// Progress per second relative to the speeds that work is counted in, positive.
    pub pace: f64,
}

impl FifoTimeline {
    fn predict(&self, work: Work) -> ServiceTimes {
        let service_s = work.total().0 / self.pace;
        let finish_s = service_s.max(self.busy_s + self.saturated_work(work).0);
        let start = Seconds(finish_s - service_s);
        let first_content = start + Seconds(work.prefill.0 / self.pace);
        ServiceTimes { start, reading: start, first_content, finish: Seconds(finish_s) }
    }

    fn saturated_work(&self, work: Work) -> Seconds {
        Seconds(work.total().0 / self.pace / self.batch_speedup)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::testing::destination;

    #[test]
    fn fifo_is_equation_4() {
        let state = DestinationState { backlog: Seconds(1.0), ..DestinationState::idle() };
        // Speed-up 4.
        let mut timeline = Timeline::new(CompletionModel::Fifo, &destination("a", "m"), &state);
        let work = Work { prefill: Seconds(0.5), decode: Seconds(1.5) };
        let first = timeline.predict(work);
        assert_eq!(
            (first.start, first.first_content, first.finish),
            (Seconds(0.0), Seconds(0.5), Seconds(2.0))
        );
        (0..3).for_each(|_| timeline.push(work));
        // 1 + 4 · 2 / 4.
        let fourth = timeline.predict(work);
        assert_eq!(
            (fourth.start, fourth.first_content, fourth.finish),
            (Seconds(1.0), Seconds(1.5), Seconds(3.0))
        );
        assert_eq!(timeline.externality(work), Seconds::ZERO);
        assert_eq!(timeline.saturated_work(work), Seconds(0.5));
    }
}

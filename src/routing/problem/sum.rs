//! What the time term `sum` needs beside the tables: each request's work in its two parts, and what is at each
//! destination before the batch.

use crate::domain::{DestinationOrd, Work};
use crate::routing::completion::slots::SlotTimeline;
use crate::routing::completion::timeline::Timeline;
use crate::routing::problem::{DestinationLoad, ProblemError, is_quantity};

/// The tables of the time term `sum`. Rows are in the order in which a destination serves them.
#[derive(Debug, Clone)]
pub struct SumTables {
    /// Work of request r at d, loading of the model included; R × M, row-major.
    pub work: Vec<Work>,
    /// What is at each destination, M entries.
    pub timelines: Vec<Timeline>,
    /// Round-trip time, seconds, M entries.
    pub rtt_s: Vec<f64>,
    /// Congestion price of each destination: J per second that a request takes of it when it is saturated, for those
    /// to whom time is all that counts (ω_T = 1). Not negative, M entries.
    pub price_per_s: Vec<f64>,
    /// ω_T of those who are delayed without being part of the batch.
    pub others_time_weight: f64,
}

impl SumTables {
    pub(super) fn with_capacity(n_cells: usize, n_destinations: usize) -> Self {
        Self {
            work: Vec::with_capacity(n_cells),
            timelines: Vec::with_capacity(n_destinations),
            rtt_s: Vec::with_capacity(n_destinations),
            price_per_s: Vec::with_capacity(n_destinations),
            others_time_weight: 0.0,
        }
    }

    /// Work of request `r` at `d`.
    #[must_use]
    pub fn work(&self, r: usize, d: DestinationOrd) -> Work {
        self.work[r * self.timelines.len() + d.idx()]
    }

    /// What request `r` takes of the time of `d` when that is saturated, seconds.
    #[must_use]
    pub fn saturated_work_s(&self, r: usize, d: DestinationOrd) -> f64 {
        self.timelines[d.idx()].saturated_work(self.work(r, d)).0
    }

    /// Entries of each table where a problem has `n` requests and `m` destinations: name, found, needed.
    pub(super) fn sizes(&self, n: usize, m: usize) -> [(&'static str, usize, usize); 4] {
        [
            ("sum.work", self.work.len(), n * m),
            ("sum.timelines", self.timelines.len(), m),
            ("sum.rtt_s", self.rtt_s.len(), m),
            ("sum.price_per_s", self.price_per_s.len(), m),
        ]
    }

    /// Whether every figure is in its range; the sizes are right.
    pub(super) fn check(&self, destinations: &[DestinationLoad]) -> Result<(), ProblemError> {
        if !is_quantity(self.others_time_weight) {
            return Err(ProblemError::OthersTimeWeight(self.others_time_weight));
        }
        for (i, work) in self.work.iter().enumerate() {
            let parts = [("sum.prefill_s", work.prefill.0), ("sum.decode_s", work.decode.0)];
            // Their sum may be too large for a number.
            let parts = parts.into_iter().chain([("sum.work", work.total().0)]);
            if let Some((table, value)) = parts.into_iter().find(|(_, part_s)| !is_quantity(*part_s)) {
                let m = destinations.len();
                let (request, destination) = (i / m, destinations[i % m].id.clone());
                return Err(ProblemError::Cell { table, request, destination, value });
            }
        }
        for (d, load) in destinations.iter().enumerate() {
            let common = [
                ("sum.destinations[].rtt_s", self.rtt_s[d], Range::NotNegative),
                ("sum.destinations[].price_per_s", self.price_per_s[d], Range::NotNegative),
            ];
            let fault = out_of_range(&common).or_else(|| timeline_fault(&self.timelines[d]));
            if let Some((field, value, range)) = fault {
                let (destination, range) = (load.id.clone(), range.says());
                return Err(ProblemError::Destination { destination, field, value, range });
            }
        }
        Ok(())
    }
}

/// What a figure may be.
#[derive(Debug, Clone, Copy)]
enum Range {
    NotNegative,
    Positive,
    AtLeastOne,
}

impl Range {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::NotNegative => is_quantity(value),
            Self::Positive => value.is_finite() && value > 0.0,
            Self::AtLeastOne => value.is_finite() && value >= 1.0,
        }
    }

    const fn says(self) -> &'static str {
        match self {
            Self::NotNegative => "not negative",
            Self::Positive => "positive",
            Self::AtLeastOne => "at least 1",
        }
    }
}

/// A figure by its name, its value and what it may be.
type Figure = (&'static str, f64, Range);

/// The first figure that is not what it may be.
fn out_of_range(figures: &[Figure]) -> Option<Figure> {
    figures.iter().copied().find(|(_, value, range)| !range.holds(*value))
}

/// The first figure of a timeline that is not what it may be.
fn timeline_fault(timeline: &Timeline) -> Option<Figure> {
    match timeline {
        Timeline::Fifo(fifo) => out_of_range(&[
            ("sum.destinations[].timeline.backlog_s", fifo.busy_s, Range::NotNegative),
            ("sum.destinations[].timeline.batch_speedup", fifo.batch_speedup, Range::AtLeastOne),
            ("sum.destinations[].timeline.pace", fifo.pace, Range::Positive),
        ]),
        Timeline::Slots(SlotTimeline { speed, load, pace }) => out_of_range(&[
            ("sum.destinations[].timeline.slots", f64::from(speed.slots), Range::AtLeastOne),
            ("sum.destinations[].timeline.batch_speedup", speed.batch_speedup, Range::AtLeastOne),
            ("sum.destinations[].timeline.pace", *pace, Range::Positive),
            ("sum.destinations[].timeline.prefill_s", load.prefill.0, Range::NotNegative),
            ("sum.destinations[].timeline.decode_s", load.decode.0, Range::NotNegative),
            ("sum.destinations[].timeline.soonest_s", load.soonest.0, Range::NotNegative),
            ("sum.destinations[].timeline.queued_prefill_s", load.queued_work.prefill.0, Range::NotNegative),
            ("sum.destinations[].timeline.queued_decode_s", load.queued_work.decode.0, Range::NotNegative),
        ]),
    }
}

//! An engine as real ones are: slots, one prompt at a time, decode that is shared.

use std::collections::{BTreeSet, VecDeque};

use super::{Engine, EngineEvent, Job, Milestone};
use crate::domain::Throughput;
use crate::planning::Ticket;
use crate::units::Seconds;

/// How fast running requests decode while a prompt is read, as a share of their speed otherwise: chunked prefill
/// shares each step between the two. The router's own model (`routing::completion::slots`, the backlog ledger) takes
/// it for zero and errs on the safe side.
pub const DECODE_PACE_DURING_PREFILL: f64 = 0.5;

/// Share of (active − idle) watts that a request decoding alone would draw in an engine of many slots.
const DRAW_FLOOR: f64 = 0.55;

/// At most S requests in slots, the rest in a queue, first come, first served.
///
/// In its slot a request first has its prompt read, one request after the other in order of admission. Then it
/// decodes: with n decoding each runs at `r1 / (1 + a (n − 1))`, and at [`DECODE_PACE_DURING_PREFILL`] of that while a
/// prompt is read. Of (active − idle) watts the engine draws all while it reads, `0.55 + 0.45 n / S` while n requests
/// decode, and nothing else.
///
/// Exact: between two events all rates are constant.
#[derive(Debug, Clone)]
pub struct SlotEngine {
    throughput: Throughput,
    pace_during_prefill: f64,
    /// Until when it was looked at.
    seen_s: f64,
    /// Since when rates are what they are. All that follows is as of then: looking in between changes nothing, not even
    /// by rounding, so that what was found to come next does.
    since_s: f64,
    queue: VecDeque<Job>,
    /// In slots, prompts not read yet; the first one is being read.
    reading: VecDeque<Job>,
    /// When the first of `reading` has been read.
    read_at_s: f64,
    /// In slots, decoding, by the reading of `progress_s` at which they are over; its bits order as it does.
    decoding: BTreeSet<(u64, Ticket)>,
    /// What each decoding request has decoded since the engine was empty, in time alone.
    progress_s: f64,
    /// What happened and was not told yet.
    happened: Vec<EngineEvent>,
    busy_s: f64,
    full_draw_s: f64,
}

/// What ends a stretch of constant rates.
enum Change {
    Read,
    Decoded,
}

impl SlotEngine {
    /// An idle engine; `pace_during_prefill` in `[0, 1]`.
    #[must_use]
    pub fn new(throughput: Throughput, pace_during_prefill: f64) -> Self {
        Self {
            throughput,
            pace_during_prefill,
            seen_s: 0.0,
            since_s: 0.0,
            queue: VecDeque::new(),
            reading: VecDeque::new(),
            read_at_s: 0.0,
            decoding: BTreeSet::new(),
            progress_s: 0.0,
            happened: Vec::new(),
            busy_s: 0.0,
            full_draw_s: 0.0,
        }
    }

    fn slots(&self) -> usize {
        self.throughput.max_concurrency.max(1) as usize
    }

    fn n_running(&self) -> usize {
        self.reading.len() + self.decoding.len()
    }

    /// Progress of each decoding request per second.
    fn pace(&self) -> f64 {
        let n = u32::try_from(self.decoding.len()).unwrap_or(u32::MAX);
        let shared = 1.0 / self.throughput.stretch(n);
        if self.reading.is_empty() { shared } else { self.pace_during_prefill * shared }
    }

    /// Share of (active − idle) watts drawn.
    fn draw(&self) -> f64 {
        match (self.reading.len(), self.decoding.len()) {
            (0, 0) => 0.0,
            (0, n) => DRAW_FLOOR + (1.0 - DRAW_FLOOR) * n as f64 / self.slots() as f64,
            _ => 1.0,
        }
    }

    fn next_change(&self) -> Option<(f64, Change)> {
        let read = (!self.reading.is_empty()).then_some((self.read_at_s, Change::Read));
        let pace = self.pace();
        let first = self.decoding.first().filter(|_| pace > 0.0);
        let decoded = first.map(|(due, _)| {
            let left_s = (f64::from_bits(*due) - self.progress_s).max(0.0);
            (self.since_s + left_s / pace, Change::Decoded)
        });
        match (read, decoded) {
            (Some(read), Some(decoded)) => Some(if read.0 < decoded.0 { read } else { decoded }),
            (read, decoded) => read.or(decoded),
        }
    }

    /// Goes through everything that happens until `until_s`.
    fn run(&mut self, until_s: f64) {
        while let Some((at_s, change)) = self.next_change().filter(|(at_s, _)| *at_s <= until_s) {
            self.pass(at_s);
            match change {
                Change::Read => self.first_is_read(),
                Change::Decoded => self.first_is_decoded(),
            }
        }
        self.seen_s = self.seen_s.max(until_s);
    }

    /// Lets time pass in which nothing changes.
    fn pass(&mut self, until_s: f64) {
        let span_s = (until_s - self.since_s).max(0.0);
        self.full_draw_s += self.draw() * span_s;
        if self.n_running() > 0 {
            self.busy_s += span_s;
        }
        self.progress_s += self.pace() * span_s;
        self.since_s = self.since_s.max(until_s);
    }

    fn first_is_read(&mut self) {
        let Some(job) = self.reading.pop_front() else { return };
        if self.decoding.is_empty() {
            self.progress_s = 0.0;
        }
        self.decoding.insert(((self.progress_s + job.work.decode.get()).to_bits(), job.ticket));
        self.tell(job.ticket, Milestone::FirstToken);
        self.read_next();
    }

    fn first_is_decoded(&mut self) {
        let Some((due, ticket)) = self.decoding.pop_first() else { return };
        // Not what the rounding of the pass made of it.
        self.progress_s = f64::from_bits(due);
        self.tell(ticket, Milestone::LastToken);
        self.admit();
    }

    /// Fills the free slots from the queue.
    fn admit(&mut self) {
        while self.n_running() < self.slots()
            && let Some(job) = self.queue.pop_front()
        {
            self.reading.push_back(job);
            if self.reading.len() == 1 {
                self.read_next();
            }
        }
    }

    fn read_next(&mut self) {
        if let Some(job) = self.reading.front() {
            self.read_at_s = self.since_s + job.work.prefill.get();
        }
    }

    fn tell(&mut self, ticket: Ticket, milestone: Milestone) {
        self.happened.push(EngineEvent { at: Seconds(self.since_s), ticket, milestone });
    }
}

impl Engine for SlotEngine {
    fn accept(&mut self, now: Seconds, job: Job) {
        self.run(now.get());
        self.queue.push_back(job);
        if self.n_running() < self.slots() {
            self.pass(now.get());
            self.admit();
        }
    }

    fn next_event(&self) -> Option<Seconds> {
        match self.happened.first() {
            Some(event) => Some(event.at),
            None => self.next_change().map(|(at_s, _)| Seconds(at_s)),
        }
    }

    fn advance(&mut self, now: Seconds, events: &mut Vec<EngineEvent>) {
        self.run(now.get());
        events.append(&mut self.happened);
    }

    fn busy(&self) -> Seconds {
        let unchanged_s = if self.n_running() > 0 { self.seen_s - self.since_s } else { 0.0 };
        Seconds(self.busy_s + unchanged_s)
    }

    fn full_draw(&self) -> Seconds {
        Seconds(self.full_draw_s + self.draw() * (self.seen_s - self.since_s))
    }
}

#[cfg(test)]
mod tests;

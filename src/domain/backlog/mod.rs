//! The backlog ledger: what is outstanding at every destination, and B_d of section III-B.
//!
//! B_d is the wall-clock time until a destination has drained its outstanding work at its current speed. Each
//! dispatched request is on the books with its predicted work until it is over; the work drains with time, and a
//! request that is over takes along what it still owed. One that takes longer than predicted goes on owing a
//! share of its work, so that B_d is zero if and only if nothing is outstanding.
//!
//! Model `slots`: at most S_d requests run, the rest queue; prompts are read one after the other, and meanwhile
//! no tokens are generated; n requests generate at `rate(n)` each, the longest for as long as it takes alone at least. Model `fifo` is Eq. 4: one server, k_d times
//! as fast as a request alone, which no request passes faster than alone.
//!
//! Every event takes time that does not depend on what is outstanding, but for a logarithm. Time is an argument,
//! so the live scheduler and the simulator share the ledger.

mod destination;
mod slab;
#[cfg(test)]
mod tests;

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use super::completion::CompletionModel;
use super::destination::{DestinationOrd, Throughput};
use crate::units::Seconds;

use destination::DestinationLedger;

/// Work of one request or several, in time alone on the endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Reading the prompt, and loading the model where it has to be.
    pub prefill: Seconds,
    /// Generating the completion.
    pub decode: Seconds,
}

impl Work {
    /// s_rd: both.
    #[must_use]
    pub fn total(self) -> Seconds {
        self.prefill + self.decode
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        self.prefill += other.prefill;
        self.decode += other.decode;
    }
}

/// The outstanding work of a destination, summed up: what a new request would find there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SlotLoad {
    /// Requests in slots.
    pub running: u32,
    /// Requests behind the slots.
    pub queued: u32,
    /// Prompts of the running, not yet read.
    pub prefill: Seconds,
    /// Completions of the running, not yet generated, in time alone.
    pub decode: Seconds,
    /// The least that one of the running has to generate; zero where none runs.
    pub soonest: Seconds,
    /// Work of the queued.
    pub queued_work: Work,
}

impl SlotLoad {
    /// Nothing.
    pub const EMPTY: Self = Self {
        running: 0,
        queued: 0,
        prefill: Seconds::ZERO,
        decode: Seconds::ZERO,
        soonest: Seconds::ZERO,
        queued_work: Work { prefill: Seconds::ZERO, decode: Seconds::ZERO },
    };

    /// Both together, as one destination has them.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        let soonest = match (self.running, other.running) {
            (0, _) => other.soonest,
            (_, 0) => self.soonest,
            _ => self.soonest.min(other.soonest),
        };
        let mut queued_work = self.queued_work;
        queued_work += other.queued_work;
        Self {
            running: self.running.saturating_add(other.running),
            queued: self.queued.saturating_add(other.queued),
            prefill: self.prefill + other.prefill,
            decode: self.decode + other.decode,
            soonest,
            queued_work,
        }
    }

    /// Requests outstanding.
    #[must_use]
    pub const fn outstanding(&self) -> u32 {
        self.running.saturating_add(self.queued)
    }

    /// Time until all of it is done: prompts one after the other, completions at the speed of as many requests as
    /// there are.
    #[must_use]
    pub fn drain_time(&self, throughput: &Throughput) -> Seconds {
        let at_once = self.outstanding().min(throughput.max_concurrency.max(self.running));
        let shared_s = (self.decode + self.queued_work.decode).0 / throughput.speedup(at_once);
        self.prefill + self.queued_work.prefill + Seconds(shared_s)
    }
}

/// A request on the books; what takes it off again.
#[derive(Debug)]
pub struct Outstanding {
    destination: DestinationOrd,
    index: slab::Index,
}

impl Outstanding {
    /// Where it was sent.
    #[must_use]
    pub const fn destination(&self) -> DestinationOrd {
        self.destination
    }
}

/// The outstanding requests of every destination.
#[derive(Debug, Clone)]
pub struct BacklogLedger {
    destinations: Vec<DestinationLedger>,
}

impl BacklogLedger {
    /// An empty ledger at time `now` for destinations of these speeds, in order.
    #[must_use]
    pub fn new(
        model: CompletionModel,
        throughputs: impl IntoIterator<Item = Throughput>,
        now: Seconds,
    ) -> Self {
        let of = |throughput| DestinationLedger::new(model, throughput, now);
        Self { destinations: throughputs.into_iter().map(of).collect() }
    }

    /// From `now` on `d` has these figures and makes `pace` seconds of progress in a second, positive. Requests on
    /// the books keep the work that was predicted of them.
    pub fn set_figures(&mut self, now: Seconds, d: DestinationOrd, throughput: Throughput, pace: f64) {
        if let Some(ledger) = self.at(now, d) {
            ledger.set_figures(throughput, pace);
        }
    }

    /// A request with this predicted work is sent to `d`; `None` where there is no `d`.
    pub fn dispatch(&mut self, now: Seconds, d: DestinationOrd, work: Work) -> Option<Outstanding> {
        let index = self.at(now, d)?.dispatch(work);
        Some(Outstanding { destination: d, index })
    }

    /// The first content of an answer has come: its prompt has been read, and generation begins only now.
    pub fn answering(&mut self, now: Seconds, outstanding: &Outstanding) {
        let index = outstanding.index;
        if let Some(ledger) = self.at(now, outstanding.destination) {
            ledger.answering(index);
        }
    }

    /// A request is over, whatever its outcome: what it still owed is gone.
    #[expect(clippy::needless_pass_by_value, reason = "a request is taken off the books once")]
    pub fn finish(&mut self, now: Seconds, outstanding: Outstanding) {
        if let Some(ledger) = self.at(now, outstanding.destination) {
            ledger.finish(outstanding.index);
        }
    }

    /// B_d at `now`: wall-clock seconds until what is outstanding at `d` is done. Positive while anything is.
    pub fn backlog(&mut self, now: Seconds, d: DestinationOrd) -> Seconds {
        self.at(now, d).map_or(Seconds::ZERO, |ledger| ledger.backlog())
    }

    /// What is outstanding at `d` at `now`, in seconds of undisturbed progress (see [`BacklogLedger::set_figures`]).
    pub fn load(&mut self, now: Seconds, d: DestinationOrd) -> SlotLoad {
        self.at(now, d).map_or_else(SlotLoad::default, |ledger| ledger.load())
    }

    /// Requests outstanding at `d`.
    #[must_use]
    pub fn inflight(&self, d: DestinationOrd) -> u32 {
        self.destinations.get(d.idx()).map_or(0, DestinationLedger::n_outstanding)
    }

    fn at(&mut self, now: Seconds, d: DestinationOrd) -> Option<&mut DestinationLedger> {
        let ledger = self.destinations.get_mut(d.idx())?;
        ledger.advance(now);
        Some(ledger)
    }
}

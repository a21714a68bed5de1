//! Virtual serving engines, driven by events.
//!
//! The driver hands an engine its jobs and asks when it must be looked at again; what has happened by then comes
//! back in order of time. [`FifoEngine`] is the engine that Eq. 4 assumes, [`SlotEngine`] one that behaves as real
//! engines do.

mod fifo;
mod slots;

pub use fifo::FifoEngine;
pub use slots::{DECODE_PACE_DURING_PREFILL, SlotEngine};

use crate::domain::named::named_enum;
use crate::domain::{CompletionModel, Throughput, Work};
use crate::planning::Ticket;
use crate::units::Seconds;

named_enum! {
    /// `engine` of a scenario: what serves the requests of a live simulation.
    pub enum EngineKind {
        /// At most S requests at once, the rest queue; prompts one after the other, shared decode.
        Slots = "slots",
        /// One server, k times as fast as a request alone, that no request passes faster than alone (Eq. 4).
        Fifo = "fifo",
    }
}

impl EngineKind {
    /// The engine that a completion model is about.
    #[must_use]
    pub const fn of_model(model: CompletionModel) -> Self {
        match model {
            CompletionModel::Slots => Self::Slots,
            CompletionModel::Fifo => Self::Fifo,
        }
    }

    /// An idle engine at these figures.
    #[must_use]
    pub fn build(self, throughput: Throughput) -> Box<dyn Engine> {
        match self {
            Self::Slots => Box::new(SlotEngine::new(throughput, DECODE_PACE_DURING_PREFILL)),
            Self::Fifo => Box::new(FifoEngine::new(throughput.batch_speedup)),
        }
    }
}

/// A request at an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Job {
    /// The request.
    pub ticket: Ticket,
    /// Its true work, alone on the engine.
    pub work: Work,
}

/// How far a job has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Milestone {
    /// Its prompt has been read: the first token leaves the engine.
    FirstToken,
    /// The last one does, and the job is over.
    LastToken,
}

/// Something that happened at an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineEvent {
    /// When.
    pub at: Seconds,
    /// To which request.
    pub ticket: Ticket,
    /// What.
    pub milestone: Milestone,
}

/// What the driver needs of an engine. Every job reaches both milestones once, the first token first.
pub trait Engine {
    /// Takes a job at `now`; times never run backwards.
    fn accept(&mut self, now: Seconds, job: Job);

    /// When to look again if nothing else is accepted; `None` when idle.
    fn next_event(&self) -> Option<Seconds>;

    /// Appends what has happened by `now` and was not told yet, in order of time.
    fn advance(&mut self, now: Seconds, events: &mut Vec<EngineEvent>);

    /// Time with at least one job, until now.
    fn busy(&self) -> Seconds;

    /// The time at full draw that takes as much energy above idle as was taken until now: the integral of the share
    /// of (active − idle) watts.
    fn full_draw(&self) -> Seconds;
}

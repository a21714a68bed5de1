//! Virtual serving engines, driven by events.
//!
//! The driver hands an engine its jobs and asks when it must be looked at again; what finishes comes back
//! with its times. [`FifoEngine`] is the engine that Eq. 4 assumes.

use crate::planning::Ticket;
use crate::units::Seconds;

/// A request at an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Job {
    /// The request.
    pub ticket: Ticket,
    /// Its service time alone on the engine.
    pub service: Seconds,
    /// The part of it that generates tokens.
    pub decode: Seconds,
}

/// A request that is done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Served {
    /// The request.
    pub ticket: Ticket,
    /// When its first token left the engine.
    pub first_token: Seconds,
    /// When its last one did.
    pub finished: Seconds,
}

/// What the driver needs of an engine.
pub trait Engine {
    /// Takes a job at `now`; times never run backwards.
    fn accept(&mut self, now: Seconds, job: Job);

    /// When something will finish, if nothing else is accepted; `None` when idle.
    fn next_event(&self) -> Option<Seconds>;

    /// Appends what has finished by `now`, in order of time.
    fn advance(&mut self, now: Seconds, served: &mut Vec<Served>);

    /// Time with at least one job, so far.
    fn busy(&self) -> Seconds;
}

/// First in, first out with a batch speed-up k: a job finishes at
/// `max(accepted + s, F)`, where F is when the work accepted up to it is done at k times the speed,
/// `F ← max(F, accepted) + s / k`.
#[derive(Debug, Clone)]
pub struct FifoEngine {
    speedup: f64,
    /// F.
    work_done_at: Seconds,
    /// Unfinished jobs, by time of finish.
    running: Vec<Served>,
    busy_s: f64,
    /// Until when `busy_s` is counted.
    busy_until: Seconds,
}

impl FifoEngine {
    /// An idle engine; `speedup` is positive.
    #[must_use]
    pub fn new(speedup: f64) -> Self {
        Self {
            speedup,
            work_done_at: Seconds::ZERO,
            running: Vec::new(),
            busy_s: 0.0,
            busy_until: Seconds::ZERO,
        }
    }
}

impl Engine for FifoEngine {
    fn accept(&mut self, now: Seconds, job: Job) {
        self.work_done_at = self.work_done_at.max(now) + Seconds(job.service.get() / self.speedup);
        let finished = self.work_done_at.max(now + job.service);
        // Everything up to its last finish is busy time: an engine never waits with work at hand.
        let busy_from = self.busy_until.max(now);
        self.busy_s += (finished - busy_from).get().max(0.0);
        self.busy_until = self.busy_until.max(finished);
        let served = Served { ticket: job.ticket, first_token: finished - job.decode, finished };
        let at = self.running.partition_point(|other| other.finished.get() <= finished.get());
        self.running.insert(at, served);
    }

    fn next_event(&self) -> Option<Seconds> {
        self.running.first().map(|job| job.finished)
    }

    fn advance(&mut self, now: Seconds, served: &mut Vec<Served>) {
        let n_done = self.running.partition_point(|job| job.finished.get() <= now.get());
        served.extend(self.running.drain(..n_done));
    }

    fn busy(&self) -> Seconds {
        Seconds(self.busy_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(ticket: u64, service_s: f64) -> Job {
        Job { ticket: Ticket(ticket), service: Seconds(service_s), decode: Seconds(service_s / 2.0) }
    }

    #[test]
    fn finishes_follow_equation_4() {
        let mut engine = FifoEngine::new(2.0);
        for (ticket, service_s) in [(1, 4.0), (2, 1.0), (3, 2.0)] {
            engine.accept(Seconds(10.0), job(ticket, service_s));
        }
        // Work is done at 12, 12.5, 13.5; the first job needs its own 4 s.
        let mut served = Vec::new();
        engine.advance(Seconds(13.0), &mut served);
        assert_eq!(served.iter().map(|s| (s.ticket.0, s.finished.0)).collect::<Vec<_>>(), [(2, 12.5)]);
        assert_eq!(engine.next_event(), Some(Seconds(13.5)));
        engine.advance(Seconds(14.0), &mut served);
        let finished: Vec<_> = served.iter().map(|s| (s.ticket.0, s.finished.0, s.first_token.0)).collect();
        assert_eq!(finished[1..], [(3, 13.5, 12.5), (1, 14.0, 12.0)]);
        assert_eq!((engine.next_event(), engine.busy()), (None, Seconds(4.0)));
        // Idle from 14 to 20, then alone.
        engine.accept(Seconds(20.0), job(4, 3.0));
        assert_eq!((engine.next_event(), engine.busy()), (Some(Seconds(23.0)), Seconds(7.0)));
    }
}

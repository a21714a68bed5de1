//! First in, first out with a batch speed-up: the engine of Eq. 4.

use super::{Engine, EngineEvent, Job, Milestone};
use crate::units::Seconds;

/// First in, first out with a batch speed-up k: a job finishes at
/// `max(accepted + s, F)`, where F is when the work accepted up to it is done at k times the speed,
/// `F ← max(F, accepted) + s / k`. It draws all of its power while it has a job.
#[derive(Debug, Clone)]
pub struct FifoEngine {
    speedup: f64,
    /// F.
    work_done_at: Seconds,
    /// What has not happened yet, by time.
    upcoming: Vec<EngineEvent>,
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
            upcoming: Vec::new(),
            busy_s: 0.0,
            busy_until: Seconds::ZERO,
        }
    }

    fn plan(&mut self, event: EngineEvent) {
        let at = self.upcoming.partition_point(|other| other.at.get() <= event.at.get());
        self.upcoming.insert(at, event);
    }
}

impl Engine for FifoEngine {
    fn accept(&mut self, now: Seconds, job: Job) {
        let service = job.work.total();
        self.work_done_at = self.work_done_at.max(now) + Seconds(service.get() / self.speedup);
        let finished = self.work_done_at.max(now + service);
        // Everything up to its last finish is busy time: an engine never waits with work at hand.
        let busy_from = self.busy_until.max(now);
        self.busy_s += (finished - busy_from).get().max(0.0);
        self.busy_until = self.busy_until.max(finished);
        let first_token = finished - job.work.decode;
        self.plan(EngineEvent { at: first_token, ticket: job.ticket, milestone: Milestone::FirstToken });
        self.plan(EngineEvent { at: finished, ticket: job.ticket, milestone: Milestone::LastToken });
    }

    fn next_event(&self) -> Option<Seconds> {
        self.upcoming.first().map(|event| event.at)
    }

    fn advance(&mut self, now: Seconds, events: &mut Vec<EngineEvent>) {
        let n_due = self.upcoming.partition_point(|event| event.at.get() <= now.get());
        events.extend(self.upcoming.drain(..n_due));
    }

    fn busy(&self) -> Seconds {
        Seconds(self.busy_s)
    }

    fn full_draw(&self) -> Seconds {
        self.busy()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Work;
    use crate::planning::Ticket;

    fn job(ticket: u64, service_s: f64) -> Job {
        let half = Seconds(service_s / 2.0);
        Job { ticket: Ticket(ticket), work: Work { prefill: half, decode: half } }
    }

    fn told(engine: &mut FifoEngine, now_s: f64) -> Vec<(u64, f64)> {
        let mut events = Vec::new();
        engine.advance(Seconds(now_s), &mut events);
        events.iter().map(|event| (event.ticket.0, event.at.0)).collect()
    }

    #[test]
    fn finishes_follow_equation_4() {
        let mut engine = FifoEngine::new(2.0);
        for (ticket, service_s) in [(1, 4.0), (2, 1.0), (3, 2.0)] {
            engine.accept(Seconds(10.0), job(ticket, service_s));
        }
        // Work is done at 12, 12.5, 13.5; the first job needs its own 4 s. Half of each is its answer.
        assert_eq!(told(&mut engine, 13.0), [(1, 12.0), (2, 12.0), (2, 12.5), (3, 12.5)]);
        assert_eq!(engine.next_event(), Some(Seconds(13.5)));
        assert_eq!(told(&mut engine, 14.0), [(3, 13.5), (1, 14.0)]);
        assert_eq!((engine.next_event(), engine.busy()), (None, Seconds(4.0)));
        // Idle from 14 to 20, then alone.
        engine.accept(Seconds(20.0), job(4, 3.0));
        assert_eq!((engine.next_event(), engine.busy()), (Some(Seconds(21.5)), Seconds(7.0)));
    }
}

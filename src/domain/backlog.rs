//! The backlog ledger: B_d of section III-B, wall-clock seconds of dispatched and unfinished work.
//!
//! After a plan sends requests to d, `B_d` grows by `max(longest service, Σ service / k_d)`; it shrinks
//! with elapsed time and never below zero. It is wall-clock time already: never divided by the speed-up
//! again. Time is an argument, so the live scheduler and the simulator share it.

use super::destination::DestinationOrd;
use crate::units::Seconds;

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    backlog_s: f64,
    inflight: u32,
}

/// B_d and the number of requests in flight per destination.
#[derive(Debug, Clone)]
pub struct BacklogLedger {
    entries: Vec<Entry>,
    speedups: Vec<f64>,
    as_of: Seconds,
}

impl BacklogLedger {
    /// An empty ledger at time `now` for destinations with the batch speed-ups k_d given in order.
    #[must_use]
    pub fn new(speedups: Vec<f64>, now: Seconds) -> Self {
        Self { entries: vec![Entry::default(); speedups.len()], speedups, as_of: now }
    }

    /// Subtracts the time elapsed since the last call; a `now` in the past changes nothing.
    pub fn advance(&mut self, now: Seconds) {
        let elapsed_s = (now - self.as_of).0;
        if elapsed_s <= 0.0 {
            return;
        }
        self.as_of = now;
        for entry in &mut self.entries {
            entry.backlog_s = (entry.backlog_s - elapsed_s).max(0.0);
        }
    }

    /// Records that one plan sends requests with these service times to `d`.
    pub fn dispatch(&mut self, d: DestinationOrd, services: &[Seconds]) {
        let Some(entry) = self.entries.get_mut(d.idx()) else { return };
        let longest_s = services.iter().map(|s| s.0).fold(0.0, f64::max);
        let total_s: f64 = services.iter().map(|s| s.0).sum();
        entry.backlog_s += longest_s.max(total_s / self.speedups[d.idx()]);
        entry.inflight += u32::try_from(services.len()).unwrap_or(u32::MAX);
    }

    /// Records that a request of service time `service`, dispatched `age` ago, left `d`: its share of
    /// the backlog that has not drained yet goes with it.
    ///
    /// With nothing else in flight the backlog is zero whatever was predicted.
    pub fn finish(&mut self, d: DestinationOrd, service: Seconds, age: Seconds) {
        let Some(entry) = self.entries.get_mut(d.idx()) else { return };
        entry.inflight = entry.inflight.saturating_sub(1);
        if entry.inflight == 0 {
            entry.backlog_s = 0.0;
            return;
        }
        let remaining_s = (service.0 - age.0).max(0.0) / self.speedups[d.idx()];
        entry.backlog_s = (entry.backlog_s - remaining_s).max(0.0);
    }

    /// B_d as of the last [`BacklogLedger::advance`].
    #[must_use]
    pub fn backlog(&self, d: DestinationOrd) -> Seconds {
        self.entries.get(d.idx()).map_or(Seconds::ZERO, |e| Seconds(e.backlog_s))
    }

    /// Requests outstanding at `d`.
    #[must_use]
    pub fn inflight(&self, d: DestinationOrd) -> u32 {
        self.entries.get(d.idx()).map_or(0, |e| e.inflight)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const D: DestinationOrd = DestinationOrd(0);

    #[test]
    fn grows_by_the_larger_of_longest_and_batched_work_and_drains_with_time() {
        let mut ledger = BacklogLedger::new(vec![4.0], Seconds(10.0));
        ledger.dispatch(D, &[Seconds(2.0), Seconds(1.0), Seconds(1.0)]);
        // Σ/k = 1 s, longest = 2 s.
        assert!((ledger.backlog(D).get() - 2.0).abs() < 1e-12);
        ledger.dispatch(D, &[Seconds(2.0); 8]);
        // Σ/k = 4 s.
        assert!((ledger.backlog(D).get() - 6.0).abs() < 1e-12);
        ledger.advance(Seconds(13.5));
        assert!((ledger.backlog(D).get() - 2.5).abs() < 1e-12);
        assert_eq!(ledger.inflight(D), 11);
        ledger.advance(Seconds(12.0));
        assert!((ledger.backlog(D).get() - 2.5).abs() < 1e-12, "time never runs backwards");
        ledger.advance(Seconds(99.0));
        assert!(ledger.backlog(D).get().abs() < 1e-12);
    }

    #[test]
    fn an_early_finish_takes_its_remaining_share_along() {
        let mut ledger = BacklogLedger::new(vec![1.0], Seconds::ZERO);
        ledger.dispatch(D, &[Seconds(4.0), Seconds(3.0)]);
        ledger.advance(Seconds(1.0));
        ledger.finish(D, Seconds(4.0), Seconds(1.0));
        assert!((ledger.backlog(D).get() - 3.0).abs() < 1e-12);
        ledger.finish(D, Seconds(3.0), Seconds(1.0));
        assert!(ledger.backlog(D).get().abs() < 1e-12);
        assert_eq!(ledger.inflight(D), 0);
    }

    proptest! {
        #[test]
        fn never_negative_and_zero_when_nothing_is_in_flight(
            steps in prop::collection::vec((0.0..3.0f64, prop::collection::vec(0.01..5.0f64, 0..5), any::<bool>()), 1..40),
            speedup in 1.0..16.0f64,
        ) {
            let mut ledger = BacklogLedger::new(vec![speedup], Seconds::ZERO);
            let mut now = 0.0;
            let mut running: Vec<(f64, f64)> = Vec::new();
            for (dt, services, finish_one) in steps {
                now += dt;
                ledger.advance(Seconds(now));
                if !services.is_empty() {
                    ledger.dispatch(D, &services.iter().map(|s| Seconds(*s)).collect::<Vec<_>>());
                    running.extend(services.iter().map(|s| (*s, now)));
                }
                if finish_one && let Some((service, since)) = running.pop() {
                    ledger.finish(D, Seconds(service), Seconds(now - since));
                }
                prop_assert!(ledger.backlog(D).get() >= 0.0);
                prop_assert_eq!(ledger.inflight(D) as usize, running.len());
                if running.is_empty() {
                    prop_assert!(ledger.backlog(D).get().abs() < 1e-12);
                }
            }
        }
    }
}

//! Shares a node's measured energy among its requests. Pure: time is an argument.
//!
//! Whenever the energy of an interval is known, all of it is given away at once:
//!
//! - Where nothing was in flight it belongs to nobody. In an interval that was busy for a part b of its length T and
//!   drew E, the idle part took what an idle node draws, but no more than its share of the time:
//!   `E_busy = max(E·b/T, E − P_idle·(T − b))`. P_idle is the mean power of the last interval without a request,
//!   the configured idle watts until there was one.
//! - E_busy is shared among the requests that were in flight, in proportion to the tokens (prompt and completion) each
//!   handled in the interval. A request's tokens are taken as spread evenly over its life. Of a request that is
//!   over they are known; of one that still runs they are those expected, over the time expected or gone by, whichever is
//!   longer.
//!
//! Nothing is corrected later, so the shares always sum to what the node drew, requests are settled with the first
//! interval that reaches their end, and memory is one entry per request in flight. The price is an error in the
//! shares of requests whose length was mispredicted while others ran beside them.

use std::collections::BTreeMap;

use crate::units::{Joules, Seconds, Tokens, Watts};

use super::series::Interval;

/// A request's energy counts as measured where readings cover this much of its life.
const COVERED_MIN: f64 = 0.9;
/// Power of an idle node is learnt from intervals at least this long.
const IDLE_LEARNT_FROM: Seconds = Seconds(0.5);

/// Names a request in flight at a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WorkId(u64);

/// What is expected of a request when it is sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpectedWork {
    /// Prompt and completion.
    pub tokens: Tokens,
    /// From dispatch to the last byte.
    pub duration: Seconds,
}

/// The requests of one node and what each has drawn so far. `T` is handed back when a request is settled.
#[derive(Debug)]
pub(super) struct EnergyLedger<T> {
    running: BTreeMap<WorkId, Work>,
    /// Over, and not yet covered by a reading to their end.
    ended: Vec<(Work, T)>,
    next: u64,
    idle: Watts,
}

#[derive(Debug, Clone, Copy)]
struct Work {
    since: Seconds,
    until: Option<Seconds>,
    expected: ExpectedWork,
    /// Counted once it was over, where they were.
    tokens: Option<Tokens>,
    drawn: Joules,
    covered: Seconds,
}

/// Whom the energy of an interval went to.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Shared {
    /// To requests.
    pub(super) requests: Joules,
    /// To nobody: nothing was in flight.
    pub(super) idle: Joules,
}

impl<T> EnergyLedger<T> {
    /// A ledger of a node that draws `idle` with nothing running, until measured otherwise.
    pub(super) fn new(idle: Watts) -> Self {
        Self { running: BTreeMap::new(), ended: Vec::new(), next: 0, idle }
    }

    /// A request is sent.
    pub(super) fn begin(&mut self, now: Seconds, expected: ExpectedWork) -> WorkId {
        let id = WorkId(self.next);
        self.next += 1;
        let (drawn, covered) = (Joules::ZERO, Seconds::ZERO);
        self.running.insert(id, Work { since: now, until: None, expected, tokens: None, drawn, covered });
        id
    }

    /// A request is over; `tokens` are those that were counted. It is settled later, with `ticket` to tell it by.
    pub(super) fn end(&mut self, id: WorkId, now: Seconds, tokens: Option<Tokens>, ticket: T) {
        let Some(work) = self.running.remove(&id) else { return };
        self.ended.push((Work { until: Some(now.max(work.since)), tokens, ..work }, ticket));
    }

    /// A request is over and no reading will cover its end; what it drew, where that was measured all the same.
    pub(super) fn end_unread(&mut self, id: WorkId, now: Seconds) -> Option<Joules> {
        let work = self.running.remove(&id)?;
        Work { until: Some(now.max(work.since)), ..work }.measured()
    }

    /// Requests in flight.
    pub(super) fn n_running(&self) -> usize {
        self.running.len()
    }

    /// Requests that are over and wait for a reading.
    pub(super) fn n_ended(&self) -> usize {
        self.ended.len()
    }

    /// Gives away the energy of an interval. Intervals must not overlap.
    pub(super) fn share(&mut self, interval: Interval) -> Shared {
        let Interval { from, to, energy } = interval;
        let busy = self.busy_time(from, to);
        let all = self.running.values_mut().chain(self.ended.iter_mut().map(|(work, _)| work));
        let mut weighted: Vec<_> = all.map(|work| (work.weight_in(from, to), work)).collect();
        let weights: f64 = weighted.iter().map(|(weight, _)| weight).sum();
        let length = to - from;
        if weights <= 0.0 {
            if length.0 >= IDLE_LEARNT_FROM.0 {
                self.idle = interval.watts();
            }
            return Shared { requests: Joules::ZERO, idle: energy };
        }
        let in_proportion = energy.0 * busy.0 / length.0;
        let beyond_idle = energy - self.idle.over(length - busy);
        let requests = Joules(in_proportion).max(beyond_idle).min(energy);
        for (weight, work) in &mut weighted {
            work.drawn += Joules(requests.0 * (*weight / weights));
            work.covered += work.overlap(from, to);
        }
        Shared { requests, idle: energy - requests }
    }

    /// Hands out the requests that were over at `by`, each with what it drew where that was measured.
    pub(super) fn settle(&mut self, by: Seconds) -> Vec<(T, Option<Joules>)> {
        let is_over = |(work, _): &mut (Work, T)| work.until.is_some_and(|until| until <= by);
        self.ended.extract_if(.., is_over).map(|(work, ticket)| (ticket, work.measured())).collect()
    }

    /// Time of `from..to` in which anything was in flight.
    fn busy_time(&self, from: Seconds, to: Seconds) -> Seconds {
        let all = self.running.values().chain(self.ended.iter().map(|(work, _)| work));
        let mut spans: Vec<_> =
            all.map(|work| work.span_in(from, to)).filter(|(begin, end)| begin < end).collect();
        spans.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut busy, mut seen) = (0.0, from.0);
        for (begin, end) in spans {
            busy += (end - begin.max(seen)).max(0.0);
            seen = seen.max(end);
        }
        Seconds(busy)
    }
}

impl Work {
    /// The part of its life within `from..to`, in seconds; empty where the end is not after the beginning.
    fn span_in(&self, from: Seconds, to: Seconds) -> (f64, f64) {
        (self.since.max(from).0, self.until.map_or(to, |until| until.min(to)).0)
    }

    fn overlap(&self, from: Seconds, to: Seconds) -> Seconds {
        let (begin, end) = self.span_in(from, to);
        Seconds((end - begin).max(0.0))
    }

    /// Tokens handled in `from..to`; a request handles one at least in its life, so that its time counts.
    fn weight_in(&self, from: Seconds, to: Seconds) -> f64 {
        let overlap = self.overlap(from, to);
        if overlap.0 <= 0.0 {
            return 0.0;
        }
        let lived = self.until.unwrap_or(to) - self.since;
        let (tokens, over) = match (self.until, self.tokens) {
            (Some(_), Some(tokens)) => (tokens, lived),
            // Cut short or not counted: as much of what was expected as there was time for.
            _ => (self.expected.tokens, self.expected.duration.max(lived)),
        };
        tokens.max(Tokens(1.0)).0 * overlap.0 / over.0
    }

    fn measured(&self) -> Option<Joules> {
        let lived = self.until.map_or(Seconds::ZERO, |until| until - self.since);
        (self.covered.0 > 0.0 && self.covered.0 >= COVERED_MIN * lived.0).then_some(self.drawn)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WORK: ExpectedWork = ExpectedWork { tokens: Tokens(100.0), duration: Seconds(1.0) };

    fn over(from: f64, to: f64, joules: f64) -> Interval {
        Interval { from: Seconds(from), to: Seconds(to), energy: Joules(joules) }
    }

    fn ledger() -> EnergyLedger<&'static str> {
        EnergyLedger::new(Watts(50.0))
    }

    #[track_caller]
    fn assert_settled(settled: &[(&str, Option<Joules>)], expected: &[(&str, f64)]) {
        assert_eq!(settled.len(), expected.len(), "{settled:?}");
        for ((name, joules), (expected_name, expected)) in settled.iter().zip(expected) {
            let joules = joules.map_or(-1.0, Joules::get);
            assert!(name == expected_name && (joules - expected).abs() < 1e-9, "{settled:?}");
        }
    }

    #[test]
    fn a_lone_request_gets_everything_over_its_life() {
        let mut ledger = ledger();
        let id = ledger.begin(Seconds(0.0), WORK);
        assert_eq!(
            ledger.share(over(0.0, 1.0, 200.0)),
            Shared { requests: Joules(200.0), idle: Joules::ZERO }
        );
        assert_settled(&ledger.settle(Seconds(1.0)), &[]);
        ledger.end(id, Seconds(2.0), Some(Tokens(10.0)), "a");
        ledger.share(over(1.0, 2.0, 300.0));
        assert_settled(&ledger.settle(Seconds(2.0)), &[("a", 500.0)]);
        assert_eq!((ledger.n_running(), ledger.n_ended()), (0, 0));
    }

    #[test]
    fn requests_side_by_side_share_by_their_tokens() {
        let mut ledger = ledger();
        let (a, b) = (ledger.begin(Seconds(0.0), WORK), ledger.begin(Seconds(0.0), WORK));
        ledger.end(a, Seconds(1.0), Some(Tokens(30.0)), "a");
        ledger.end(b, Seconds(1.0), Some(Tokens(90.0)), "b");
        ledger.share(over(0.0, 1.0, 240.0));
        assert_settled(&ledger.settle(Seconds(1.0)), &[("a", 60.0), ("b", 180.0)]);
    }

    #[test]
    fn of_what_still_runs_the_expected_tokens_count() {
        let mut ledger = ledger();
        let a = ledger.begin(Seconds(0.0), WORK);
        // 300 tokens in 3 s are 100 in this second; so many of 400 has `a`.
        let b = ledger.begin(Seconds(0.0), ExpectedWork { tokens: Tokens(300.0), duration: Seconds(3.0) });
        ledger.end(a, Seconds(1.0), Some(Tokens(300.0)), "a");
        ledger.share(over(0.0, 1.0, 400.0));
        assert_settled(&ledger.settle(Seconds(1.0)), &[("a", 300.0)]);
        ledger.end(b, Seconds(2.0), Some(Tokens(7.0)), "b");
        ledger.share(over(1.0, 2.0, 50.0));
        assert_settled(&ledger.settle(Seconds(2.0)), &[("b", 150.0)]);
    }

    #[test]
    fn a_request_within_an_interval_takes_what_is_beyond_idle_power() {
        let mut ledger = ledger();
        let a = ledger.begin(Seconds(0.25), WORK);
        ledger.end(a, Seconds(0.75), None, "a");
        // 50 W configured for the idle half second.
        let shared = ledger.share(over(0.0, 1.0, 125.0));
        assert_eq!(shared, Shared { requests: Joules(100.0), idle: Joules(25.0) });
        assert_settled(&ledger.settle(Seconds(1.0)), &[("a", 100.0)]);
    }

    #[test]
    fn idle_power_is_learnt_and_never_takes_more_than_its_share_of_the_time() {
        let mut ledger = ledger();
        assert_eq!(ledger.share(over(0.0, 1.0, 10.0)), Shared { requests: Joules::ZERO, idle: Joules(10.0) });
        let a = ledger.begin(Seconds(1.5), WORK);
        ledger.end(a, Seconds(2.0), None, "a");
        let shared = ledger.share(over(1.0, 2.0, 100.0));
        assert_eq!(shared, Shared { requests: Joules(95.0), idle: Joules(5.0) });
        let b = ledger.begin(Seconds(2.5), WORK);
        ledger.end(b, Seconds(3.0), None, "b");
        // 4 W on the whole, less than idle: half the time, half the energy.
        let shared = ledger.share(over(2.0, 3.0, 4.0));
        assert_eq!(shared, Shared { requests: Joules(2.0), idle: Joules(2.0) });
    }

    #[test]
    fn what_is_hardly_covered_is_not_called_measured() {
        let mut ledger = ledger();
        let a = ledger.begin(Seconds(0.0), WORK);
        ledger.end(a, Seconds(10.0), None, "a");
        ledger.share(over(2.0, 10.0, 800.0));
        assert_eq!(ledger.settle(Seconds(10.0)), [("a", None)]);
        let b = ledger.begin(Seconds(10.0), WORK);
        ledger.end(b, Seconds(20.0), None, "b");
        ledger.share(over(11.0, 20.0, 900.0));
        assert_settled(&ledger.settle(Seconds(20.0)), &[("b", 900.0)]);
        // Settled before any reading, as when a source is lost.
        let c = ledger.begin(Seconds(20.0), WORK);
        ledger.end(c, Seconds(20.0), None, "c");
        assert_eq!(ledger.settle(Seconds(20.0)), [("c", None)]);
    }

    #[test]
    fn requests_without_tokens_share_by_time() {
        let mut ledger = ledger();
        let none = ExpectedWork { tokens: Tokens::ZERO, duration: Seconds::ZERO };
        let (a, b) = (ledger.begin(Seconds(0.0), none), ledger.begin(Seconds(0.0), none));
        ledger.end(a, Seconds(1.0), Some(Tokens::ZERO), "a");
        ledger.end(b, Seconds(1.0), None, "b");
        ledger.share(over(0.0, 1.0, 100.0));
        assert_settled(&ledger.settle(Seconds(1.0)), &[("a", 50.0), ("b", 50.0)]);
    }

    proptest! {
        /// Every joule is given away once: what requests are settled with and what was idle is what the node drew, and
        /// nobody gets less than nothing.
        #[test]
        fn shares_sum_to_the_energy_of_the_node(
            requests in proptest::collection::vec(
                (0.0..10.0_f64, 0.0..5.0_f64, 0.0..500.0_f64, proptest::option::of(0.0..500.0_f64)), 0..20),
            intervals in proptest::collection::vec((0.01..2.0_f64, 0.0..1e5_f64), 1..20),
            idle in 0.0..1e3_f64,
        ) {
            let mut events: Vec<(f64, usize)> = Vec::new();
            for (idx, (begin, length, ..)) in requests.iter().enumerate() {
                events.extend([(*begin, idx), (begin + length, idx)]);
            }
            events.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut events = events.into_iter().peekable();
            let mut ledger = EnergyLedger::new(Watts(idle));
            let mut ids = vec![None; requests.len()];
            let (mut now, mut drawn, mut given, mut idle_sum) = (0.0, 0.0, 0.0, 0.0);
            let mut was_busy = false;
            for (length, joules) in intervals {
                let to = now + length;
                while let Some((at, idx)) = events.next_if(|(at, _)| *at <= to) {
                    let (_, _, expected, counted) = requests[idx];
                    match ids[idx] {
                        None => {
                            let expected =
                                ExpectedWork { tokens: Tokens(expected), duration: Seconds(expected / 100.0) };
                            ids[idx] = Some(ledger.begin(Seconds(at), expected));
                        }
                        Some(id) => ledger.end(id, Seconds(at), counted.map(Tokens), idx),
                    }
                    was_busy |= at < to;
                }
                let shared = ledger.share(over(now, to, joules));
                prop_assert!(shared.requests.0 >= 0.0 && shared.idle.0 >= -1e-9, "{shared:?}");
                prop_assert!(was_busy || shared.requests.0 <= 0.0);
                drawn += joules;
                idle_sum += shared.idle.0;
                for (work, _) in &ledger.ended {
                    prop_assert!(work.drawn.0 >= 0.0);
                }
                given += ledger.ended.extract_if(.., |(work, _)| work.until.is_some_and(|u| u.0 <= to))
                    .map(|(work, _)| work.drawn.0).sum::<f64>();
                now = to;
            }
            let still: f64 = ledger.running.values().map(|work| work.drawn.0).sum();
            prop_assert!((given + still + idle_sum - drawn).abs() <= 1e-6 * drawn.max(1.0));
        }
    }
}

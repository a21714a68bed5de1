//! The waiting set, with an index for each question the planner asks: nothing it does takes longer because many wait.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::messages::{Arrival, Ticket};
use crate::domain::{DestinationOrd, TimeTerm};
use crate::units::Seconds;

/// Where a held request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not planned yet.
    Gathering,
    /// Part of the plan under way.
    Solving,
    /// Planned where it cannot go yet, or failing over.
    PassedOver,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) arrival: Arrival,
    pub(super) stage: Stage,
    /// When it wants to be planned; `None` = when something changes.
    pub(super) plan_at: Option<Seconds>,
    /// Its place in the order of taking slots, once it was passed over; see [`OrderKey`].
    pub(super) key: OrderKey,
    /// A plan with others could not be decided: the next one is its own.
    pub(super) alone: bool,
    /// When it was first passed over, and how many had been sent by then.
    pub(super) passed_over: Option<(Seconds, u64)>,
    /// Where the last plan would send it.
    pub(super) planned: Option<DestinationOrd>,
    /// When a greedy choice at its first plan would have had it done.
    pub(super) greedy_done: Option<Seconds>,
    /// When to look whether its deadline can still be met; `None` = with its next plan.
    pub(super) look_at: Option<Seconds>,
}

impl Held {
    /// The time term it is planned by; `None` = the fleet's.
    pub(super) fn time_term(&self) -> Option<TimeTerm> {
        self.arrival.request.time
    }
}

/// A time as an index orders it; not negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TimeKey(u64);

impl From<Seconds> for TimeKey {
    fn from(at: Seconds) -> Self {
        Self(at.0.max(0.0).to_bits())
    }
}

/// Who takes a slot first: who was overtaken too often, then whose deadline is nearest, then as configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OrderKey {
    may_be_overtaken: bool,
    deadline: TimeKey,
    rank: TimeKey,
}

impl OrderKey {
    /// `deadline` on the planner's clock, infinite where there is none; the lower `rank_s` the sooner.
    pub(super) fn new(deadline: Seconds, rank_s: f64) -> Self {
        Self { may_be_overtaken: true, deadline: deadline.into(), rank: Seconds(rank_s).into() }
    }

    fn first(arrived: Seconds) -> Self {
        Self { may_be_overtaken: false, deadline: TimeKey(0), rank: arrived.into() }
    }
}

/// A place in the order of taking slots.
pub(super) type OrderPlace = (OrderKey, Ticket);

/// Requests to be planned together: of one time term, each once.
pub(super) struct Batch {
    n_max: usize,
    picked: Vec<OrderPlace>,
    term: Option<Option<TimeTerm>>,
}

impl Batch {
    pub(super) fn new(n_max: usize, n_held: usize) -> Self {
        Self { n_max, picked: Vec::with_capacity(n_max.min(n_held)), term: None }
    }

    pub(super) fn is_full(&self) -> bool {
        self.picked.len() >= self.n_max
    }

    /// Takes `ticket` in if it may join.
    pub(super) fn offer(&mut self, held: &HeldSet, ticket: Ticket) {
        let Some(held) = held.get(ticket).filter(|held| !held.alone) else { return };
        let term = *self.term.get_or_insert(held.time_term());
        let place = (held.key, ticket);
        if term == held.time_term() && !self.is_full() && !self.picked.contains(&place) {
            self.picked.push(place);
        }
    }

    /// In the order of taking slots.
    pub(super) fn in_order(mut self) -> Vec<Ticket> {
        self.picked.sort_unstable();
        self.picked.into_iter().map(|(_, ticket)| ticket).collect()
    }
}

/// Everybody who waits.
#[derive(Debug, Default)]
pub(super) struct HeldSet {
    /// Boxed: the nodes of the tree stay small, and requests are not moved about in them.
    requests: BTreeMap<Ticket, Box<Held>>,
    indexes: Indexes,
}

/// Who stands where, for each question.
#[derive(Debug, Default)]
struct Indexes {
    /// New, with nothing to be waited for but company.
    ready: BTreeSet<Ticket>,
    solving: BTreeSet<Ticket>,
    /// Not in a plan, by when they want to be.
    timers: BTreeSet<(TimeKey, Ticket)>,
    /// Not in a plan, by when their time is up.
    expiries: BTreeSet<(TimeKey, Ticket)>,
    /// Not in a plan, by when to look at their deadlines.
    looks: BTreeSet<(TimeKey, Ticket)>,
    /// Passed over, in the order of taking slots.
    order: BTreeSet<OrderPlace>,
    /// The same, those who may be overtaken, by how many had been sent when they were first passed over.
    since: BTreeSet<(u64, Ticket)>,
}

impl HeldSet {
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn get(&self, ticket: Ticket) -> Option<&Held> {
        self.requests.get(&ticket).map(Box::as_ref)
    }

    pub(super) fn insert(&mut self, held: Held) {
        self.remove(held.arrival.ticket);
        self.indexes.insert(&held);
        self.requests.insert(held.arrival.ticket, Box::new(held));
    }

    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Held> {
        let held = self.requests.remove(&ticket)?;
        self.indexes.remove(&held);
        Some(*held)
    }

    /// Changes a request, but not its ticket; says whether it is there.
    pub(super) fn change(&mut self, ticket: Ticket, change: impl FnOnce(&mut Held)) -> bool {
        let Some(held) = self.requests.get_mut(&ticket) else { return false };
        self.indexes.remove(held);
        change(held);
        self.indexes.insert(held);
        true
    }

    /// Who came first.
    pub(super) fn oldest(&self) -> Option<&Held> {
        self.requests.values().next().map(Box::as_ref)
    }

    /// Requests of the plan under way, oldest first.
    pub(super) fn solving(&self) -> Vec<Ticket> {
        self.indexes.solving.iter().copied().collect()
    }

    /// Passed over, in the order of taking slots.
    pub(super) fn passed_over(&self) -> Vec<Ticket> {
        self.indexes.order.iter().map(|(_, ticket)| *ticket).collect()
    }

    pub(super) fn n_ready(&self) -> usize {
        self.indexes.ready.len()
    }

    /// New ones, oldest first.
    pub(super) fn ready(&self) -> impl Iterator<Item = Ticket> {
        self.indexes.ready.iter().copied()
    }

    /// The newest that gathers, planned or awaiting its prediction.
    pub(super) fn newest_gathering(&self) -> Option<&Held> {
        self.requests.values().rev().find(|held| held.stage == Stage::Gathering).map(Box::as_ref)
    }

    pub(super) fn has_passed_over(&self) -> bool {
        !self.indexes.order.is_empty()
    }

    /// Passed over, in the order of taking slots, those behind `from`.
    pub(super) fn in_order(&self, from: Option<OrderPlace>) -> impl Iterator<Item = OrderPlace> {
        let behind = from.map_or(Bound::Unbounded, Bound::Excluded);
        self.indexes.order.range((behind, Bound::Unbounded)).copied()
    }

    /// Those who want to be planned by `now`, longest wish first.
    pub(super) fn wanting(&self, now: Seconds) -> impl Iterator<Item = Ticket> {
        let is_due = move |(at, _): &&(TimeKey, Ticket)| *at <= TimeKey::from(now);
        self.indexes.timers.iter().take_while(is_due).map(|(_, ticket)| *ticket)
    }

    /// The next whose time is up by `now`.
    pub(super) fn expired(&self, now: Seconds) -> Option<Ticket> {
        let (at, ticket) = self.indexes.expiries.first()?;
        (*at <= TimeKey::from(now)).then_some(*ticket)
    }

    /// Those whose deadlines are to be looked at by `now`.
    pub(super) fn to_look_at(&self, now: Seconds) -> Vec<Ticket> {
        let is_due = move |(at, _): &&(TimeKey, Ticket)| *at <= TimeKey::from(now);
        self.indexes.looks.iter().take_while(is_due).map(|(_, ticket)| *ticket).collect()
    }

    /// When somebody wants to be planned, is to be looked at, or has no more time.
    pub(super) fn next_due(&self, is_solving: bool) -> Option<Seconds> {
        let first =
            |index: &BTreeSet<(TimeKey, Ticket)>| index.first().map(|(at, _)| Seconds(f64::from_bits(at.0)));
        let plan_at = if is_solving { None } else { first(&self.indexes.timers) };
        let looks = first(&self.indexes.looks);
        [plan_at, looks, first(&self.indexes.expiries)].into_iter().flatten().reduce(Seconds::min)
    }

    /// Whoever saw `n` others leave since it was passed over, of `n_sent` in all, goes first from now on.
    pub(super) fn promote(&mut self, n_sent: u64, n: u64) {
        while let Some((since, ticket)) = self.indexes.since.first().copied()
            && n_sent.saturating_sub(since) >= n
        {
            self.change(ticket, |held| held.key = OrderKey::first(held.arrival.arrived));
        }
    }
}

impl Indexes {
    fn insert(&mut self, held: &Held) {
        let ticket = held.arrival.ticket;
        match held.stage {
            Stage::Solving => {
                self.solving.insert(ticket);
                return;
            }
            Stage::Gathering if held.arrival.awaiting_until.is_none() => {
                self.ready.insert(ticket);
            }
            Stage::Gathering => {}
            Stage::PassedOver => {
                self.order.insert((held.key, ticket));
                if let Some((_, n_sent)) = held.passed_over.filter(|_| held.key.may_be_overtaken) {
                    self.since.insert((n_sent, ticket));
                }
            }
        }
        self.expiries.insert((held.arrival.expires.into(), ticket));
        if let Some(at) = held.plan_at {
            self.timers.insert((at.into(), ticket));
        }
        if let Some(at) = held.look_at {
            self.looks.insert((at.into(), ticket));
        }
    }

    fn remove(&mut self, held: &Held) {
        let ticket = held.arrival.ticket;
        match held.stage {
            Stage::Solving => {
                self.solving.remove(&ticket);
                return;
            }
            Stage::Gathering => {
                self.ready.remove(&ticket);
            }
            Stage::PassedOver => {
                self.order.remove(&(held.key, ticket));
                if let Some((_, n_sent)) = held.passed_over {
                    self.since.remove(&(n_sent, ticket));
                }
            }
        }
        self.expiries.remove(&(held.arrival.expires.into(), ticket));
        if let Some(at) = held.plan_at {
            self.timers.remove(&(at.into(), ticket));
        }
        if let Some(at) = held.look_at {
            self.looks.remove(&(at.into(), ticket));
        }
    }
}

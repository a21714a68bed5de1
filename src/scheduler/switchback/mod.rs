//! The books of policies that take turns: what came of the requests of each slice.
//!
//! A request counts for the policy whose slice it arrived in, unless that was during the wash-out, and whatever became
//! of it later: which requests count does not depend on what a policy does to them. One that leaves for its destination
//! after the slice is over does so by a plan of the next policy; those are counted as crossed.

mod energy;
mod feedback;
mod metrics;
pub mod report;
mod tally;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::domain::{DestinationOrd, ObjectiveScales, Weights};
use crate::planning::{Alternation, Slice};
use crate::profiler::quality::feedback::TrialSlice;
use crate::units::Seconds;

use energy::Open;
use report::{Report, Snapshot};
use tally::{Latencies, Tally};

pub(super) use metrics::SwitchbackGauges;
pub use tally::{Ending, Realised};

/// Slices whose figures are kept.
const SLICES_MAX: usize = 4_096;
/// Requests that may wait for what a meter says of them; of further ones the modelled energy stands.
const OPEN_MAX: usize = 65_536;

/// The books. Clones share them.
#[derive(Debug, Clone)]
pub struct Switchback {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    alternation: Alternation,
    policies: Arc<[&'static str]>,
    /// The beginning of the first slice.
    epoch: Instant,
    /// Held for microseconds, never across an await.
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    /// The newest at the back; without requests a slice has no entry.
    slices: VecDeque<SliceBooks>,
    /// All counted requests since the start, by policy.
    totals: Vec<(Tally, Latencies)>,
    /// Requests of which a meter may still tell, by id.
    open: HashMap<Arc<str>, Open>,
    n_under_way: u64,
}

/// One slice.
#[derive(Debug, Clone, Copy)]
struct SliceBooks {
    slice: Slice,
    /// Requests that arrived in it and are not over, wash-out included.
    n_under_way: u64,
    /// Those of them that count.
    n_counted_under_way: u64,
    /// Requests of earlier slices that were under way when its wash-out was over; known from its first request then.
    carried_over: Option<u64>,
    tally: Tally,
}

/// A request under way, in the slice it arrived in. Dropped without an end, it says nothing.
#[derive(Debug)]
pub struct Trial {
    switchback: Switchback,
    slice: Slice,
    is_counted: bool,
    /// Whether what meters say of its id is its own.
    is_open: bool,
    id: Arc<str>,
    weights: Weights,
    has_crossed: bool,
    is_over: bool,
}

impl Switchback {
    /// Nothing has come yet. `policies` take turns as `alternation` says, from `epoch` on.
    pub(super) fn new(alternation: Alternation, policies: Arc<[&'static str]>, epoch: Instant) -> Self {
        let totals = policies.iter().map(|_| Default::default()).collect();
        let books = Mutex::new(Books { totals, ..Books::default() });
        Self { shared: Arc::new(Shared { alternation, policies, epoch, books }) }
    }

    /// The request `id` has arrived, with these weights in J.
    #[must_use]
    pub fn begin(&self, id: &Arc<str>, weights: Weights) -> Trial {
        let mut books = self.books();
        // Under the lock, so that no slice is opened after a later one.
        let now = self.now();
        let slice = self.shared.alternation.at(now);
        let is_counted = now.0 >= slice.counts_from.0;
        let n_others = books.n_under_way;
        books.n_under_way += 1;
        let newest = books.newest(slice);
        if is_counted {
            let n_own = newest.n_under_way;
            newest.carried_over.get_or_insert(n_others.saturating_sub(n_own));
            newest.n_counted_under_way += 1;
        }
        newest.n_under_way += 1;
        // An id that clients use twice at once is the first one's.
        let is_open = is_counted && books.open.len() < OPEN_MAX && !books.open.contains_key(id);
        if is_open {
            books.open.insert(Arc::clone(id), Open::new(slice, weights.energy));
        }
        drop(books);
        let (switchback, id) = (self.clone(), Arc::clone(id));
        Trial { switchback, slice, is_counted, is_open, id, weights, has_crossed: false, is_over: false }
    }

    fn now(&self) -> Seconds {
        Seconds(self.shared.epoch.elapsed().as_secs_f64())
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.shared.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The figures so far, on these scales of J.
    #[must_use]
    pub fn report(&self, scales: ObjectiveScales) -> Report {
        Report::new(&self.snapshot(), scales)
    }

    fn snapshot(&self) -> Snapshot {
        let now = self.now();
        let books = self.books();
        Snapshot {
            alternation: self.shared.alternation,
            policies: Arc::clone(&self.shared.policies),
            now,
            totals: books.totals.clone(),
            slices: books.slices.iter().copied().collect(),
        }
    }
}

impl Books {
    /// The books of `slice`, which is the newest.
    fn newest(&mut self, slice: Slice) -> &mut SliceBooks {
        if self.slices.back().is_none_or(|newest| newest.slice.number != slice.number) {
            // What no meter has told of by now none will.
            self.open.retain(|_, open| open.answered.is_none() || open.slice.number + 2 > slice.number);
            if self.slices.len() >= SLICES_MAX {
                self.slices.pop_front();
            }
            self.slices.push_back(SliceBooks::new(slice));
        }
        let newest = self.slices.len() - 1;
        &mut self.slices[newest]
    }

    /// The books of `slice` while they are kept.
    fn kept(&mut self, slice: Slice) -> Option<&mut SliceBooks> {
        let at = self.slices.binary_search_by_key(&slice.number, |kept| kept.slice.number).ok()?;
        self.slices.get_mut(at)
    }
}

impl SliceBooks {
    fn new(slice: Slice) -> Self {
        Self { slice, n_under_way: 0, n_counted_under_way: 0, carried_over: None, tally: Tally::default() }
    }
}

impl Trial {
    /// It leaves for a destination by a plan of `policy`.
    pub fn placed(&mut self, policy: &'static str) {
        self.has_crossed |= self.switchback.shared.policies.get(self.slice.policy) != Some(&policy);
    }

    /// Where what its client says of the answer belongs, if it counts.
    #[must_use]
    pub fn slice(&self) -> Option<TrialSlice> {
        let Slice { number, policy, .. } = self.slice;
        self.is_counted.then_some(TrialSlice { number, policy })
    }

    /// It is over; `destination` is where it was last.
    pub fn end(mut self, ending: &Ending, destination: Option<DestinationOrd>) {
        self.over(ending, destination);
    }

    fn over(&mut self, ending: &Ending, destination: Option<DestinationOrd>) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let Self { slice, is_counted, weights, has_crossed, .. } = *self;
        let mut books = self.switchback.books();
        books.n_under_way = books.n_under_way.saturating_sub(1);
        if let Some(kept) = books.kept(slice) {
            kept.n_under_way = kept.n_under_way.saturating_sub(1);
            if is_counted {
                kept.n_counted_under_way = kept.n_counted_under_way.saturating_sub(1);
                kept.tally.add(ending, weights, has_crossed);
            }
        }
        if !is_counted {
            return;
        }
        let (tally, latencies) = &mut books.totals[slice.policy];
        tally.add(ending, weights, has_crossed);
        if let Ending::Answered(realised) = ending {
            latencies.add(realised.latency);
        }
        if self.is_open {
            books.close(&self.id, ending, destination);
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.over(&Ending::Void, None);
    }
}

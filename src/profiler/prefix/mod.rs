//! What of a conversation each destination has in its prefix cache.
//!
//! Engines keep what they have read of prompts and skip it when the next prompt begins with the same. No API tells
//! what is kept, so the router remembers what it sent where (`table`), takes its word for as much of that as the
//! engine was seen to find, and plans with the rest of the prompt as work.

mod metrics;
mod table;

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::Registry;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::domain::{Availability, CachedPrefix, Destination, DestinationOrd, EndpointOrd, PrefixChain};
use crate::units::{Seconds, Tokens};

use metrics::{PrefixMetrics, PrefixMetricsAt};
use table::{FoundRatio, PrefixTable};

/// How much is remembered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefixParams {
    /// Beginnings of prompts (ends of messages) and sessions kept per destination; 0 = prefix caches are left out of
    /// account.
    pub entries: u32,
    /// How long they count.
    pub max_age: Seconds,
}

impl PrefixParams {
    /// `routing.prefix_cache` where it is not given. A few hundred conversations each; engines under load keep less,
    /// which is learnt.
    pub const DEFAULT: Self = Self { entries: 8_192, max_age: Seconds(600.0) };
}

/// Remembers what destinations were sent. Clones share it.
#[derive(Debug, Clone)]
pub struct PrefixProfiler {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    epoch: Instant,
    /// In the order of destinations; none if prefix caches are left out of account.
    destinations: Vec<AtDestination>,
}

#[derive(Debug)]
struct AtDestination {
    endpoint: EndpointOrd,
    /// Never held across an await.
    memory: Mutex<Memory>,
    metrics: PrefixMetricsAt,
}

#[derive(Debug)]
struct Memory {
    table: PrefixTable,
    found: FoundRatio,
}

/// What is known of the prefix cache of one destination.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefixReading {
    /// Share of tokens sent before that is expected to be found.
    pub found_ratio: f64,
    /// Answers that it was learnt from.
    pub samples: u64,
    /// Time since the last of them.
    pub age: Option<Seconds>,
    /// Beginnings of prompts and sessions that are remembered.
    pub entries: usize,
}

/// What an answer says of the cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefixFound {
    /// Tokens of the prompt as the engine counted them.
    pub counted: Tokens,
    /// Those of them that it had in its cache.
    pub cached: Tokens,
    /// The prompt as it was estimated.
    pub estimated: Tokens,
}

/// A prompt at a destination.
#[derive(Debug)]
pub struct PrefixVisit {
    profiler: PrefixProfiler,
    d: DestinationOrd,
    known: Tokens,
    is_recorded: bool,
}

impl PrefixProfiler {
    /// Remembers nothing yet of `destinations`.
    ///
    /// # Errors
    /// When the metrics are registered already.
    pub fn new(
        params: PrefixParams,
        destinations: &[Destination],
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let metrics = PrefixMetrics::register(registry)?;
        let entries = NonZeroUsize::new(params.entries as usize);
        let at = |destination: &Destination| {
            let table = PrefixTable::new(entries?, params.max_age);
            let found = FoundRatio::new();
            let metrics = metrics.at(destination, found.ratio());
            let memory = Mutex::new(Memory { table, found });
            Some(AtDestination { endpoint: destination.endpoint, memory, metrics })
        };
        let destinations = destinations.iter().filter_map(at).collect();
        Ok(Self { shared: Arc::new(Shared { epoch: Instant::now(), destinations }) })
    }

    /// What each destination is expected to have cached of a prompt.
    #[must_use]
    pub fn expected(&self, chain: &PrefixChain) -> CachedPrefix {
        if chain.is_empty() {
            return CachedPrefix::NOWHERE;
        }
        let now = self.now();
        let mut tokens = Vec::new();
        for (idx, at) in self.shared.destinations.iter().enumerate() {
            let memory = at.memory();
            let known = memory.table.known(now, chain);
            if known.0 > 0.0 {
                // Most prompts are known nowhere.
                tokens.resize(self.shared.destinations.len(), Tokens::ZERO);
                tokens[idx] = Tokens(known.0 * memory.found.ratio());
            }
        }
        CachedPrefix::new(tokens)
    }

    /// A prompt is sent to `d`, one of the destinations.
    #[must_use]
    pub fn begin(&self, d: DestinationOrd, chain: &PrefixChain) -> PrefixVisit {
        let at = self.at(d).filter(|_| !chain.is_empty());
        let known = at.map_or(Tokens::ZERO, |at| at.memory().table.known(self.now(), chain));
        PrefixVisit { profiler: self.clone(), d, known, is_recorded: chain.is_empty() }
    }

    /// Forgets what endpoints have lost that went out of service, for ever.
    pub async fn follow(self, mut health: watch::Receiver<Arc<[Availability]>>) {
        loop {
            let states = Arc::clone(&health.borrow_and_update());
            for at in &self.shared.destinations {
                if states.get(at.endpoint.idx()).is_some_and(|state| loses_cache(*state)) {
                    at.memory().table.clear();
                }
            }
            if health.changed().await.is_err() {
                return;
            }
        }
    }

    /// What is known of every destination, in order; nothing if prefix caches are left out of account.
    #[must_use]
    pub fn readings(&self) -> Vec<PrefixReading> {
        let now = self.now();
        let reading = |at: &AtDestination| {
            let Memory { table, found } = &*at.memory();
            PrefixReading {
                found_ratio: found.ratio(),
                samples: found.samples(),
                age: found.age(now),
                entries: table.len(),
            }
        };
        self.shared.destinations.iter().map(reading).collect()
    }

    fn now(&self) -> Seconds {
        Seconds(self.shared.epoch.elapsed().as_secs_f64())
    }

    fn at(&self, d: DestinationOrd) -> Option<&AtDestination> {
        self.shared.destinations.get(d.idx())
    }
}

/// Whether an engine that comes back from this state has begun anew.
const fn loses_cache(state: Availability) -> bool {
    match state {
        Availability::Down | Availability::Loading | Availability::CircuitOpen => true,
        Availability::Ready | Availability::Busy | Availability::Draining | Availability::Cooling => false,
    }
}

impl AtDestination {
    /// Whoever panicked with the lock left entries that are as good as any.
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PrefixVisit {
    /// Tokens of the prompt that were sent there before.
    #[must_use]
    pub const fn known(&self) -> Tokens {
        self.known
    }

    /// The prompt, of `chain`, has been read: its answer has begun.
    pub fn read(&mut self, chain: &PrefixChain) {
        if !std::mem::replace(&mut self.is_recorded, true)
            && let Some(at) = self.profiler.at(self.d)
        {
            let now = self.profiler.now();
            at.memory().table.record(now, chain);
        }
    }

    /// The engine has said what it found of the prompt.
    pub fn found(&self, found: &PrefixFound) {
        let PrefixFound { counted, cached, estimated } = *found;
        let Some(at) = self.profiler.at(self.d).filter(|_| estimated.0 > 0.0) else { return };
        let expected = Tokens(self.known.0 * counted.0 / estimated.0);
        at.metrics.count(expected, cached);
        if expected.0 > 0.0 {
            let mut memory = at.memory();
            memory.found.observe(self.profiler.now(), expected, cached);
            at.metrics.show(memory.found.ratio());
        }
    }
}

#[cfg(test)]
mod tests;

//! The live speed of every destination, as finished and running requests show it.
//!
//! [`estimator`] follows the figures over finished requests, `flow` measures what those took and compares the
//! progress of running ones with what was expected, `pace` makes of that how fast a destination is right now.
//! All of that is pure; here are the clock, the locks and the metrics.

pub mod estimator;
mod filter;
mod flow;
mod metrics;
mod pace;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::Registry;
use tokio::time::Instant;

use crate::domain::{Destination, DestinationOrd};
use crate::units::Seconds;

use flow::Flow;
use metrics::SpeedMetrics;

pub use estimator::{Figure, Given, SpeedEstimator, SpeedReading};
pub use flow::{Answered, Expected};

/// Measures the speed of destinations. Clones share what was measured.
#[derive(Debug, Clone)]
pub struct SpeedProfiler {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    epoch: Instant,
    flows: Vec<DestinationFlow>,
    metrics: SpeedMetrics,
}

#[derive(Debug)]
struct DestinationFlow {
    /// Never held across an await.
    flow: Mutex<Flow>,
    /// Events with content of all streams so far: counted without the lock, at every piece of a stream.
    n_events: AtomicU64,
    /// As many of them as the last tick has seen.
    n_ticked: AtomicU64,
}

/// A request under way. Dropped without an answer, it tells nothing.
#[derive(Debug)]
pub struct Flight {
    profiler: SpeedProfiler,
    d: DestinationOrd,
    index: usize,
    /// Events of its stream that have been counted.
    n_events: u64,
    is_over: bool,
}

impl SpeedProfiler {
    /// A profiler of `destinations`, whose figures are the references; `given` says which of them the operator gave,
    /// in the same order.
    ///
    /// # Errors
    /// When the metrics are registered already.
    pub fn new(
        destinations: &[Destination],
        given: &[Given],
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        Self::build((destinations, given), registry, Instant::now(), |_| None)
    }

    /// The same of a fleet that takes the place of `before`'s: what was learnt of a destination is known of it still, where
    /// its figures are the same. `was` says where each destination was.
    ///
    /// # Errors
    /// When the metrics are registered already.
    pub fn after(
        before: &Self,
        was: &[Option<DestinationOrd>],
        (destinations, given): (&[Destination], &[Given]),
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let learnt = |idx: usize| Some(before.flow(was.get(idx).copied().flatten()?).estimator().clone());
        Self::build((destinations, given), registry, before.shared.epoch, learnt)
    }

    fn build(
        (destinations, given): (&[Destination], &[Given]),
        registry: &Registry,
        epoch: Instant,
        learnt: impl Fn(usize) -> Option<SpeedEstimator>,
    ) -> prometheus::Result<Self> {
        let now = Seconds(epoch.elapsed().as_secs_f64());
        let of = |(idx, d): (usize, &Destination)| {
            let given = given.get(idx).copied().unwrap_or_default();
            let known = learnt(idx).filter(|learnt| learnt.is_of(&d.throughput, given));
            let estimator = known.unwrap_or_else(|| SpeedEstimator::new(d.throughput, given));
            let flow = Flow::new(estimator, d.throughput.max_concurrency, now);
            let (n_events, n_ticked) = (AtomicU64::new(0), AtomicU64::new(0));
            DestinationFlow { flow: Mutex::new(flow), n_events, n_ticked }
        };
        let flows = destinations.iter().enumerate().map(of).collect();
        let metrics = SpeedMetrics::register(registry, destinations)?;
        Ok(Self { shared: Arc::new(Shared { epoch, flows, metrics }) })
    }

    /// A request is sent to `d`, one of the destinations, at `now`.
    #[must_use]
    pub fn begin(&self, now: Instant, d: DestinationOrd, expected: Expected) -> Flight {
        let now = self.since_epoch(now);
        let index = self.flow(d).begin(now, expected);
        Flight { profiler: self.clone(), d, index, n_events: 0, is_over: false }
    }

    /// Compares progress with what was expected; to be called about every half second.
    pub fn tick(&self) {
        let now = self.now();
        for (idx, destination) in self.shared.flows.iter().enumerate() {
            let n_events = destination.n_events.load(Ordering::Relaxed);
            let n_before = destination.n_ticked.swap(n_events, Ordering::Relaxed);
            let reading = {
                let mut flow = lock(&destination.flow);
                flow.tick(now, n_events.saturating_sub(n_before));
                flow.reading(now)
            };
            self.shared.metrics.show(idx, &reading);
        }
    }

    /// What is known of every destination, in order.
    #[must_use]
    pub fn readings(&self) -> Vec<SpeedReading> {
        let now = self.now();
        self.shared.flows.iter().map(|destination| lock(&destination.flow).reading(now)).collect()
    }

    fn now(&self) -> Seconds {
        self.since_epoch(Instant::now())
    }

    fn since_epoch(&self, at: Instant) -> Seconds {
        Seconds(at.duration_since(self.shared.epoch).as_secs_f64())
    }

    fn flow(&self, d: DestinationOrd) -> MutexGuard<'_, Flow> {
        lock(&self.shared.flows[d.idx()].flow)
    }
}

/// Whoever panicked with the lock left figures that are as good as any.
fn lock(flow: &Mutex<Flow>) -> MutexGuard<'_, Flow> {
    flow.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Flight {
    /// The first content of a stream has come.
    pub fn first_content(&mut self) {
        let now = self.profiler.now();
        self.profiler.flow(self.d).first_content(now, self.index);
    }

    /// So many events with content have come since the stream began.
    pub fn events(&mut self, n_events: u64) {
        let n_new = n_events.saturating_sub(std::mem::replace(&mut self.n_events, n_events));
        if n_new > 0 {
            self.profiler.shared.flows[self.d.idx()].n_events.fetch_add(n_new, Ordering::Relaxed);
        }
    }

    /// It has been answered, by `now`.
    pub fn finish(mut self, now: Instant, answered: &Answered) {
        let now = self.profiler.since_epoch(now);
        self.is_over = true;
        self.profiler.flow(self.d).finish(now, self.index, answered);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !self.is_over {
            let now = self.profiler.now();
            self.profiler.flow(self.d).end(now, self.index);
        }
    }
}

#[cfg(test)]
mod tests;

//! What engines say of themselves: requests that run and wait in them whoever sent those, how full their caches
//! are, which models they have loaded.
//!
//! Each engine's pages (`pages`) are read at a bounded rate, one at a time, over the connections of health
//! probes. A page that is not there is asked for rarely, one that fails less and less often; what it said is
//! forgotten at once, and the configured figures stand. No reading makes an engine load a model.

mod caps;
mod loads;
mod metrics;
mod pages;
mod reading;

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use prometheus::Registry;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use crate::domain::{Availability, Destination, EndpointOrd};
use crate::endpoint::EndpointPool;
use crate::endpoint::pool::PageBounds;
use crate::profiler::node::FleetHealth;
use crate::profiler::speed::Given;

use metrics::EngineMetrics;
use pages::{Page, Told, pages_of};

pub use caps::{CapMismatch, CapSign, SlotCap, SlotCaps};
pub use loads::{ColdStart, ModelLoad, ModelLoads};
pub use reading::{EngineReading, KV_FULL, ModelResidence, capped_concurrency, is_cold, waiting_elsewhere};

/// Time between two rounds at one engine; each is up to a tenth longer or shorter, so that engines which started
/// together are not asked together for ever.
const ROUND_EVERY: Duration = Duration::from_secs(2);
const JITTER: f64 = 0.1;
/// Longest wait for a page.
const PAGE_LIMIT: Duration = Duration::from_secs(2);
/// Largest page that is read: vLLM's has 60 KB for one model of one engine.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Time until a page that is not there, or has failed often, is asked for again.
const ABSENT_EVERY: Duration = Duration::from_secs(60);
/// Failures after which a page is asked for that rarely: 2 s doubled so often is more.
const FAILURES_MAX: u32 = 5;

/// Reads what engines say of themselves. Clones share what was read.
#[derive(Debug, Clone)]
pub struct EngineProfiler {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pool: Arc<EndpointPool>,
    health: FleetHealth,
    /// Names of the models of each endpoint, as it knows them.
    models: Vec<Vec<Arc<str>>>,
    readings: watch::Sender<Arc<[Option<EngineReading>]>>,
    loads: ModelLoads,
    caps: SlotCaps,
    metrics: EngineMetrics,
    seed: u64,
}

impl EngineProfiler {
    /// A profiler of the engines behind `pool` that has read nothing yet. With each destination, which of its figures the
    /// operator gave. `seed` is that of the jitter.
    ///
    /// # Errors
    /// When the metrics are registered already.
    pub fn new(
        pool: Arc<EndpointPool>,
        health: FleetHealth,
        (destinations, given): (&Arc<[Destination]>, &[Given]),
        seed: u64,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let names_at = |endpoint| {
            let here = destinations.iter().filter(|d| d.endpoint == endpoint);
            here.map(|d| Arc::clone(&d.upstream_model)).collect()
        };
        let models: Vec<_> = pool.iter().map(|(endpoint, _)| names_at(endpoint)).collect();
        let readings = watch::Sender::new(vec![None; models.len()].into());
        let loads = ModelLoads::new(destinations, registry)?;
        let caps = SlotCaps::new(destinations, given, registry)?;
        let metrics = EngineMetrics::register(registry)?;
        let shared = Shared { pool, health, models, readings, loads, caps, metrics, seed };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Follows the readings, in the order of [`EndpointOrd`]; `None` = the engine does not tell, or not now.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<[Option<EngineReading>]>> {
        self.shared.readings.subscribe()
    }

    /// Which models are loaded, and what loading takes.
    #[must_use]
    pub fn loads(&self) -> &ModelLoads {
        &self.shared.loads
    }

    /// How many requests engines run at once, as far as they show.
    #[must_use]
    pub fn caps(&self) -> &SlotCaps {
        &self.shared.caps
    }

    /// Reads the pages of `endpoint` over and over; ends at once where its kind has none.
    pub async fn watch_endpoint(self, endpoint: EndpointOrd) {
        let pages = pages_of(self.shared.pool.spec(endpoint).kind);
        if pages.is_empty() {
            return;
        }
        let mut jitter = ChaCha8Rng::seed_from_u64(self.shared.seed.wrapping_add(u64::from(endpoint.0)));
        let mut clocks = vec![PageClock::default(); pages.len()];
        let mut told = Told::default();
        loop {
            let read_at = Instant::now();
            let own_inflight = self.shared.health.inflight(endpoint);
            told.begin_round();
            if self.answers(endpoint) {
                for (page, clock) in pages.iter().zip(&mut clocks) {
                    if clock.is_due(read_at) && page.is_wanted(&told, own_inflight > 0) {
                        self.read(endpoint, *page, &mut told, clock).await;
                    }
                }
            } else {
                told = Told::default();
                clocks.fill(PageClock::default());
            }
            // What has been sent since the pages were asked for may be in what they say.
            let own_inflight = own_inflight.max(self.shared.health.inflight(endpoint));
            let names = &self.shared.models[endpoint.idx()];
            self.publish(endpoint, told.reading(names, own_inflight, read_at));
            sleep(ROUND_EVERY.mul_f64(jitter.random_range(1.0 - JITTER..=1.0 + JITTER))).await;
        }
    }

    /// Whether there is a server that is worth asking.
    fn answers(&self, endpoint: EndpointOrd) -> bool {
        let states = self.shared.health.states();
        let state = states.get(endpoint.idx());
        state.is_some_and(|state| !matches!(state, Availability::Down | Availability::Loading))
    }

    async fn read(&self, endpoint: EndpointOrd, page: Page, told: &mut Told, clock: &mut PageClock) {
        let bounds = PageBounds { time: PAGE_LIMIT, bytes: PAGE_BYTES_MAX };
        let answer = self.shared.pool.get_page(endpoint, page.path(), bounds).await;
        let name = &self.shared.pool.spec(endpoint).name;
        match answer {
            Ok((status, Some(body))) if status.is_success() => {
                let is_read = std::str::from_utf8(&body).is_ok_and(|text| page.read(text, told));
                if is_read {
                    clock.succeeded(page);
                    return;
                }
                debug!(endpoint = name, page = page.path(), "not the page it should be");
                clock.failed();
            }
            Ok((status, _)) if status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED => {
                if clock.absent() {
                    let (page, is_key) = (page.path(), matches!(status.as_u16(), 401 | 403));
                    let status = status.as_u16();
                    if is_key {
                        warn!(
                            endpoint = name,
                            page, status, "its engine refuses the router: is its `api_key_env` right?"
                        );
                    } else {
                        info!(
                            endpoint = name,
                            page, status, "its engine does not serve this page to the router"
                        );
                    }
                }
            }
            Ok(_) | Err(_) => clock.failed(),
        }
        page.forget(told);
    }

    fn publish(&self, endpoint: EndpointOrd, reading: Option<EngineReading>) {
        let shared = &self.shared;
        shared.metrics.show(&shared.pool.spec(endpoint).name, reading.as_ref());
        shared.loads.observe(endpoint, reading.as_ref());
        shared.caps.observe(endpoint, reading.as_ref());
        shared.readings.send_if_modified(|readings| {
            let was_silent = readings[endpoint.idx()].is_none();
            if was_silent && reading.is_none() {
                return false;
            }
            let mut next = readings.to_vec();
            next[endpoint.idx()] = reading;
            *readings = next.into();
            true
        });
    }
}

/// When a page may be asked for again.
#[derive(Debug, Clone, Copy, Default)]
struct PageClock {
    due: Option<Instant>,
    n_failures: u32,
    is_absent: bool,
}

impl PageClock {
    fn is_due(self, now: Instant) -> bool {
        self.due.is_none_or(|due| due <= now)
    }

    fn succeeded(&mut self, page: Page) {
        // A round that comes a little early is the right one all the same.
        let due = Instant::now() + page.every().saturating_sub(ROUND_EVERY);
        *self = Self { due: Some(due), ..Self::default() };
    }

    /// It failed to come: it is asked for after 2, 4, 8 … rounds.
    fn failed(&mut self) {
        self.n_failures = (self.n_failures + 1).min(FAILURES_MAX);
        self.due = Some(Instant::now() + (ROUND_EVERY * (1 << self.n_failures)).min(ABSENT_EVERY));
    }

    /// It is not there; true where that is news.
    fn absent(&mut self) -> bool {
        self.due = Some(Instant::now() + ABSENT_EVERY);
        !std::mem::replace(&mut self.is_absent, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_page_that_is_not_there_is_asked_for_once_a_minute() {
        let mut clock = PageClock::default();
        assert!(clock.is_due(Instant::now()));
        assert!(clock.absent(), "the first time is news");
        tokio::time::advance(59 * S).await;
        assert!(!clock.is_due(Instant::now()));
        tokio::time::advance(S).await;
        assert!(clock.is_due(Instant::now()) && !clock.absent());
        clock.succeeded(Page::VllmMetrics);
        assert!(clock.absent(), "it was there in between");
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_that_fails_is_asked_for_less_and_less_often() {
        let mut clock = PageClock::default();
        for wait_s in [4, 8, 16, 32, 60, 60] {
            clock.failed();
            assert_eq!(clock.due, Some(Instant::now() + wait_s * S));
        }
        clock.succeeded(Page::LlamaCppProps);
        assert!(clock.is_due(Instant::now()), "the next round is soon enough");
        clock.succeeded(Page::OllamaInstalled);
        assert_eq!(clock.due, Some(Instant::now() + 58 * S));
        clock.failed();
        assert_eq!(clock.due, Some(Instant::now() + 4 * S), "it counts anew");
    }
}

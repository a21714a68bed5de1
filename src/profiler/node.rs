//! The node profiler: which endpoints can take work.
//!
//! Every endpoint is probed on its dialect's health page; a failed connection seen by a request counts
//! at once, without waiting for the next probe. A probe that times out on an endpoint with requests
//! under way means busy, not down: llama.cpp's health page shares its threads with open streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::StatusCode;
use prometheus::{IntGaugeVec, Opts, Registry};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use crate::domain::{Availability, EndpointOrd};
use crate::endpoint::{EndpointPool, SendError};

/// Time between probes of one endpoint.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for a probe's answer.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// Health of every endpoint, in the order of [`EndpointOrd`]. Clones share it.
#[derive(Debug, Clone)]
pub struct FleetHealth {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pool: Arc<EndpointPool>,
    states: watch::Sender<Arc<[Availability]>>,
    inflight: Vec<AtomicU32>,
    up: IntGaugeVec,
}

/// Keeps an endpoint's count of requests under way right.
#[derive(Debug)]
pub struct UnderWay {
    health: FleetHealth,
    endpoint: EndpointOrd,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.health.shared.inflight[self.endpoint.idx()].fetch_sub(1, Ordering::Relaxed);
    }
}

impl FleetHealth {
    /// All endpoints down until a first probe says otherwise.
    ///
    /// # Errors
    /// When the metrics are registered already.
    pub fn new(pool: Arc<EndpointPool>, registry: &Registry) -> prometheus::Result<Self> {
        let up = IntGaugeVec::new(
            Opts::new("cema_endpoint_up", "Whether the endpoint can take work (1) or not (0)."),
            &["endpoint"],
        )?;
        registry.register(Box::new(up.clone()))?;
        let n_endpoints = pool.iter().count();
        for (_, spec) in pool.iter() {
            up.with_label_values(&[&spec.name]).set(0);
        }
        let states: Arc<[Availability]> = vec![Availability::Down; n_endpoints].into();
        let inflight = (0..n_endpoints).map(|_| AtomicU32::new(0)).collect();
        let shared = Shared { pool, states: watch::Sender::new(states), inflight, up };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Follows the states.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<[Availability]>> {
        self.shared.states.subscribe()
    }

    /// The states now.
    #[must_use]
    pub fn states(&self) -> Arc<[Availability]> {
        Arc::clone(&self.shared.states.borrow())
    }

    /// Counts a request under way at `endpoint` until the guard is dropped.
    #[must_use]
    pub fn begin(&self, endpoint: EndpointOrd) -> UnderWay {
        self.shared.inflight[endpoint.idx()].fetch_add(1, Ordering::Relaxed);
        UnderWay { health: self.clone(), endpoint }
    }

    /// A request could not reach `endpoint`: down until a probe succeeds.
    pub fn report_unreachable(&self, endpoint: EndpointOrd) {
        self.set(endpoint, Availability::Down, "a request could not connect");
    }

    /// Probes `endpoint` for ever.
    pub async fn watch_endpoint(self, endpoint: EndpointOrd) {
        let mut ticks = interval(PROBE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.probe(endpoint).await;
        }
    }

    /// Probes every endpoint once, all at the same time.
    pub async fn probe_all(&self) {
        let probes = self.shared.pool.iter().map(|(endpoint, _)| self.probe(endpoint));
        futures_util::future::join_all(probes).await;
    }

    async fn probe(&self, endpoint: EndpointOrd) {
        let Some((_, spec)) = self.shared.pool.iter().nth(endpoint.idx()) else { return };
        match self.shared.pool.get_status(endpoint, &spec.health_path(), PROBE_LIMIT).await {
            Ok(status) if status.is_success() => {
                self.set(endpoint, Availability::Ready, "its health page answers");
            }
            Ok(StatusCode::SERVICE_UNAVAILABLE) => {
                self.set(endpoint, Availability::Loading, "its health page says 503");
            }
            Ok(status) => {
                warn!(endpoint = spec.name, status = status.as_u16(), "unexpected health answer");
                self.set(endpoint, Availability::Down, "its health page answers with an error");
            }
            Err(SendError::FirstByteTimeout(_)) if self.is_working(endpoint) => {}
            Err(_) => self.set(endpoint, Availability::Down, "its health page cannot be reached"),
        }
    }

    fn is_working(&self, endpoint: EndpointOrd) -> bool {
        self.shared.inflight[endpoint.idx()].load(Ordering::Relaxed) > 0
    }

    fn set(&self, endpoint: EndpointOrd, state: Availability, because: &'static str) {
        let changed = self.shared.states.send_if_modified(|states| {
            if states[endpoint.idx()] == state {
                return false;
            }
            let mut next = states.to_vec();
            next[endpoint.idx()] = state;
            *states = next.into();
            true
        });
        if changed && let Some((_, spec)) = self.shared.pool.iter().nth(endpoint.idx()) {
            self.shared.up.with_label_values(&[&spec.name]).set(i64::from(state == Availability::Ready));
            info!(endpoint = spec.name, state = state.as_str(), because, "endpoint state changed");
        }
    }
}

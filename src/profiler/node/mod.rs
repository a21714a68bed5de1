//! The node profiler: which endpoints can take work.
//!
//! Three things keep requests away from an endpoint: its health page (or a connection that a request could
//! not make, which counts at once), a wait that it asked for ([`CoolingParams`]), and failures in a row
//! ([`BreakerParams`]). A probe that times out on an endpoint with requests under way means busy, not down:
//! llama.cpp's health page shares its threads with open streams.
//!
//! What is published keeps an endpoint out of plans. A plan may be older than that, so every request also
//! asks at the gate ([`FleetHealth::begin`]) before it is sent: nothing reaches an endpoint that cools, and
//! of a burst that was planned onto a half-open circuit one request passes.

mod breaker;
mod state;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use prometheus::{IntGaugeVec, Opts, Registry};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tracing::{info, warn};

use crate::domain::{Availability, EndpointOrd};
use crate::endpoint::causes::with_causes;
use crate::endpoint::dialect::Health;
use crate::endpoint::{EndpointPool, SendError};

use breaker::{Circuit, Pass};
use state::EndpointState;

pub use breaker::BreakerParams;
pub use state::{Absence, CoolingParams, Leave};

/// Time between probes of one endpoint.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for a probe's answer.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// How endpoints are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthParams {
    /// After failures in a row.
    pub breaker: BreakerParams,
    /// After an answer that says wait.
    pub cooling: CoolingParams,
    /// Seed of the jitter of breakers.
    pub seed: u64,
}

/// Health of every endpoint, in the order of [`EndpointOrd`]. Clones share it.
#[derive(Debug, Clone)]
pub struct FleetHealth {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pool: Arc<EndpointPool>,
    params: HealthParams,
    states: watch::Sender<Arc<[Availability]>>,
    nodes: Vec<Node>,
    up: IntGaugeVec,
    busy: IntGaugeVec,
    circuits: IntGaugeVec,
}

#[derive(Debug)]
struct Node {
    /// Never held across an await.
    state: Mutex<EndpointState>,
    inflight: AtomicU32,
    /// The clock of the state may have changed.
    changed: Notify,
    /// Why it was down when last probed, as the log has it.
    told: Mutex<Option<String>>,
}

/// A request under way at an endpoint. Dropped without an outcome, its client left.
#[derive(Debug)]
pub struct UnderWay {
    health: FleetHealth,
    endpoint: EndpointOrd,
    pass: Pass,
    is_judged: bool,
}

/// What became of a request, as far as its endpoint is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Answered well, or refused for what it was.
    Fine,
    /// It failed.
    Failed,
    /// It could not even connect.
    Unreachable,
    /// The endpoint asked to be left alone, perhaps for so long.
    Wait(Leave, Option<Duration>),
}

impl UnderWay {
    /// Content has come.
    pub fn answering(&mut self) {
        if self.pass == Pass::Trial {
            self.health.update(self.endpoint, |state, _| state.breaker().answering(Pass::Trial));
            self.pass = Pass::Usual;
        }
    }

    /// The request is over; only the first verdict counts.
    pub fn judge(&mut self, verdict: Verdict) {
        if std::mem::replace(&mut self.is_judged, true) {
            return;
        }
        let pass = self.pass;
        self.health.update(self.endpoint, |state, now| match verdict {
            Verdict::Fine => state.breaker().succeeded(pass),
            Verdict::Failed => state.breaker().failed(now, pass),
            Verdict::Unreachable => {
                state.probed(Availability::Down);
                state.breaker().failed(now, pass);
            }
            Verdict::Wait(leave, wait) => {
                state.breaker().withdrawn(pass);
                state.cool(now, leave, wait);
            }
        });
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.health.node(self.endpoint).inflight.fetch_sub(1, Ordering::Relaxed);
        if !self.is_judged && self.pass == Pass::Trial {
            self.health.update(self.endpoint, |state, _| state.breaker().withdrawn(Pass::Trial));
        }
    }
}

impl FleetHealth {
    /// All endpoints down until a first probe says otherwise.
    ///
    /// # Errors
    /// When the metrics are registered already.
    pub fn new(
        pool: Arc<EndpointPool>,
        params: HealthParams,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str| -> prometheus::Result<IntGaugeVec> {
            let gauge = IntGaugeVec::new(Opts::new(name, help), &["endpoint"])?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let up = gauge("cema_endpoint_up", "Whether the endpoint can take work (1) or not (0).")?;
        let busy = gauge(
            "cema_endpoint_busy",
            "Whether the endpoint is too busy to answer its health page while requests run there (1) or not (0).",
        )?;
        let circuits = gauge(
            "cema_circuit_state",
            "Circuit of the endpoint: 0 closed, 1 half-open (one request on trial), 2 open.",
        )?;
        let mut nodes = Vec::new();
        for (endpoint, spec) in pool.iter() {
            up.with_label_values(&[&spec.name]).set(0);
            busy.with_label_values(&[&spec.name]).set(0);
            circuits.with_label_values(&[&spec.name]).set(0);
            let seed = params.seed.wrapping_add(u64::from(endpoint.0));
            nodes.push(Node {
                state: Mutex::new(EndpointState::new(params.breaker, params.cooling, seed)),
                inflight: AtomicU32::new(0),
                changed: Notify::new(),
                told: Mutex::default(),
            });
        }
        let states = watch::Sender::new(vec![Availability::Down; nodes.len()].into());
        Ok(Self { shared: Arc::new(Shared { pool, params, states, nodes, up, busy, circuits }) })
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

    /// Requests of this router under way at `endpoint`.
    #[must_use]
    pub fn inflight(&self, endpoint: EndpointOrd) -> u32 {
        self.node(endpoint).inflight.load(Ordering::Relaxed)
    }

    /// Lets a request through to `endpoint` and counts it there until the guard is dropped.
    ///
    /// # Errors
    /// When the endpoint is to be left alone; nothing must be sent then.
    pub fn begin(&self, endpoint: EndpointOrd) -> Result<UnderWay, Absence> {
        let pass = self.update(endpoint, EndpointState::admit)?;
        self.node(endpoint).inflight.fetch_add(1, Ordering::Relaxed);
        Ok(UnderWay { health: self.clone(), endpoint, pass, is_judged: false })
    }

    /// Why and for how long `endpoint` is left alone, if it is.
    #[must_use]
    pub fn absence(&self, endpoint: EndpointOrd) -> Option<Absence> {
        self.update(endpoint, |state, now| state.absence(now))
    }

    /// The wait that clients are told of where an endpoint asked for `wait`, or for none in particular: all of
    /// it, however short the time for which the endpoint is left alone.
    #[must_use]
    pub fn wait_told(&self, wait: Option<Duration>) -> Duration {
        state::wait_told(self.shared.params.cooling, wait)
    }

    /// Takes `endpoint` out of service, or back into it: it is planned for no request, while those under way there run on.
    pub fn set_draining(&self, endpoint: EndpointOrd, is_draining: bool) {
        self.update(endpoint, |state, _| state.set_draining(is_draining));
    }

    /// Probes `endpoint` and lets its time pass, for ever.
    pub async fn watch_endpoint(self, endpoint: EndpointOrd) {
        tokio::join!(self.keep_probing(endpoint), self.follow_clock(endpoint));
    }

    /// Probes every endpoint once, all at the same time.
    pub async fn probe_all(&self) {
        let probes = self.shared.pool.iter().map(|(endpoint, _)| self.probe(endpoint));
        futures_util::future::join_all(probes).await;
    }

    async fn keep_probing(&self, endpoint: EndpointOrd) {
        let mut ticks = interval(PROBE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.probe(endpoint).await;
        }
    }

    /// Publishes what time alone changes: the end of a wait, a circuit that half-opens.
    async fn follow_clock(&self, endpoint: EndpointOrd) {
        loop {
            let next = self.update(endpoint, |state, _| state.changes_at());
            let changed = self.node(endpoint).changed.notified();
            match next {
                Some(at) => {
                    // Cancel-safe: a notice that comes too late is kept for the next turn.
                    tokio::select! {
                        () = sleep_until(at) => {}
                        () = changed => {}
                    }
                }
                None => changed.await,
            }
        }
    }

    async fn probe(&self, endpoint: EndpointOrd) {
        let spec = self.shared.pool.spec(endpoint);
        if spec.kind.limits_probes() && self.absence(endpoint).is_some() {
            return;
        }
        let path = spec.kind.health_path(&spec.base_path);
        match self.shared.pool.get_small(endpoint, &path, PROBE_LIMIT).await {
            Ok((status, body)) => match spec.kind.read_health(status, &body) {
                Health::Ready => self.set_probed(endpoint, Availability::Ready),
                Health::Loading => self.set_probed(endpoint, Availability::Loading),
                Health::Busy => {}
                Health::Down => self.is_down(endpoint, &path, format!("status {status}{}", hint(status))),
            },
            Err(SendError::FirstByteTimeout(_)) if self.inflight(endpoint) > 0 => {
                self.update(endpoint, |state, _| state.silent_at_work());
            }
            Err(error) => self.is_down(endpoint, &path, with_causes(&error)),
        }
    }

    /// A probe found it down; the log says why, once for each reason in a row.
    fn is_down(&self, endpoint: EndpointOrd, path: &str, reason: String) {
        let mut told = self.node(endpoint).told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.as_ref() != Some(&reason) {
            let spec = self.shared.pool.spec(endpoint);
            warn!(endpoint = spec.name, kind = %spec.kind, path, reason, "its health page does not say that it is up");
            *told = Some(reason);
        }
        drop(told);
        self.update(endpoint, |state, _| state.probed(Availability::Down));
    }

    fn set_probed(&self, endpoint: EndpointOrd, probed: Availability) {
        *self.node(endpoint).told.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.update(endpoint, |state, _| state.probed(probed));
    }

    fn node(&self, endpoint: EndpointOrd) -> &Node {
        &self.shared.nodes[endpoint.idx()]
    }

    /// Changes the state of `endpoint` and publishes what follows.
    fn update<T>(&self, endpoint: EndpointOrd, change: impl FnOnce(&mut EndpointState, Instant) -> T) -> T {
        let now = Instant::now();
        let node = self.node(endpoint);
        // Whoever panicked with the lock left a state that is as good as any.
        let mut state = node.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (was, clock) = (state.published(), state.changes_at());
        state.advance(now);
        let outcome = change(&mut state, now);
        let is = state.published();
        if is != was {
            // Under the lock, so that what is published last is what is true.
            self.publish(endpoint, was, is);
        }
        if state.changes_at() != clock {
            node.changed.notify_one();
        }
        outcome
    }

    fn publish(&self, endpoint: EndpointOrd, was: Published, is: Published) {
        let name = &self.shared.pool.spec(endpoint).name;
        if was.circuit.as_metric() != is.circuit.as_metric() {
            self.shared.circuits.with_label_values(&[name]).set(is.circuit.as_metric());
            info!(endpoint = name, from = was.circuit.as_str(), to = is.circuit.as_str(), "circuit changed");
        }
        if was.availability != is.availability {
            self.shared.states.send_modify(|states| {
                let mut next = states.to_vec();
                next[endpoint.idx()] = is.availability;
                *states = next.into();
            });
            self.shared.up.with_label_values(&[name]).set(i64::from(is.availability.takes_work()));
            self.shared.busy.with_label_values(&[name]).set(i64::from(is.availability == Availability::Busy));
            info!(endpoint = name, state = is.availability.as_str(), "endpoint state changed");
        }
    }
}

/// What may mend it.
fn hint(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 | 403 => " (is its `api_key_env` right?)",
        404 => " (are its `url` and `kind` right?)",
        _ => "",
    }
}

/// What the rest of the router sees of an endpoint's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Published {
    availability: Availability,
    circuit: Circuit,
}

impl EndpointState {
    fn published(&self) -> Published {
        Published { availability: self.availability(), circuit: self.circuit() }
    }
}

//! Models that are not loaded: who waits for which, and how long loading takes.
//!
//! A request that finds its model cold makes the engine load it. While that goes on, every request for the model
//! there waits for the same load, and the engine's own page may call the model loaded already (Ollama's does), so
//! the first answer says when it is.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{GaugeVec, Opts, Registry};
use tokio::sync::watch;
use tokio::time::Instant;

use super::metrics::show;
use super::reading::{EngineReading, is_cold};
use crate::domain::destination::NodeClass;
use crate::domain::{Destination, DestinationOrd, EndpointOrd};
use crate::profiler::network::Measured;
use crate::units::{Bytes, BytesPerSec, Seconds};

/// Load time where neither a load nor the model's size is known.
const LOAD_PRIOR: Seconds = Seconds(10.0);

/// Rate at which a model of known size is expected to load, until one was seen to.
const fn load_rate(class: NodeClass) -> BytesPerSec {
    match class {
        // A data-centre flash drive.
        NodeClass::Cloud => BytesPerSec(1e9),
        // The flash of a small box.
        NodeClass::Edge => BytesPerSec(250e6),
    }
}

/// The model of one destination, as far as loading goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelLoad {
    /// Whether it is loaded; `None` where its engine does not tell.
    pub is_loaded: Option<bool>,
    /// Share of it in the memory of an accelerator, 0 to 1, where it is loaded and its engine tells.
    pub vram_share: Option<f64>,
    /// How long loading takes: measured, or what is expected of a model of its size.
    pub load: Seconds,
    /// Since when requests of this router wait for it to load.
    pub loading_since: Option<Instant>,
}

impl ModelLoad {
    /// What a request sent there now adds to its own service time: the load that it sets going. A load under way
    /// is part of the backlog already, as work of the request that set it going.
    #[must_use]
    pub fn added(&self) -> Seconds {
        match (self.is_loaded, self.loading_since) {
            (Some(false), None) => self.load,
            _ => Seconds::ZERO,
        }
    }
}

/// Which models are loaded and what loading takes, in the order of [`DestinationOrd`]. Clones share it.
#[derive(Debug, Clone)]
pub struct ModelLoads {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    destinations: Arc<[Destination]>,
    /// Never held across an await.
    states: Vec<Mutex<State>>,
    published: watch::Sender<Arc<[ModelLoad]>>,
    loaded: GaugeVec,
    vram: GaugeVec,
    load: GaugeVec,
}

#[derive(Debug)]
struct State {
    is_loaded: Option<bool>,
    /// When an answer last said that it is loaded; pages read before are older news.
    answered_at: Option<Instant>,
    size: Option<Bytes>,
    vram_share: Option<f64>,
    measured: Option<Measured<Seconds>>,
    loading: Option<Loading>,
}

#[derive(Debug, Clone, Copy)]
struct Loading {
    since: Instant,
    n_waiting: u32,
}

impl State {
    fn shown(&self, class: NodeClass) -> ModelLoad {
        let prior = || self.size.map_or(LOAD_PRIOR, |size| size.transfer_time(load_rate(class)));
        ModelLoad {
            is_loaded: self.is_loaded,
            vram_share: self.vram_share,
            load: self.measured.map_or_else(prior, |measured| measured.value),
            loading_since: self.loading.map(|loading| loading.since),
        }
    }
}

/// A request on its way to a model that is not loaded, or is being loaded.
#[derive(Debug)]
pub struct ColdStart {
    loads: ModelLoads,
    d: DestinationOrd,
    sent: Instant,
    /// Whether it is the one that set the load going.
    is_first: bool,
    /// From departure to the first byte, once that has come.
    waited: Option<Seconds>,
}

impl ColdStart {
    /// The first byte of its answer has come: the model is loaded.
    pub fn answered(&mut self) {
        if self.waited.is_some() {
            return;
        }
        let now = Instant::now();
        self.waited = Some(Seconds(now.duration_since(self.sent).as_secs_f64()));
        self.loads.update(self.d, |state| {
            state.is_loaded = state.is_loaded.map(|_| true);
            state.answered_at = Some(now);
            state.loading = None;
        });
    }

    /// Its own work until that byte took `own`, so that the rest of the wait was the load.
    pub fn worked(self, own: Seconds) {
        let Some(waited) = self.waited.filter(|_| self.is_first) else { return };
        let load = (waited - own).max(Seconds::ZERO);
        self.loads.update(self.d, |state| {
            state.measured = Some(Measured::with(state.measured, load, Instant::now()));
        });
    }
}

impl Drop for ColdStart {
    fn drop(&mut self) {
        if self.waited.is_some() {
            return;
        }
        // It failed, or its client left. Nobody waits for the load any more once all have gone.
        self.loads.update(self.d, |state| {
            state.loading = state.loading.and_then(|loading| {
                let n_waiting = loading.n_waiting.saturating_sub(1);
                (n_waiting > 0).then_some(Loading { n_waiting, ..loading })
            });
        });
    }
}

impl ModelLoads {
    /// Nothing is known of any model yet.
    ///
    /// # Errors
    /// When the metrics are registered already.
    pub(super) fn new(destinations: &Arc<[Destination]>, registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str| -> prometheus::Result<GaugeVec> {
            let gauge = GaugeVec::new(Opts::new(name, help), &["destination"])?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let fresh = || State {
            is_loaded: None,
            answered_at: None,
            size: None,
            vram_share: None,
            measured: None,
            loading: None,
        };
        let published = destinations.iter().map(|d| fresh().shown(d.class)).collect();
        let shared = Shared {
            states: destinations.iter().map(|_| Mutex::new(fresh())).collect(),
            destinations: Arc::clone(destinations),
            published: watch::Sender::new(published),
            loaded: gauge(
                "cema_model_loaded",
                "Whether the engine has the destination's model loaded (1) or not (0), where it tells.",
            )?,
            vram: gauge(
                "cema_model_vram_ratio",
                "Share of the destination's loaded model in the memory of an accelerator, 0 to 1, where the engine tells.",
            )?,
            load: gauge(
                "cema_model_load_seconds",
                "Time that loading the destination's model takes, where the engine tells what is loaded.",
            )?,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Follows them.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<[ModelLoad]>> {
        self.shared.published.subscribe()
    }

    /// How they are now.
    #[must_use]
    pub fn current(&self) -> Arc<[ModelLoad]> {
        Arc::clone(&self.shared.published.borrow())
    }

    /// A request leaves for `d`. `None` where its model is loaded, as far as one knows.
    #[must_use]
    pub fn begin(&self, d: DestinationOrd) -> Option<ColdStart> {
        let is_first = self.update(d, |state| match &mut state.loading {
            Some(loading) => {
                loading.n_waiting = loading.n_waiting.saturating_add(1);
                Some(false)
            }
            None if state.is_loaded == Some(false) => {
                state.loading = Some(Loading { since: Instant::now(), n_waiting: 1 });
                Some(true)
            }
            None => None,
        })?;
        Some(ColdStart { loads: self.clone(), d, sent: Instant::now(), is_first, waited: None })
    }

    /// Takes over what an engine says of its models.
    pub(super) fn observe(&self, endpoint: EndpointOrd, reading: Option<&EngineReading>) {
        for (d, destination) in (0..).map(DestinationOrd).zip(self.shared.destinations.iter()) {
            if destination.endpoint != endpoint {
                continue;
            }
            let told = reading.filter(|reading| !reading.models.is_empty());
            self.update(d, |state| match told {
                Some(reading) if state.answered_at.is_none_or(|at| at < reading.read_at) => {
                    let name = &destination.upstream_model;
                    state.is_loaded = Some(!is_cold(reading, name));
                    let residence = reading.residence(name);
                    state.size = residence.and_then(|model| model.size).or(state.size);
                    state.vram_share = residence.and_then(|model| model.vram_share);
                }
                Some(_) => {}
                None => (state.is_loaded, state.vram_share) = (None, None),
            });
        }
    }

    /// Changes the state of `d` and publishes what follows.
    fn update<T>(&self, d: DestinationOrd, change: impl FnOnce(&mut State) -> T) -> T {
        let destination = &self.shared.destinations[d.idx()];
        // Whoever panicked with the lock left a state that is as good as any.
        let mut state = self.shared.states[d.idx()].lock().unwrap_or_else(PoisonError::into_inner);
        let was = state.shown(destination.class);
        let outcome = change(&mut state);
        let is = state.shown(destination.class);
        if is != was {
            // Under the lock, so that what is published last is what is true.
            self.shared.published.send_modify(|loads| {
                let mut next = loads.to_vec();
                next[d.idx()] = is;
                *loads = next.into();
            });
            self.show(destination.id.as_str(), &is);
        }
        outcome
    }

    fn show(&self, id: &str, load: &ModelLoad) {
        let loaded = load.is_loaded.map(|is_loaded| f64::from(u8::from(is_loaded)));
        show(&self.shared.loaded, id, loaded);
        show(&self.shared.vram, id, load.vram_share);
        show(&self.shared.load, id, load.is_loaded.map(|_| load.load.0));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::fixture::destination;
    use crate::profiler::engine::reading::ModelResidence;

    const D: DestinationOrd = DestinationOrd(0);

    fn loads() -> ModelLoads {
        let at = |n, class| Destination {
            class,
            endpoint: EndpointOrd(0),
            upstream_model: "m".into(),
            ..destination(n, 1, 2)
        };
        let fleet = vec![at(0, NodeClass::Edge), at(1, NodeClass::Cloud)].into();
        ModelLoads::new(&fleet, &Registry::new()).unwrap()
    }

    fn observe(loads: &ModelLoads, is_loaded: bool, size: Option<f64>) {
        let model = ModelResidence { name: "m".into(), is_loaded, vram_share: None, size: size.map(Bytes) };
        let reading = EngineReading { models: vec![model], ..EngineReading::silent(Instant::now()) };
        loads.observe(EndpointOrd(0), Some(&reading));
    }

    async fn pass(s: u64) {
        tokio::time::advance(Duration::from_secs(s)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_cold_that_is_not_known_to_be() {
        let loads = loads();
        assert!(loads.begin(D).is_none());
        observe(&loads, true, None);
        assert!(loads.begin(D).is_none());
        assert_eq!(loads.current()[0].added(), Seconds::ZERO);
        observe(&loads, false, None);
        loads.observe(EndpointOrd(0), None);
        assert!(loads.begin(D).is_none(), "it does not tell any more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_is_priced_by_size_until_it_was_seen() {
        let loads = loads();
        observe(&loads, false, None);
        assert_eq!(loads.current()[0].added(), LOAD_PRIOR);
        observe(&loads, false, Some(5e9));
        // 5 GB at 250 MB/s on an edge box, at 1 GB/s on a cloud node.
        let priced: Vec<_> = loads.current().iter().map(|load| load.added().0).collect();
        assert_eq!(priced, [20.0, 5.0]);
        let mut cold = loads.begin(D).unwrap();
        pass(32).await;
        cold.answered();
        cold.worked(Seconds(2.0));
        pass(60).await;
        observe(&loads, false, Some(5e9));
        assert_eq!(loads.current()[0].added(), Seconds(30.0), "32 s, of which 2 s were its own");
        assert_eq!(loads.current()[1].added(), Seconds(5.0));
    }

    #[tokio::test(start_paused = true)]
    async fn all_requests_wait_for_one_load_and_the_first_pays_for_it() {
        let loads = loads();
        observe(&loads, false, None);
        let began = Instant::now();
        let mut first = loads.begin(D).unwrap();
        pass(3).await;
        // Ollama lists a model that loads as if it were loaded.
        observe(&loads, true, None);
        let mut second = loads.begin(D).unwrap();
        let load = loads.current()[0];
        assert_eq!((load.loading_since, load.added()), (Some(began), Seconds::ZERO));
        pass(17).await;
        first.answered();
        assert!(loads.begin(D).is_none(), "it is loaded");
        second.answered();
        second.worked(Seconds::ZERO);
        assert_eq!(loads.current()[0].load, LOAD_PRIOR, "it came later and waited less");
        first.worked(Seconds(1.0));
        assert_eq!(loads.current()[0].load, Seconds(19.0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_read_before_the_answer_is_old_news() {
        let loads = loads();
        observe(&loads, false, None);
        let mut cold = loads.begin(D).unwrap();
        let asked_at = Instant::now();
        pass(1).await;
        cold.answered();
        let model = ModelResidence { name: "m".into(), is_loaded: false, vram_share: None, size: None };
        let mut reading = EngineReading { models: vec![model], ..EngineReading::silent(asked_at) };
        loads.observe(EndpointOrd(0), Some(&reading));
        assert_eq!(loads.current()[0].is_loaded, Some(true));
        pass(1).await;
        reading.read_at = Instant::now();
        loads.observe(EndpointOrd(0), Some(&reading));
        assert_eq!(loads.current()[0].is_loaded, Some(false), "it was unloaded since");
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_nobody_waits_for_any_more_is_none() {
        let loads = loads();
        observe(&loads, false, None);
        let (first, second) = (loads.begin(D).unwrap(), loads.begin(D).unwrap());
        drop(first);
        assert!(loads.current()[0].loading_since.is_some());
        drop(second);
        assert_eq!(loads.current()[0].added(), LOAD_PRIOR);
    }
}

//! The view of the fleet that plans are made with: configured destinations with what every profiler has measured.

mod report;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::domain::{Destination, FleetView, Moment, SlotLoad, Work};
use crate::profiler::engine::{EngineReading, ModelLoad, SlotCap, capped_concurrency, waiting_elsewhere};
use crate::profiler::network::PathReading;
use crate::profiler::node::FleetHealth;
use crate::profiler::prefix::{PrefixProfiler, PrefixReading};
use crate::profiler::speed::{SpeedProfiler, SpeedReading};
use crate::units::{Seconds, Tokens};

pub use report::{DestinationReport, FigureReport, FigureSource};

/// Time between two looks at the speed of running requests.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Least time between two views because of other news.
const PAUSE: Duration = Duration::from_millis(50);
/// A figure that has changed by less than this share is not worth a new view.
const MATERIAL: f64 = 0.03;
/// What a request of others is taken for.
const OTHERS_PROMPT: Tokens = Tokens(500.0);
const OTHERS_COMPLETION: Tokens = Tokens(250.0);

/// What has been measured.
#[derive(Debug, Clone)]
pub struct Sources {
    /// Speeds of destinations.
    pub speeds: SpeedProfiler,
    /// What their prefix caches hold: for reports only, since that is part of each request.
    pub prefixes: PrefixProfiler,
    /// What engines say, by endpoint.
    pub engines: watch::Receiver<Arc<[Option<EngineReading>]>>,
    /// Which models are loaded, by destination.
    pub loads: watch::Receiver<Arc<[ModelLoad]>>,
    /// How many requests engines run at once, by destination.
    pub caps: watch::Receiver<Arc<[SlotCap]>>,
    /// Paths to nodes.
    pub paths: watch::Receiver<Arc<[PathReading]>>,
    /// How many requests are under way where.
    pub health: FleetHealth,
}

/// Composes the view and publishes it when it has changed. Clones publish to the same followers.
#[derive(Debug, Clone)]
pub struct Viewer {
    configured: Arc<[Destination]>,
    /// The position of each destination's node in the readings of paths.
    node_of: Vec<Option<usize>>,
    sources: Sources,
    published: watch::Sender<Arc<FleetView>>,
}

impl Viewer {
    /// A viewer of these destinations; `nodes` are the names of the nodes in the order of the readings of paths.
    #[must_use]
    pub fn new(configured: Arc<[Destination]>, nodes: &[Arc<str>], sources: Sources) -> Self {
        let node_of = |d: &Destination| nodes.iter().position(|node| *node == d.node);
        let node_of = configured.iter().map(node_of).collect();
        let published = watch::Sender::new(Arc::new(FleetView::configured(&configured)));
        Self { configured, node_of, sources, published }
    }

    /// Follows the view.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<FleetView>> {
        self.published.subscribe()
    }

    /// Keeps the view up to date, for ever.
    pub async fn run(mut self) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // Cancel-safe: none loses a change when another arm wins.
                _ = looks.tick() => self.sources.speeds.tick(),
                Ok(()) = self.sources.engines.changed() => {}
                Ok(()) = self.sources.loads.changed() => {}
                Ok(()) = self.sources.caps.changed() => {}
                Ok(()) = self.sources.paths.changed() => {}
            }
            self.sources.engines.mark_unchanged();
            self.sources.loads.mark_unchanged();
            self.sources.caps.mark_unchanged();
            self.sources.paths.mark_unchanged();
            self.publish();
            sleep_until(Instant::now() + PAUSE).await;
        }
    }

    fn publish(&self) {
        let next = self.compose();
        self.published.send_if_modified(|view| {
            let is_material = differs(view, &next);
            if is_material {
                *view = Arc::new(next);
            }
            is_material
        });
    }

    fn compose(&self) -> FleetView {
        let seen = self.with_seen(|configured, seen| seen.applied_to(configured));
        let (destinations, moments): (Vec<_>, Vec<_>) = seen.into_iter().unzip();
        FleetView { destinations: destinations.into(), moments }
    }

    /// Looks at every destination with what has been measured of it.
    fn with_seen<T>(&self, look: impl Fn(&Destination, &Seen<'_>) -> T) -> Vec<T> {
        let speeds = self.sources.speeds.readings();
        let prefixes = self.sources.prefixes.readings();
        let engines = Arc::clone(&self.sources.engines.borrow());
        let loads = Arc::clone(&self.sources.loads.borrow());
        let caps = Arc::clone(&self.sources.caps.borrow());
        let paths = Arc::clone(&self.sources.paths.borrow());
        let look_at = |(idx, (configured, node)): (usize, (&Destination, &Option<usize>))| {
            let engine = engines.get(configured.endpoint.idx()).and_then(Option::as_ref);
            let own_inflight = self.sources.health.inflight(configured.endpoint);
            let seen = Seen {
                speed: speeds.get(idx),
                prefix: prefixes.get(idx),
                engine: engine.map(|reading| (reading, own_inflight)),
                load: loads.get(idx),
                cap: caps.get(idx).copied().unwrap_or_default(),
                path: node.and_then(|node| paths.get(node)),
            };
            look(configured, &seen)
        };
        self.configured.iter().zip(&self.node_of).enumerate().map(look_at).collect()
    }
}

/// What has been measured of one destination.
struct Seen<'a> {
    speed: Option<&'a SpeedReading>,
    prefix: Option<&'a PrefixReading>,
    /// With the requests of this router under way at its endpoint.
    engine: Option<(&'a EngineReading, u32)>,
    load: Option<&'a ModelLoad>,
    cap: SlotCap,
    path: Option<&'a PathReading>,
}

impl Seen<'_> {
    fn applied_to(&self, configured: &Destination) -> (Destination, Moment) {
        let mut seen = configured.clone();
        if let Some(speed) = self.speed {
            seen.throughput = speed.applied_to(&configured.throughput);
        }
        if let Some(path) = self.path {
            seen.network = path.applied_to(&configured.network);
        }
        if self.engine.is_some() || self.cap.adopted.is_some() {
            let believed = self.believed_slots(configured);
            let slots = self.engine.map_or(believed, |(reading, _)| capped_concurrency(reading, believed));
            let slowdown = seen.throughput.slowdown();
            let slots_f64 = f64::from(slots);
            seen.throughput.max_concurrency = slots;
            seen.throughput.batch_speedup = (slots_f64 / (1.0 + slowdown * (slots_f64 - 1.0))).max(1.0);
            seen.max_inflight = self.cap.max_inflight.unwrap_or(configured.max_inflight);
        }
        let elsewhere = self
            .engine
            .map_or(SlotLoad::EMPTY, |(reading, own_inflight)| others(reading, own_inflight, &seen));
        let moment = Moment {
            pace: self.speed.map_or(1.0, |speed| speed.pace),
            lateness: self.speed.map_or(1.0, |speed| speed.lateness),
            verbosity: self.speed.map_or(1.0, |speed| speed.completion_ratio.value),
            warm_up: self.load.map_or(Seconds::ZERO, ModelLoad::added),
            elsewhere,
        };
        (seen, moment)
    }

    /// Requests its engine runs at once while nothing else limits them.
    fn believed_slots(&self, configured: &Destination) -> u32 {
        self.cap.adopted.map_or(configured.throughput.max_concurrency, |(slots, _)| slots)
    }
}

/// What others have in the engine of `destination`: requests of a usual size, half done where they run.
fn others(reading: &EngineReading, own_inflight: u32, destination: &Destination) -> SlotLoad {
    let present = reading.running.unwrap_or(0).saturating_add(reading.waiting.unwrap_or(0));
    let n_others = present.saturating_sub(own_inflight.max(reading.own_inflight));
    let queued = waiting_elsewhere(reading, own_inflight);
    let running = n_others - queued.min(n_others);
    let each = destination.throughput.work(OTHERS_PROMPT, OTHERS_COMPLETION);
    let times = |seconds: Seconds, n: f64| Seconds(seconds.0 * n);
    SlotLoad {
        running,
        queued,
        prefill: Seconds::ZERO,
        decode: times(each.decode, f64::from(running) / 2.0),
        soonest: if running > 0 { times(each.decode, 1.0 / f64::from(running + 1)) } else { Seconds::ZERO },
        queued_work: Work {
            prefill: times(each.prefill, f64::from(queued)),
            decode: times(each.decode, f64::from(queued)),
        },
    }
}

/// Whether plans made with `next` may differ from plans made with `view`.
fn differs(view: &FleetView, next: &FleetView) -> bool {
    let moves = |from: f64, to: f64| (to - from).abs() > MATERIAL * from.abs();
    let figures = |d: &Destination| {
        let (speed, network) = (&d.throughput, &d.network);
        [
            speed.prefill.0,
            speed.decode.0,
            speed.batch_speedup,
            f64::from(speed.max_concurrency),
            speed.cached_prompt.0,
            network.rtt.0,
            network.uplink.0,
            network.downlink.0,
        ]
    };
    let destinations = view.destinations.iter().zip(next.destinations.iter());
    let mut moments = view.moments.iter().zip(&next.moments);
    destinations
        .flat_map(|(from, to)| figures(from).into_iter().zip(figures(to)))
        .any(|(from, to)| moves(from, to))
        || moments.any(|(from, to)| {
            moves(from.pace, to.pace)
                || moves(from.lateness, to.lateness)
                || moves(from.verbosity, to.verbosity)
                || moves(from.warm_up.0, to.warm_up.0)
                || (from.elsewhere.running, from.elsewhere.queued)
                    != (to.elsewhere.running, to.elsewhere.queued)
        })
}

#[cfg(test)]
mod tests;

//! The figures of a destination with where they come from, for operators to read.

use std::time::Duration;

use super::{Seen, Viewer};
use crate::domain::named::named_enum;
use crate::domain::{Destination, Moment};
use crate::profiler::engine::{CapMismatch, CapSign, ModelLoad};
use crate::profiler::network::{Measured, Quantity};
use crate::profiler::prefix::PrefixReading;
use crate::profiler::speed::{Figure, Given};
use crate::units::Seconds;

named_enum! {
    /// Where a figure comes from.
    pub enum FigureSource {
        /// The operator gave it.
        Configured = "configured",
        /// Nobody gave it.
        Default = "default",
        /// Requests of this router have shown it.
        Live = "live",
        /// The engine says so.
        Engine = "engine",
        /// It was measured without requests.
        Probe = "probe",
    }
}

/// A figure in force.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FigureReport {
    /// Its value, in the unit of its name.
    pub value: f64,
    /// Where it comes from.
    pub source: FigureSource,
    /// Time since its last sample, where it was measured.
    pub age: Option<Seconds>,
    /// Samples so far.
    pub samples: u64,
    /// Measured figure over the configured or default one.
    pub drift: f64,
    /// Whether the last sample is too old to go by.
    pub is_stale: bool,
}

/// The figures of one destination.
#[derive(Debug, Clone)]
pub struct DestinationReport {
    /// With the figures in force.
    pub destination: Destination,
    /// What it is like at the moment.
    pub moment: Moment,
    /// Its model, as far as loading goes.
    pub load: Option<ModelLoad>,
    /// Where the number of its slots seems wrong.
    pub cap_mismatch: Option<CapMismatch>,
    /// Each figure by its name.
    pub figures: Vec<(&'static str, FigureReport)>,
}

impl Viewer {
    /// What is known of every destination, in order.
    #[must_use]
    pub fn report(&self) -> Vec<DestinationReport> {
        self.with_seen(|configured, seen| {
            let (destination, moment) = seen.applied_to(configured);
            let figures = figures(configured, seen, &destination);
            let (load, cap_mismatch) = (seen.load.copied(), seen.cap.mismatch);
            DestinationReport { destination, moment, load, cap_mismatch, figures }
        })
    }
}

fn figures(
    configured: &Destination,
    seen: &Seen<'_>,
    now: &Destination,
) -> Vec<(&'static str, FigureReport)> {
    let mut figures = Vec::new();
    if let Some(speed) = seen.speed {
        figures.push(("prefill_tps", of_speed(&speed.prefill)));
        figures.push(("decode_tps", of_speed(&speed.decode)));
        let speedup = FigureReport { value: now.throughput.batch_speedup, ..of_speed(&speed.batch_speedup) };
        figures.push(("batch_speedup", speedup));
        figures.push(("prompt_tokens_ratio", of_speed(&speed.prompt_ratio)));
        figures.push(("completion_tokens_ratio", of_speed(&speed.completion_ratio)));
        figures.push(("cached_prompt_tokens", of_speed(&speed.cached_prompt)));
        figures.push(("max_concurrency", slots(configured, seen, now, speed.given)));
    }
    if let Some(prefix) = seen.prefix {
        figures.push(("prefix_found_ratio", of_prefix(prefix)));
    }
    let (path, network) = (seen.path.copied().unwrap_or_default(), &configured.network);
    figures.push(("rtt_s", of_path(network.rtt, path.rtt, FigureSource::Probe)));
    figures.push(("uplink_bytes_per_s", of_path(network.uplink, path.uplink, FigureSource::Live)));
    figures.push(("downlink_bytes_per_s", of_path(network.downlink, path.downlink, FigureSource::Live)));
    figures
}

fn of_speed(figure: &Figure) -> FigureReport {
    let reference = if figure.is_given { FigureSource::Configured } else { FigureSource::Default };
    FigureReport {
        value: figure.value,
        source: if figure.is_live() { FigureSource::Live } else { reference },
        age: figure.age,
        samples: figure.samples,
        drift: figure.drift,
        is_stale: figure.is_stale(),
    }
}

fn of_prefix(prefix: &PrefixReading) -> FigureReport {
    FigureReport {
        value: prefix.found_ratio,
        source: if prefix.samples > 0 { FigureSource::Live } else { FigureSource::Default },
        age: prefix.age,
        samples: prefix.samples,
        drift: 1.0,
        is_stale: false,
    }
}

fn slots(configured: &Destination, seen: &Seen<'_>, now: &Destination, given: Given) -> FigureReport {
    let (value, reference) = (now.throughput.max_concurrency, configured.throughput.max_concurrency);
    let is_capped = value != seen.believed_slots(configured);
    let source = match (seen.cap.adopted, given.max_concurrency) {
        _ if is_capped => FigureSource::Engine,
        (Some((_, CapSign::Told)), _) => FigureSource::Engine,
        (Some(_), _) => FigureSource::Live,
        (None, true) => FigureSource::Configured,
        (None, false) => FigureSource::Default,
    };
    let is_seen = is_capped || seen.cap.adopted.is_some();
    let read_at = seen.engine.filter(|_| is_seen).map(|(reading, _)| reading.read_at);
    FigureReport {
        value: f64::from(value),
        source,
        age: read_at.map(|at| seconds(at.elapsed())),
        samples: u64::from(is_seen),
        drift: f64::from(value) / f64::from(reference),
        is_stale: false,
    }
}

fn of_path<T: Quantity>(configured: T, measured: Option<Measured<T>>, source: FigureSource) -> FigureReport {
    let value = measured.map_or(configured, |measured| measured.value).raw();
    FigureReport {
        value,
        source: if measured.is_some() { source } else { FigureSource::Configured },
        age: measured.map(|measured| seconds(measured.at.elapsed())),
        samples: measured.map_or(0, |measured| u64::from(measured.samples)),
        drift: if configured.raw() > 0.0 { value / configured.raw() } else { 1.0 },
        is_stale: false,
    }
}

fn seconds(age: Duration) -> Seconds {
    Seconds(age.as_secs_f64())
}

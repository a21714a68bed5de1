//! Metrics of live speeds, and the word that a profile has drifted.

use std::sync::atomic::{AtomicBool, Ordering};

use prometheus::{Gauge, GaugeVec, Opts, Registry};
use tracing::{info, warn};

use super::estimator::{Figure, SpeedReading};
use crate::domain::Destination;

/// The quantities, by their names in labels and logs.
const QUANTITIES: [&str; 3] = ["prefill", "decode", "batch_speedup"];

#[derive(Debug)]
pub(super) struct SpeedMetrics {
    destinations: Vec<ShownAt>,
}

/// What is shown of one destination.
#[derive(Debug)]
struct ShownAt {
    id: String,
    drift: [Gauge; 3],
    pace: Gauge,
    lateness: Gauge,
    has_drifted: [AtomicBool; 3],
}

impl SpeedMetrics {
    pub(super) fn register(registry: &Registry, destinations: &[Destination]) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<GaugeVec> {
            let gauge = GaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let drift = gauge(
            "cema_profile_drift_ratio",
            "Measured figure divided by the configured or default one; 1 until something is measured.",
            &["destination", "quantity"],
        )?;
        let pace = gauge(
            "cema_destination_pace_ratio",
            "Progress of running requests right now relative to the figures in force; 1 = as they say.",
            &["destination"],
        )?;
        let lateness = gauge(
            "cema_destination_lateness_ratio",
            "Completion times over those predicted by the figures alone; predictions are scaled by it.",
            &["destination"],
        )?;
        let shown_at = |d: &Destination| {
            let id = d.id.as_str();
            let shown = ShownAt {
                id: id.to_owned(),
                drift: QUANTITIES.map(|quantity| drift.with_label_values(&[id, quantity])),
                pace: pace.with_label_values(&[id]),
                lateness: lateness.with_label_values(&[id]),
                has_drifted: Default::default(),
            };
            shown.drift.iter().chain([&shown.pace, &shown.lateness]).for_each(|gauge| gauge.set(1.0));
            shown
        };
        Ok(Self { destinations: destinations.iter().map(shown_at).collect() })
    }

    /// Shows the reading of the destination at this position, and says once that a figure has left its band and once
    /// that it is back.
    pub(super) fn show(&self, idx: usize, reading: &SpeedReading) {
        let Some(shown) = self.destinations.get(idx) else { return };
        shown.pace.set(reading.pace);
        shown.lateness.set(reading.lateness);
        let figures: [&Figure; 3] = [&reading.prefill, &reading.decode, &reading.batch_speedup];
        for (at, (figure, quantity)) in figures.into_iter().zip(QUANTITIES).enumerate() {
            shown.drift[at].set(figure.drift);
            let has_drifted = figure.has_drifted();
            if shown.has_drifted[at].swap(has_drifted, Ordering::Relaxed) == has_drifted {
                continue;
            }
            let (destination, measured, drift) = (shown.id.as_str(), figure.value, figure.drift);
            if has_drifted {
                warn!(
                    destination,
                    quantity,
                    measured,
                    drift,
                    "a configured figure is far from what is measured: calibrate it again"
                );
            } else {
                info!(
                    destination,
                    quantity, measured, drift, "a figure is close to the configured one again"
                );
            }
        }
    }
}

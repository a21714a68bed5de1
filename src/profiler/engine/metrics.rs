//! Metrics of what engines say of themselves. A figure that is not known has no series.

use prometheus::{GaugeVec, Opts, Registry};

use super::reading::EngineReading;

#[derive(Debug)]
pub(super) struct EngineMetrics {
    running: GaugeVec,
    waiting: GaugeVec,
    kv_usage: GaugeVec,
}

impl EngineMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str| -> prometheus::Result<GaugeVec> {
            let gauge = GaugeVec::new(Opts::new(name, help), &["endpoint"])?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        Ok(Self {
            running: gauge("cema_engine_running", "Requests of all clients that the engine says it runs.")?,
            waiting: gauge(
                "cema_engine_waiting",
                "Requests of all clients that the engine says wait in it.",
            )?,
            kv_usage: gauge("cema_engine_kv_usage_ratio", "Share of the engine's KV cache in use, 0 to 1.")?,
        })
    }

    pub(super) fn show(&self, endpoint: &str, reading: Option<&EngineReading>) {
        show(&self.running, endpoint, reading.and_then(|r| r.running).map(f64::from));
        show(&self.waiting, endpoint, reading.and_then(|r| r.waiting).map(f64::from));
        show(&self.kv_usage, endpoint, reading.and_then(|r| r.kv_usage));
    }
}

/// Sets the series of `label`, or takes it away.
pub(super) fn show(gauge: &GaugeVec, label: &str, value: Option<f64>) {
    match value {
        Some(value) => gauge.with_label_values(&[label]).set(value),
        // Not there is as good as taken away.
        None => _ = gauge.remove_label_values(&[label]),
    }
}

//! Metrics of power and energy.

use prometheus::{Counter, CounterVec, GaugeVec, IntCounterVec, Opts, Registry};

use super::energy::Shared;
use super::{EnergySource, NodeWatts};
use crate::domain::Destination;
use crate::units::Joules;

/// Metrics of power and energy.
#[derive(Debug)]
pub(super) struct PowerMetrics {
    watts: GaugeVec,
    node_energy: CounterVec,
    dropped: IntCounterVec,
    /// By destination, in order: measured and modelled.
    energy: Vec<[Counter; 2]>,
}

impl PowerMetrics {
    pub(super) fn register(registry: &Registry, destinations: &[Destination]) -> prometheus::Result<Self> {
        let watts = GaugeVec::new(
            Opts::new(
                "cema_node_power_watts",
                "Power of the node, by the source it comes from: nvml, scrape, or static where it is modelled.",
            ),
            &["node", "source"],
        )?;
        let node_energy = CounterVec::new(
            Opts::new(
                "cema_node_energy_joules_total",
                "Measured energy of the node: that of its requests, and idle where nothing was in flight.",
            ),
            &["node", "use"],
        )?;
        let dropped = IntCounterVec::new(
            Opts::new(
                "cema_power_readings_dropped_total",
                "Readings of power meters not used: absurd, after a reset of the counter, or missed.",
            ),
            &["node", "reason"],
        )?;
        let energy = CounterVec::new(
            Opts::new(
                "cema_energy_joules_total",
                "Energy of requests: measured, of all that were sent; modelled by Eq. 3, of answered ones.",
            ),
            &["destination", "source"],
        )?;
        registry.register(Box::new(watts.clone()))?;
        registry.register(Box::new(node_energy.clone()))?;
        registry.register(Box::new(dropped.clone()))?;
        registry.register(Box::new(energy.clone()))?;
        let of_destination = |d: &Destination| {
            let counter = |source: EnergySource| energy.with_label_values(&[d.id.as_str(), source.as_str()]);
            [counter(EnergySource::Measured), counter(EnergySource::Modelled)]
        };
        Ok(Self { watts, node_energy, dropped, energy: destinations.iter().map(of_destination).collect() })
    }

    pub(super) fn watts(&self, node: &str, is: NodeWatts, was: &'static str) {
        if is.source != was {
            // It had no such figure before its first reading.
            let _ = self.watts.remove_label_values(&[node, was]);
        }
        self.watts.with_label_values(&[node, is.source]).set(is.watts.0);
    }

    pub(super) fn shared(&self, node: &str, shared: Shared) {
        for (of, joules) in [("requests", shared.requests), ("idle", shared.idle)] {
            self.node_energy.with_label_values(&[node, of]).inc_by(joules.0.max(0.0));
        }
    }

    pub(super) fn dropped(&self, node: &str, reason: &str) {
        self.dropped.with_label_values(&[node, reason]).inc();
    }

    pub(super) fn settled(&self, destination: usize, joules: Joules, source: EnergySource) {
        if let Some(counters) = self.energy.get(destination) {
            counters[source as usize].inc_by(joules.0.max(0.0));
        }
    }
}

//! The fleet as `/admin/v1/destinations` shows it: figures in force with source and age, and what is there now.

use serde_json::{Map, Value, json};

use crate::domain::{Availability, DestinationState};
use crate::profiler::quality::feedback::Drift;
use crate::profiler::view::{DestinationReport, FigureReport};

/// What is known of one destination.
pub(super) struct Shown<'a> {
    pub(super) report: &'a DestinationReport,
    pub(super) availability: Option<&'a Availability>,
    pub(super) state: Option<&'a DestinationState>,
    /// What clients say of its model's answers.
    pub(super) drift: Option<Drift>,
}

impl Shown<'_> {
    /// As JSON.
    pub(super) fn to_json(&self) -> Value {
        let DestinationReport { destination: d, moment, load, cap_mismatch, figures } = self.report;
        let figures: Map<String, Value> =
            figures.iter().map(|(name, figure)| ((*name).to_owned(), figure_json(figure))).collect();
        json!({
            "id": d.id.as_str(),
            "node": &*d.node,
            "class": d.class.as_str(),
            "model": &*d.model,
            "state": self.availability.map(|state| state.as_str()),
            "max_concurrency": d.throughput.max_concurrency,
            "max_inflight": d.max_inflight,
            "slot_cap_mismatch": cap_mismatch.map(|cap| json!({
                "believed": cap.believed,
                "observed": cap.observed,
                "sign": cap.sign.as_str(),
            })),
            "figures": figures,
            "pace": moment.pace,
            "lateness": moment.lateness,
            "inflight": self.state.map(|state| state.inflight),
            "backlog_s": self.state.map(|state| state.backlog.0),
            "warm_up_s": self.state.map(|state| state.warm_up.0),
            "price_per_s": self.state.map(|state| state.price_per_s),
            "running_elsewhere": moment.elsewhere.running,
            "waiting_elsewhere": moment.elsewhere.queued,
            "feedback": self.drift.as_ref().map(drift_json),
            "loaded": load.map(|load| load.is_loaded),
            "loading": load.map(|load| load.loading_since.is_some()),
            "load_s": load.and_then(|load| load.is_loaded.map(|_| load.load.0)),
        })
    }
}

fn drift_json(drift: &Drift) -> Value {
    json!({
        "scores": drift.scores,
        "mean_score": drift.mean_score,
        "mean_predicted": drift.mean_predicted,
        "drift": drift.difference(),
        "half_interval_95": drift.half_interval,
        "is_drifting": drift.is_drifting(),
    })
}

fn figure_json(figure: &FigureReport) -> Value {
    json!({
        "value": figure.value,
        "source": figure.source.as_str(),
        "age_s": figure.age.map(|age| age.0),
        "samples": figure.samples,
        "drift": figure.drift,
        "stale": figure.is_stale,
    })
}

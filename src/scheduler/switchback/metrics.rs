//! The figures of policies that take turns as metrics, worked out when they are asked for.

use std::sync::Weak;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts};

use super::Switchback;
use crate::scheduler::live_planner::LivePlanner;

/// Figures that are gauges of their own: name in the report, name of the metric, help.
const FIGURES: [(&str, &str, &str); 6] = [
    (
        "objective",
        "cema_switchback_objective",
        "Mean realised J of answered requests, on the scales in force.",
    ),
    ("latency_s", "cema_switchback_latency_seconds", "Time from arrival to the last byte, by statistic."),
    ("quality", "cema_switchback_quality", "Mean predicted quality where requests were answered."),
    ("joules_per_request", "cema_switchback_joules_per_request", "Mean energy of answered requests."),
    ("usd_per_request", "cema_switchback_usd_per_request", "Mean price of answered requests."),
    ("feedback_score", "cema_switchback_feedback_score", "Mean score that clients gave answers."),
];
/// The one of them with the label `statistic`.
const LATENCY: &str = "latency_s";

/// Collects them.
pub(in crate::scheduler) struct SwitchbackGauges {
    switchback: Switchback,
    /// Knows the scales of J.
    planner: Weak<LivePlanner>,
    active: GaugeVec,
    requests: GaugeVec,
    figures: Vec<(&'static str, GaugeVec)>,
}

impl SwitchbackGauges {
    pub(in crate::scheduler) fn new(
        switchback: Switchback,
        planner: Weak<LivePlanner>,
    ) -> prometheus::Result<Self> {
        let active = Opts::new("cema_switchback_active", "1 for the policy that has its turn.");
        let requests =
            Opts::new("cema_switchback_requests", "Requests that arrived in counted time, by outcome.");
        let figure = |(figure, name, help): (&'static str, &str, &str)| {
            let labels: &[&str] = if figure == LATENCY { &["policy", "statistic"] } else { &["policy"] };
            Ok((figure, GaugeVec::new(Opts::new(name, help), labels)?))
        };
        Ok(Self {
            switchback,
            planner,
            active: GaugeVec::new(active, &["policy"])?,
            requests: GaugeVec::new(requests, &["policy", "outcome"])?,
            figures: FIGURES.into_iter().map(figure).collect::<prometheus::Result<_>>()?,
        })
    }

    fn update(&self) {
        let Some(planner) = self.planner.upgrade() else { return };
        let scales = planner.look(|context, _| context.scales);
        let snapshot = self.switchback.snapshot();
        let current = snapshot.alternation.at(snapshot.now).policy;
        for (nth, of) in snapshot.policies(&scales).into_iter().enumerate() {
            self.active.with_label_values(&[of.policy]).set(if nth == current { 1.0 } else { 0.0 });
            for (outcome, n) in [("ok", of.answered), ("failed", of.failed), ("client_gone", of.client_gone)]
            {
                self.requests.with_label_values(&[of.policy, outcome]).set(n as f64);
            }
            for (name, gauge) in &self.figures {
                let mean = of.figures.get(name).and_then(|figure| figure.mean);
                let quantiles = [("p50", of.latency_p50_s), ("p95", of.latency_p95_s)];
                if *name == LATENCY {
                    for (statistic, value) in [("mean", mean)].into_iter().chain(quantiles) {
                        set(gauge, &[of.policy, statistic], value);
                    }
                } else {
                    set(gauge, &[of.policy], mean);
                }
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = &GaugeVec> {
        [&self.active, &self.requests].into_iter().chain(self.figures.iter().map(|(_, gauge)| gauge))
    }
}

/// What is not known has no series.
fn set(gauge: &GaugeVec, labels: &[&str], value: Option<f64>) {
    if let Some(value) = value {
        gauge.with_label_values(labels).set(value);
    }
}

impl Collector for SwitchbackGauges {
    fn desc(&self) -> Vec<&Desc> {
        self.all().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.update();
        self.all().flat_map(Collector::collect).collect()
    }
}

//! Metrics of feedback (`cema_feedback_*`, `cema_quality_drift`).

use prometheus::core::Collector;
use prometheus::{GaugeVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use crate::domain::named::named_enum;
use crate::profiler::quality::feedback::drift::Drift;

named_enum! {
    /// What became of feedback; a metric label.
    pub enum FeedbackOutcome {
        /// It is on disk.
        Stored = "stored",
        /// The same, in the place of an earlier score of the same answer.
        Replaced = "replaced",
        /// It was no feedback: bad key, bad body.
        Invalid = "invalid",
        /// Its request is not known, or not any more.
        Unknown = "unknown",
        /// Too much of it waits.
        Busy = "busy",
        /// The store could not be written.
        Failed = "failed",
    }
}

/// Every metric of this module.
#[derive(Debug, Clone)]
pub(super) struct FeedbackMetrics {
    /// In the order of [`FeedbackOutcome::ALL`].
    by_outcome: Vec<IntCounter>,
    total: IntCounterVec,
    score: GaugeVec,
    drift: GaugeVec,
    pub(super) kept: IntGauge,
    pub(super) live: IntGauge,
}

impl FeedbackMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let total = IntCounterVec::new(
            Opts::new("cema_feedback_total", "Feedback by what became of it."),
            &["outcome"],
        )?;
        let outcomes = FeedbackOutcome::ALL.iter();
        let metrics = Self {
            by_outcome: outcomes.map(|outcome| total.with_label_values(&[outcome.as_str()])).collect(),
            total,
            score: GaugeVec::new(
                Opts::new(
                    "cema_feedback_score",
                    "Mean of the last scores that clients gave a model's answers.",
                ),
                &["model"],
            )?,
            drift: GaugeVec::new(
                Opts::new(
                    "cema_quality_drift",
                    "Mean of the last scores that clients gave a model's answers, less what was predicted of the same.",
                ),
                &["model"],
            )?,
            kept: IntGauge::new(
                "cema_feedback_kept_requests",
                "Answered requests that feedback may still be given on.",
            )?,
            live: IntGauge::new("cema_feedback_rows", "Scores of clients that predictions look at.")?,
        };
        let collectors: [Box<dyn Collector>; 5] = [
            Box::new(metrics.total.clone()),
            Box::new(metrics.score.clone()),
            Box::new(metrics.drift.clone()),
            Box::new(metrics.kept.clone()),
            Box::new(metrics.live.clone()),
        ];
        collectors.into_iter().try_for_each(|collector| registry.register(collector))?;
        Ok(metrics)
    }

    pub(super) fn count(&self, outcome: FeedbackOutcome) {
        self.by_outcome[outcome as usize].inc();
    }

    /// Of a model of the configuration, so that labels are bounded.
    pub(super) fn show(&self, model: &str, drift: &Drift) {
        self.score.with_label_values(&[model]).set(drift.mean_score);
        self.drift.with_label_values(&[model]).set(drift.difference());
    }
}

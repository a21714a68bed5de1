//! Metrics of requests, attempts and what they took.

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{
    CounterVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, exponential_buckets,
};

use super::record::{Finished, Outcome};
use crate::domain::Destination;

/// Label of requests that never had a destination.
const NOWHERE: &str = "none";

#[derive(Debug)]
pub(super) struct RequestMetrics {
    requests: IntCounterVec,
    duration: HistogramVec,
    time_to_first_token: HistogramVec,
    time_per_output_token: HistogramVec,
    attempts: IntCounterVec,
    rejected: IntCounterVec,
    tokens: CounterVec,
    cost: CounterVec,
    energy: CounterVec,
    predicted_vs_actual: HistogramVec,
}

impl RequestMetrics {
    pub(super) fn register(
        registry: &Registry,
        destinations: &Arc<[Destination]>,
    ) -> prometheus::Result<Self> {
        let slow = exponential_buckets(0.01, 2.0, 15)?;
        let metrics = Self {
            requests: IntCounterVec::new(
                Opts::new(
                    "cema_requests_total",
                    "Requests by destination, model, outcome and kind of answer.",
                ),
                &["destination", "model", "outcome", "stream"],
            )?,
            duration: HistogramVec::new(
                HistogramOpts::new("cema_request_duration_seconds", "From arrival to the last byte.")
                    .buckets(slow.clone()),
                &["destination"],
            )?,
            time_to_first_token: HistogramVec::new(
                HistogramOpts::new(
                    "cema_time_to_first_token_seconds",
                    "From arrival to the first content of a stream.",
                )
                .buckets(slow),
                &["destination"],
            )?,
            time_per_output_token: HistogramVec::new(
                HistogramOpts::new(
                    "cema_time_per_output_token_seconds",
                    "Time of a stream after its first content, per completion token after the first.",
                )
                .buckets(exponential_buckets(0.002, 2.0, 12)?),
                &["destination"],
            )?,
            attempts: IntCounterVec::new(
                Opts::new("cema_upstream_attempts_total", "Failed attempts at endpoints, by reason."),
                &["reason"],
            )?,
            rejected: IntCounterVec::new(
                Opts::new("cema_rejected_total", "Requests refused without an attempt, by reason."),
                &["reason"],
            )?,
            tokens: CounterVec::new(
                Opts::new("cema_tokens_total", "Tokens of answered requests."),
                &["destination", "type"],
            )?,
            cost: CounterVec::new(
                Opts::new(
                    "cema_cost_usd_total",
                    "Money charged by configured prices for tokens counted (Eq. 2).",
                ),
                &["destination"],
            )?,
            energy: CounterVec::new(
                Opts::new("cema_energy_joules_total", "Energy of answered requests (Eq. 3)."),
                &["destination", "source"],
            )?,
            predicted_vs_actual: HistogramVec::new(
                HistogramOpts::new(
                    "cema_predicted_vs_actual_ratio",
                    "Predicted figure divided by the actual one, of answered requests.",
                )
                .buckets(vec![0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0]),
                &["quantity"],
            )?,
        };
        let collectors: [Box<dyn Collector>; 10] = [
            Box::new(metrics.requests.clone()),
            Box::new(metrics.duration.clone()),
            Box::new(metrics.time_to_first_token.clone()),
            Box::new(metrics.time_per_output_token.clone()),
            Box::new(metrics.attempts.clone()),
            Box::new(metrics.rejected.clone()),
            Box::new(metrics.tokens.clone()),
            Box::new(metrics.cost.clone()),
            Box::new(metrics.energy.clone()),
            Box::new(metrics.predicted_vs_actual.clone()),
        ];
        for collector in collectors {
            registry.register(collector)?;
        }
        for destination in destinations.iter() {
            metrics.duration.with_label_values(&[destination.id.as_str()]);
        }
        Ok(metrics)
    }

    pub(super) fn failed_attempt(&self, reason: &str) {
        self.attempts.with_label_values(&[reason]).inc();
    }

    pub(super) fn rejected(&self, reason: &str) {
        self.rejected.with_label_values(&[reason]).inc();
    }

    pub(super) fn finished(&self, finished: &Finished<'_>) {
        let destination = finished.dispatch.map(super::record::Dispatch::destination);
        let id = destination.map_or(NOWHERE, |d| d.id.as_str());
        let model = destination.map_or(NOWHERE, |d| &*d.model);
        let stream = if finished.stream { "true" } else { "false" };
        self.requests.with_label_values(&[id, model, finished.outcome.as_str(), stream]).inc();
        if let Some(destination) = destination
            && finished.outcome == Outcome::Ok
        {
            self.answered(finished, destination);
        }
    }

    fn answered(&self, finished: &Finished<'_>, destination: &Destination) {
        let id = destination.id.as_str();
        self.duration.with_label_values(&[id]).observe(finished.duration.0);
        if let Some(first) = finished.to_first_content {
            self.time_to_first_token.with_label_values(&[id]).observe(first.0);
            if let Some(completion) = finished.completion.filter(|tokens| tokens.0 > 1.0) {
                let per_token = (finished.duration - first).0 / (completion.0 - 1.0);
                self.time_per_output_token.with_label_values(&[id]).observe(per_token);
            }
        }
        let (Some(prompt), Some(completion), Some(dispatch)) =
            (finished.prompt, finished.completion, finished.dispatch)
        else {
            return;
        };
        self.tokens.with_label_values(&[id, "prompt"]).inc_by(prompt.0);
        self.tokens.with_label_values(&[id, "completion"]).inc_by(completion.0);
        self.cost.with_label_values(&[id]).inc_by(destination.price.charge(prompt, completion).0);
        let actual_service = destination.throughput.service_time(prompt, completion);
        let estimate = &dispatch.estimate;
        // The model's energy is proportional to service time: scale it to the tokens that were counted.
        let scale = if estimate.service.0 > 0.0 { actual_service.0 / estimate.service.0 } else { 1.0 };
        self.energy.with_label_values(&[id, "modelled"]).inc_by((estimate.joules.0 * scale).max(0.0));
        if let Some(execution) = finished.execution.filter(|s| s.0 > 0.0) {
            self.compare("seconds", estimate.completion.0 / execution.0);
        }
        if completion.0 > 0.0 {
            self.compare("completion_tokens", dispatch.completion.0 / completion.0);
        }
    }

    fn compare(&self, quantity: &str, ratio: f64) {
        self.predicted_vs_actual.with_label_values(&[quantity]).observe(ratio);
    }
}

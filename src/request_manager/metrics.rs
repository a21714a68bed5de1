//! Metrics of requests, attempts and what they took.

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{
    CounterVec, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry, exponential_buckets,
};

use super::record::{Finished, Outcome};
use crate::domain::Destination;

/// Label of requests that never had a destination.
const NOWHERE: &str = "none";

const RATIO_BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0];

#[derive(Debug)]
pub(super) struct RequestMetrics {
    requests: IntCounterVec,
    clocks: Clocks,
    attempts: IntCounterVec,
    rejected: IntCounterVec,
    queue_depth: IntGauge,
    tokens: CounterVec,
    cost: CounterVec,
    energy: CounterVec,
    predicted_vs_actual: HistogramVec,
}

/// What took how long, of answered requests.
#[derive(Debug)]
struct Clocks {
    duration: HistogramVec,
    execution: HistogramVec,
    time_to_first_token: HistogramVec,
    time_per_output_token: HistogramVec,
}

impl Clocks {
    fn register(families: &Families<'_>) -> prometheus::Result<Self> {
        let slow = exponential_buckets(0.01, 2.0, 15)?;
        Ok(Self {
            duration: families.histogram(
                ("cema_request_duration_seconds", "From arrival to the last byte."),
                &["destination"],
                slow.clone(),
            )?,
            time_to_first_token: families.histogram(
                ("cema_time_to_first_token_seconds", "From arrival to the first content of a stream."),
                &["destination"],
                slow.clone(),
            )?,
            time_per_output_token: families.histogram(
                (
                    "cema_time_per_output_token_seconds",
                    "Time of a stream after its first content, per completion token after the first.",
                ),
                &["destination"],
                exponential_buckets(0.002, 2.0, 12)?,
            )?,
            execution: families.histogram(
                (
                    "cema_execution_seconds",
                    "From a request's last departure for an endpoint to the last byte of the answer.",
                ),
                &["destination"],
                slow,
            )?,
        })
    }

    fn observe(&self, id: &str, finished: &Finished<'_>) {
        self.duration.with_label_values(&[id]).observe(finished.duration.0);
        if let Some(execution) = finished.execution {
            self.execution.with_label_values(&[id]).observe(execution.0);
        }
        let Some(first) = finished.to_first_content else { return };
        self.time_to_first_token.with_label_values(&[id]).observe(first.0);
        if let Some(completion) = finished.completion.filter(|tokens| tokens.0 > 1.0) {
            let per_token = (finished.duration - first).0 / (completion.0 - 1.0);
            self.time_per_output_token.with_label_values(&[id]).observe(per_token);
        }
    }
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Queued(IntGauge);

impl Drop for Queued {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Makes and registers labelled metrics.
struct Families<'a> {
    registry: &'a Registry,
}

impl Families<'_> {
    fn registered<C: Collector + Clone + 'static>(&self, collector: C) -> prometheus::Result<C> {
        self.registry.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    fn counter(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
        self.registered(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    fn amount(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<CounterVec> {
        self.registered(CounterVec::new(Opts::new(name, help), labels)?)
    }

    fn histogram(
        &self,
        (name, help): (&str, &str),
        labels: &[&str],
        buckets: Vec<f64>,
    ) -> prometheus::Result<HistogramVec> {
        self.registered(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), labels)?)
    }
}

impl RequestMetrics {
    pub(super) fn register(
        registry: &Registry,
        destinations: &Arc<[Destination]>,
    ) -> prometheus::Result<Self> {
        let families = Families { registry };
        let metrics = Self {
            requests: families.counter(
                "cema_requests_total",
                "Requests by destination, model, outcome and kind of answer.",
                &["destination", "model", "outcome", "stream"],
            )?,
            clocks: Clocks::register(&families)?,
            attempts: families.counter(
                "cema_upstream_attempts_total",
                "Failed attempts at endpoints, by reason.",
                &["reason"],
            )?,
            rejected: families.counter(
                "cema_rejected_total",
                "Requests refused without an attempt, by reason.",
                &["reason"],
            )?,
            queue_depth: families.registered(IntGauge::new(
                "cema_queue_depth",
                "Requests that wait for a first destination; limits.max_queued_requests bounds them.",
            )?)?,
            tokens: families.amount(
                "cema_tokens_total",
                "Tokens of answered requests.",
                &["destination", "type"],
            )?,
            cost: families.amount(
                "cema_cost_usd_total",
                "Money charged by configured prices for tokens counted (Eq. 2).",
                &["destination"],
            )?,
            energy: families.amount(
                "cema_energy_joules_total",
                "Energy of answered requests (Eq. 3).",
                &["destination", "source"],
            )?,
            predicted_vs_actual: families.histogram(
                (
                    "cema_predicted_vs_actual_ratio",
                    "Predicted figure divided by the actual one, of answered requests.",
                ),
                &["quantity"],
                RATIO_BUCKETS.to_vec(),
            )?,
        };
        for destination in destinations.iter() {
            metrics.clocks.duration.with_label_values(&[destination.id.as_str()]);
        }
        Ok(metrics)
    }

    pub(super) fn failed_attempt(&self, reason: &str) {
        self.attempts.with_label_values(&[reason]).inc();
    }

    pub(super) fn rejected(&self, reason: &str) {
        self.rejected.with_label_values(&[reason]).inc();
    }

    /// Counts a waiting request until the guard is dropped.
    pub(super) fn queued(&self) -> Queued {
        self.queue_depth.inc();
        Queued(self.queue_depth.clone())
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
        self.clocks.observe(id, finished);
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

//! Metrics of requests, attempts and what they took.

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{
    Counter, CounterVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts,
    Registry, exponential_buckets,
};

use super::record::{Dispatch, Finished, Outcome};
use crate::domain::Destination;
use crate::profiler::quality::feedback::Given;
use crate::units::Seconds;

/// Label of requests that never had a destination.
const NOWHERE: &str = "none";

const LATE_GAIN_BUCKETS: [f64; 15] =
    [-60.0, -20.0, -5.0, -2.0, -1.0, -0.5, -0.1, 0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 20.0, 60.0];
const RATIO_BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0];

#[derive(Debug)]
pub(super) struct RequestMetrics {
    requests: IntCounterVec,
    attempts: IntCounterVec,
    rejected: IntCounterVec,
    queue_depth: IntGauge,
    late_gain: Histogram,
    /// By destination, in order.
    answered: Vec<AnsweredAt>,
}

/// Answered requests of one destination; looked up beforehand, since every request counts here.
#[derive(Debug)]
struct AnsweredAt {
    /// In one piece, and streamed.
    requests: [IntCounter; 2],
    clocks: ClocksAt,
    prompt_tokens: Counter,
    completion_tokens: Counter,
    cost: Counter,
    predicted_vs_actual: RatiosAt,
}

/// Predicted figures over actual ones at one destination, by quantity.
#[derive(Debug)]
struct RatiosAt([(&'static str, Histogram); 4]);

impl RatiosAt {
    /// The quantities, as labels have them.
    const QUANTITIES: [&'static str; 4] = ["seconds", "tokens", "joules", "quality"];

    fn observe(&self, quantity: &str, predicted: f64, actual: Option<f64>) {
        let Some(actual) = actual.filter(|actual| *actual > 0.0) else { return };
        if let Some((_, histogram)) = self.0.iter().find(|(name, _)| *name == quantity) {
            histogram.observe(predicted / actual);
        }
    }
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

    fn at(&self, id: &str) -> ClocksAt {
        ClocksAt {
            duration: self.duration.with_label_values(&[id]),
            execution: self.execution.with_label_values(&[id]),
            time_to_first_token: self.time_to_first_token.with_label_values(&[id]),
            time_per_output_token: self.time_per_output_token.with_label_values(&[id]),
        }
    }
}

/// The same at one destination.
#[derive(Debug)]
struct ClocksAt {
    duration: Histogram,
    execution: Histogram,
    time_to_first_token: Histogram,
    time_per_output_token: Histogram,
}

impl ClocksAt {
    fn observe(&self, finished: &Finished<'_>) {
        self.duration.observe(finished.duration.0);
        if let Some(execution) = finished.execution {
            self.execution.observe(execution.0);
        }
        let Some(first) = finished.to_first_content else { return };
        self.time_to_first_token.observe(first.0);
        if let Some(completion) = finished.completion.filter(|tokens| tokens.0 > 1.0) {
            let per_token = (finished.duration - first).0 / (completion.0 - 1.0);
            self.time_per_output_token.observe(per_token);
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
        let requests = families.counter(
            "cema_requests_total",
            "Requests by destination, model, outcome and kind of answer.",
            &["destination", "model", "outcome", "stream"],
        )?;
        let answered = Answered::register(&families)?;
        Ok(Self {
            answered: destinations.iter().map(|d| answered.at(d, &requests)).collect(),
            requests,
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
            late_gain: families.registered(Histogram::with_opts(
                HistogramOpts::new(
                    "cema_late_gain_seconds",
                    "How much earlier an answered request was complete than a greedy choice at its first plan \
                     was predicted to have it; negative where it was later. Errors of prediction are part of it.",
                )
                .buckets(LATE_GAIN_BUCKETS.to_vec()),
            )?)?,
            queue_depth: families.registered(IntGauge::new(
                "cema_queue_depth",
                "Requests that wait for a first destination; limits.max_queued_requests bounds them.",
            )?)?,
        })
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
        let answered_at = finished
            .dispatch
            .filter(|_| finished.outcome == Outcome::Ok)
            .and_then(|dispatch| Some((dispatch, self.answered.get(dispatch.ord.idx())?)));
        match answered_at {
            Some((dispatch, at)) => self.answered(finished, dispatch, at),
            None => self.not_answered(finished),
        }
    }

    /// A client gave an answer a score. One score may be 0, so means are compared: of the last scores of the model, and
    /// of what was predicted of the same answers.
    pub(super) fn scored(&self, given: &Given) {
        let at = self.answered.get(given.answered.destination.idx());
        if let Some((at, drift)) = at.zip(given.drift) {
            at.predicted_vs_actual.observe("quality", drift.mean_predicted, Some(drift.mean_score));
        }
    }

    fn not_answered(&self, finished: &Finished<'_>) {
        let destination = finished.dispatch.map(Dispatch::destination);
        let id = destination.map_or(NOWHERE, |d| d.id.as_str());
        let model = destination.map_or(NOWHERE, |d| &*d.model);
        let labels = [id, model, finished.outcome.as_str(), stream_label(finished.stream)];
        self.requests.with_label_values(&labels).inc();
    }

    fn answered(&self, finished: &Finished<'_>, dispatch: &Dispatch, at: &AnsweredAt) {
        at.requests[usize::from(finished.stream)].inc();
        at.clocks.observe(finished);
        let (Some(prompt), Some(completion)) = (finished.prompt, finished.completion) else { return };
        let destination = dispatch.destination();
        at.prompt_tokens.inc_by(prompt.0);
        at.completion_tokens.inc_by(completion.0);
        at.cost.inc_by(destination.price.charge(prompt, completion).0);
        if let (Some(greedy_left), Some(execution)) = (dispatch.greedy_left, finished.execution) {
            self.late_gain.observe((greedy_left - execution).0);
        }
        let estimate = &dispatch.estimate;
        at.predicted_vs_actual.observe(
            "seconds",
            estimate.completion.0,
            finished.execution.map(Seconds::get),
        );
        at.predicted_vs_actual.observe("tokens", dispatch.completion.0, Some(completion.0));
        if let Some(energy) = finished.modelled_joules() {
            at.predicted_vs_actual.observe("joules", estimate.joules.0, Some(energy.0));
        }
    }
}

/// What is counted of answered requests, by destination.
struct Answered {
    clocks: Clocks,
    tokens: CounterVec,
    cost: CounterVec,
    predicted_vs_actual: HistogramVec,
}

impl Answered {
    fn register(families: &Families<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            clocks: Clocks::register(families)?,
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
            predicted_vs_actual: families.histogram(
                (
                    "cema_predicted_vs_actual_ratio",
                    "Predicted figure divided by the actual one, of answered requests: seconds from departure to the last byte, completion tokens, joules by the model at the tokens counted; with each score of a client, quality: means of the model's last scores.",
                ),
                &["destination", "quantity"],
                RATIO_BUCKETS.to_vec(),
            )?,
        })
    }

    fn at(&self, destination: &Destination, requests: &IntCounterVec) -> AnsweredAt {
        let (id, model) = (destination.id.as_str(), &*destination.model);
        AnsweredAt {
            requests: [false, true].map(|stream| {
                requests.with_label_values(&[id, model, Outcome::Ok.as_str(), stream_label(stream)])
            }),
            clocks: self.clocks.at(id),
            prompt_tokens: self.tokens.with_label_values(&[id, "prompt"]),
            completion_tokens: self.tokens.with_label_values(&[id, "completion"]),
            cost: self.cost.with_label_values(&[id]),
            predicted_vs_actual: RatiosAt(
                RatiosAt::QUANTITIES
                    .map(|quantity| (quantity, self.predicted_vs_actual.with_label_values(&[id, quantity]))),
            ),
        }
    }
}

const fn stream_label(stream: bool) -> &'static str {
    if stream { "true" } else { "false" }
}

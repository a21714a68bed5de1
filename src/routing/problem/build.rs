//! From a batch and a context snapshot to problem tables (Algorithm 1, lines 4–5; Eq. 2–4).

use serde::{Deserialize, Serialize};

use crate::domain::{
    Destination, DestinationOrd, DestinationState, Prediction, RoutingContext, RoutingRequest, Work,
};
use crate::routing::completion::timeline::Timeline;
use crate::routing::legal::LegalSet;
use crate::routing::params::{CompletionModel, EnergyModel, TimeTerm};
use crate::routing::problem::{Clusters, DestinationLoad, Problem, ProblemError, ProblemTables, SumTables};
use crate::units::{Bytes, Joules, Seconds, Tokens, Usd, Watts};

/// Bytes of response body per completion token: about four characters of text. Framing is not counted.
const RESPONSE_BYTES_PER_TOKEN: f64 = 4.0;

/// A request that no destination finishes in time may go to those that take up to so many times as long as the soonest.
const NEARLY_SOONEST: f64 = 1.1;

/// One row to be.
#[derive(Debug, Clone, Copy)]
pub struct BatchItem<'a> {
    /// The request.
    pub request: &'a RoutingRequest,
    /// Its predictions, M entries each.
    pub prediction: &'a Prediction,
    /// Where it may go.
    pub legal: &'a LegalSet,
    /// Time since its arrival; counts towards its deadline.
    pub waited: Seconds,
}

/// Which models of time and energy fill the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostModels {
    /// How completion times are predicted.
    pub completion: CompletionModel,
    /// What the time term measures.
    pub time: TimeTerm,
    /// How inference energy is charged.
    pub energy: EnergyModel,
}

impl Problem {
    /// Fills the R × M tables of a batch, rows in the order of `batch`.
    ///
    /// A destination whose predicted finish misses a request's deadline is dropped from that request's row
    /// if another legal destination can meet it; so is one that misses [`RoutingContext::finish_target`], down to the
    /// nearest. `round_robin` starts at request number 0; see
    /// [`Problem::numbered_from`].
    ///
    /// # Errors
    /// A figure that is not a number (a calibrated speed of zero, say) or an empty batch.
    pub fn build(
        batch: &[BatchItem<'_>],
        context: &RoutingContext,
        models: &CostModels,
    ) -> Result<Self, ProblemError> {
        let m = context.destinations.len();
        let mut tables = empty_tables(batch.len(), m);
        tables.sum = sum_tables(batch.len(), context, models);
        for item in batch {
            check_prediction(item.prediction, m)?;
            for (d, destination, state) in context.iter() {
                let usage = Usage::new(item, (d, destination, state));
                tables.quality_loss.push(1.0 - item.prediction.quality[d.idx()].get());
                tables.cost_usd.push(usage.cost().get());
                tables.energy_j.push(usage.energy(models.energy).get());
                tables.service_s.push(usage.service().get());
                tables.transfer_s.push(usage.transfer().get());
                tables.legal.push(item.legal.contains(d));
                if let Some(sum) = &mut tables.sum {
                    sum.work.push(usage.work());
                }
            }
            tables.length_tokens.push(predicted_length(item).get());
            tables.weights.push(item.request.weights.unwrap_or(context.weights));
        }
        tables.clusters = clusters(batch, m);
        tables.destinations = loads(batch.len(), context, &tables.transfer_s);
        let has_deadline = |item: &BatchItem<'_>| item.request.constraints.deadline.is_some();
        if context.finish_target.is_some() || batch.iter().any(has_deadline) {
            let timeline = |(_, d, state): (_, &Destination, &DestinationState)| {
                Timeline::new(models.completion, d, state)
            };
            let timelines: Vec<Timeline> = context.iter().map(timeline).collect();
            for (item, legal) in batch.iter().zip(tables.legal.chunks_exact_mut(m)) {
                drop_late(item, (context, &timelines), legal);
            }
        }
        Self::new(tables)
    }

    /// The same problem with the number of requests routed before, the cursor of `round_robin`.
    #[must_use]
    pub fn numbered_from(mut self, first_request_number: u64) -> Self {
        self.tables.first_request_number = first_request_number;
        self
    }
}

/// What request r would use of destination d.
pub(super) struct Usage<'a> {
    destination: &'a Destination,
    state: &'a DestinationState,
    prompt: Tokens,
    /// With the destination's verbosity.
    completion: Tokens,
    /// At the figures of the destination.
    alone: Work,
    up: Bytes,
    down: Bytes,
}

impl<'a> Usage<'a> {
    pub(super) fn new(
        item: &BatchItem<'_>,
        (d, destination, state): (DestinationOrd, &'a Destination, &'a DestinationState),
    ) -> Self {
        let predicted = item.prediction.completion_tokens[d.idx()];
        let completion = item.request.completion(Tokens(predicted.get() * state.verbosity));
        Self {
            destination,
            state,
            prompt: item.request.prompt_tokens,
            completion,
            alone: item.request.work((d, &destination.throughput), predicted),
            up: item.request.upload,
            down: Bytes(completion.get() * RESPONSE_BYTES_PER_TOKEN),
        }
    }

    /// Eq. 2: tokens, request charge, metered transfer.
    fn cost(&self) -> Usd {
        let gigabytes = (self.up + self.down).get() / 1e9;
        let transfer = Usd(gigabytes * self.destination.network.usd_per_gb);
        self.destination.price.charge(self.prompt, self.completion) + transfer
    }

    /// Alone on the endpoint: prompt (but for what is cached) and completion tokens at the single-request speeds of
    /// the moment, and before them the loading of the model where it is not loaded.
    fn service(&self) -> Seconds {
        self.running() + self.state.warm_up
    }

    /// The same once the model is loaded.
    fn running(&self) -> Seconds {
        Seconds(self.alone.total().0 / self.state.pace)
    }

    /// What a timeline divides by the pace of the moment: the loading of a model takes as long as it takes.
    fn work(&self) -> Work {
        let mut work = self.alone;
        work.prefill += Seconds(self.state.warm_up.0 * self.state.pace);
        work
    }

    fn transfer(&self) -> Seconds {
        self.destination.network.transfer_time(self.up, self.down)
    }

    /// Predicted time from now to the last byte at its destination with this `timeline`. The request's own transfer,
    /// not the batch's mean: this is what its own deadline is held against.
    pub(super) fn finish(&self, timeline: &Timeline) -> Seconds {
        let served = timeline.predict(self.work()).finish;
        self.destination.network.rtt + self.transfer() + Seconds(served.0 * self.state.lateness)
    }

    /// Eq. 3: inference plus transfer.
    fn energy(&self, model: EnergyModel) -> Joules {
        let power = &self.destination.power;
        let inference = match model {
            EnergyModel::Paper => power.active().over(self.service()),
            EnergyModel::Marginal => {
                let above_idle = (power.active() - power.idle).max(Watts::ZERO);
                Joules(
                    above_idle.over(self.service()).get()
                        / speedup_with_one_more(self.destination, self.state),
                )
            }
        };
        inference + self.destination.network.transfer_energy(self.up, self.down)
    }
}

/// Speed-up of the serving batch with one more request in it: linear from 1 for a request alone to the
/// calibrated speed-up at the engine's concurrency, beyond which requests queue.
fn speedup_with_one_more(destination: &Destination, state: &DestinationState) -> f64 {
    let speed = &destination.throughput;
    if speed.max_concurrency <= 1 {
        return 1.0;
    }
    let running = state.inflight.saturating_add(1).min(speed.max_concurrency);
    let filled = f64::from(running - 1) / f64::from(speed.max_concurrency - 1);
    1.0 + (speed.batch_speedup - 1.0) * filled
}

/// Prompt plus mean completion over the legal destinations.
fn predicted_length(item: &BatchItem<'_>) -> Tokens {
    let predicted = item.legal.iter().filter_map(|d| item.prediction.completion_tokens.get(d.idx()));
    let total: Tokens = predicted.map(|tokens| item.request.completion(*tokens)).sum();
    item.request.prompt_tokens + Tokens(total.get() / item.legal.len() as f64)
}

/// A row of errors for each request: requests of one cluster have the same. `None` where none was predicted.
fn clusters(batch: &[BatchItem<'_>], m: usize) -> Option<Clusters> {
    let of = |item: &BatchItem<'_>| item.prediction.cluster_error.clone();
    let error: Vec<f64> = batch.iter().flat_map(of).collect();
    (error.len() == batch.len() * m).then(|| Clusters { of_request: (0..batch.len()).collect(), error })
}

fn check_prediction(prediction: &Prediction, m: usize) -> Result<(), ProblemError> {
    let sizes = [
        ("prediction.quality", prediction.quality.len()),
        ("prediction.completion_tokens", prediction.completion_tokens.len()),
    ];
    match sizes.into_iter().find(|(_, got)| *got != m) {
        Some((table, got)) => Err(ProblemError::Size { table, got, want: m }),
        None => Ok(()),
    }
}

fn empty_tables(n: usize, m: usize) -> ProblemTables {
    let cells = n * m;
    ProblemTables {
        quality_loss: Vec::with_capacity(cells),
        cost_usd: Vec::with_capacity(cells),
        energy_j: Vec::with_capacity(cells),
        service_s: Vec::with_capacity(cells),
        transfer_s: Vec::with_capacity(cells),
        legal: Vec::with_capacity(cells),
        length_tokens: Vec::with_capacity(n),
        destinations: Vec::with_capacity(m),
        weights: Vec::with_capacity(n),
        first_request_number: 0,
        clusters: None,
        sum: None,
    }
}

/// The tables of time term `sum`, work still to come.
fn sum_tables(n: usize, context: &RoutingContext, models: &CostModels) -> Option<SumTables> {
    if models.time == TimeTerm::Makespan {
        return None;
    }
    let mut sum = SumTables::with_capacity(n * context.destinations.len(), context.destinations.len());
    sum.others_time_weight = context.weights.time;
    for (_, destination, state) in context.iter() {
        sum.timelines.push(Timeline::new(models.completion, destination, state));
        sum.rtt_s.push(destination.network.rtt.0);
        sum.price_per_s.push(state.price_per_s);
    }
    Some(sum)
}

fn loads(n: usize, context: &RoutingContext, transfer_s: &[f64]) -> Vec<DestinationLoad> {
    let mut mean_transfer_s = vec![0.0; context.destinations.len()];
    for row in transfer_s.chunks(mean_transfer_s.len().max(1)) {
        for (mean, transfer) in mean_transfer_s.iter_mut().zip(row) {
            *mean += transfer / n as f64;
        }
    }
    let load = |(d, destination, state): (DestinationOrd, &Destination, &DestinationState)| DestinationLoad {
        id: destination.id.clone(),
        class: Some(destination.class),
        backlog_s: state.backlog.get(),
        batch_speedup: destination.throughput.batch_speedup,
        network_s: destination.network.rtt.get() + mean_transfer_s[d.idx()],
        inflight: state.inflight,
        max_concurrency: destination.throughput.max_concurrency,
        // The planner holds what a full destination cannot take yet.
        cap: None,
    };
    context.iter().map(load).collect()
}

/// Drops destinations of a request's row that miss its deadline, if another meets it, and those that miss the fleet's
/// target, down to the ones that come nearest.
fn drop_late(item: &BatchItem<'_>, (context, timelines): (&RoutingContext, &[Timeline]), legal: &mut [bool]) {
    let finish = |(d, destination, state): (DestinationOrd, &Destination, &DestinationState)| {
        Usage::new(item, (d, destination, state)).finish(&timelines[d.idx()]).0
    };
    let finish_s: Vec<f64> = context.iter().map(finish).collect();
    if let Some(deadline) = item.request.constraints.deadline {
        keep_those_by((deadline - item.waited).0, legal, &finish_s);
    }
    if let Some(target) = context.finish_target {
        let legal_s = legal.iter().zip(&finish_s).filter(|(legal, _)| **legal).map(|(_, s)| *s);
        let soonest_s = legal_s.fold(f64::INFINITY, f64::min);
        keep_those_by((target - item.waited).0.max(soonest_s * NEARLY_SOONEST), legal, &finish_s);
    }
}

/// Drops the legal destinations of a row that finish later than `latest_s`, unless all do.
fn keep_those_by(latest_s: f64, legal: &mut [bool], finish_s: &[f64]) {
    if legal.iter().zip(finish_s).any(|(legal, s)| *legal && *s <= latest_s) {
        legal.iter_mut().zip(finish_s).for_each(|(legal, s)| *legal &= *s <= latest_s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Capabilities;
    use crate::domain::{Constraints, Weights};
    use crate::routing::legal::legal_set;
    use crate::routing::testing::{context, destination, prediction, request};

    const MODELS: CostModels = CostModels {
        completion: CompletionModel::Fifo,
        time: TimeTerm::Makespan,
        energy: EnergyModel::Paper,
    };
    const D0: DestinationOrd = DestinationOrd(0);
    const D1: DestinationOrd = DestinationOrd(1);

    fn build(request: &RoutingRequest, context: &RoutingContext, models: &CostModels) -> Problem {
        let prediction = prediction(&[0.7, 0.9], &[200.0, 100.0]);
        let legal = legal_set(request, Some(&prediction), context, &[]).unwrap();
        let waited = Seconds(0.5);
        let item = BatchItem { request, prediction: &prediction, legal: &legal, waited };
        Problem::build(&[item], context, models).unwrap()
    }

    fn fleet() -> RoutingContext {
        let mut context = context(vec![destination("a", "m"), destination("b", "m")]);
        context.states[1].backlog = Seconds(3.0);
        context.states[1].inflight = 2;
        context
    }

    #[test]
    fn golden_tables_of_equations_2_to_4() {
        let problem = build(&request(), &fleet(), &MODELS);
        // s = 500/1000 + 200/100.
        assert!((problem.service(0, D0).get() - 2.5).abs() < 1e-12);
        assert!((problem.service(0, D1).get() - 1.5).abs() < 1e-12);
        // 500·1 + 200·2 per million, 1e-4 a request, (10,000 + 800) bytes at 1 USD/GB.
        assert!((problem.cost(0, D0).get() - (9e-4 + 1e-4 + 1.08e-5)).abs() < 1e-12);
        // 300 W · 2/3 · 2.5 s + 10 J/MB · 0.0108 MB.
        assert!((problem.energy(0, D0).get() - (500.0 + 0.108)).abs() < 1e-9);
        assert!((problem.transfer(0, D0).get() - 0.0108).abs() < 1e-12);
        assert!((problem.quality(0, D0).get() - 0.7).abs() < 1e-12);
        let load = problem.destination(D1);
        assert!((load.network_s - (0.02 + 0.0104)).abs() < 1e-12);
        assert!((load.backlog_s - 3.0).abs() < 1e-12);
        assert_eq!((load.inflight, load.max_concurrency), (2, 4));
        assert_eq!(problem.weights(0), Weights::EQUAL);
    }

    #[test]
    fn choices_and_the_cap_scale_completion_and_embeddings_have_none() {
        let capped = RoutingRequest { max_completion_tokens: Some(Tokens(50.0)), choices: 3, ..request() };
        // 500/1000 + 3·50/100.
        assert!((build(&capped, &fleet(), &MODELS).service(0, D0).get() - 2.0).abs() < 1e-12);
        // A destination twice as wordy as predicted: the same time (its speeds know), more money, within the cap.
        let mut wordy = fleet();
        wordy.states[0].verbosity = 2.0;
        let problem = build(&request(), &wordy, &MODELS);
        assert!((problem.service(0, D0).get() - 2.5).abs() < 1e-12);
        // 500·1 + 400·2 per million, 1e-4 a request, (10,000 + 1,600) bytes at 1 USD/GB.
        assert!((problem.cost(0, D0).get() - (1.3e-3 + 1e-4 + 1.16e-5)).abs() < 1e-12);
        let bounded = |context| build(&capped, context, &MODELS).cost(0, D0).get();
        assert!((bounded(&wordy) - bounded(&fleet())).abs() < 1e-12, "50 of 100 or 400 is 50");
        let mut context = fleet();
        let mut embedder = destination("e", "m");
        embedder.capabilities = Capabilities::EMBEDDING;
        context.destinations = vec![embedder, destination("b", "m")].into();
        let embedding = RoutingRequest { needs: Capabilities::EMBEDDING, ..request() };
        assert!((build(&embedding, &context, &MODELS).service(0, D0).get() - 0.5).abs() < 1e-12);
    }

    #[test]
    fn marginal_energy_is_above_idle_and_shared_by_the_serving_batch() {
        let marginal = CostModels { energy: EnergyModel::Marginal, ..MODELS };
        let problem = build(&request(), &fleet(), &marginal);
        // Alone: (200 − 100) W · 2.5 s.
        assert!((problem.energy(0, D0).get() - (250.0 + 0.108)).abs() < 1e-9);
        // Third of four, speed-up 1 + 3·(2/3) = 3: 100 W · 1.5 s / 3.
        assert!((problem.energy(0, D1).get() - (50.0 + 0.104)).abs() < 1e-9);
    }

    #[test]
    fn a_deadline_drops_what_misses_it_only_if_something_meets_it() {
        // Finish: 0.02 + 0.0108 + 2.5 at d0; 0.02 + 0.0104 + 3 + 1.5/4 at d1; 0.5 s have passed.
        let within = |seconds| {
            let constraints = Constraints { deadline: Some(Seconds(seconds)), ..Constraints::default() };
            let problem = build(&RoutingRequest { constraints, ..request() }, &fleet(), &MODELS);
            (problem.is_legal(0, D0), problem.is_legal(0, D1))
        };
        assert_eq!(within(4.0), (true, true));
        assert_eq!(within(3.1), (true, false));
        assert_eq!(within(3.0), (true, true), "nobody meets it");
    }

    #[test]
    fn a_target_leaves_what_meets_it_or_comes_nearest() {
        // Finish: 2.5308 at d0, 3.4054 at d1; 0.5 s have passed.
        let within = |target_s: f64, deadline_s: Option<f64>| {
            let context = RoutingContext { finish_target: Some(Seconds(target_s)), ..fleet() };
            let constraints = Constraints { deadline: deadline_s.map(Seconds), ..Constraints::default() };
            let problem = build(&RoutingRequest { constraints, ..request() }, &context, &MODELS);
            (problem.is_legal(0, D0), problem.is_legal(0, D1))
        };
        assert_eq!(within(4.0, None), (true, true));
        assert_eq!(within(3.1, None), (true, false));
        assert_eq!(within(1.0, None), (true, false), "3.4054 is more than a tenth over the soonest");
        assert_eq!(within(4.0, Some(3.1)), (true, false), "a deadline is stricter");
        assert_eq!(within(3.1, Some(3.0)), (true, false), "nobody meets the deadline, one the target");
        let mut near = fleet();
        (near.finish_target, near.states[1].backlog) = (Some(Seconds(1.0)), Seconds(2.2));
        let problem = build(&request(), &near, &MODELS);
        assert!(
            problem.is_legal(0, D0) && problem.is_legal(0, D1),
            "2.6054 is less than a tenth over the soonest"
        );
    }

    #[test]
    fn the_sum_has_work_timelines_and_prices() {
        let models = CostModels { completion: CompletionModel::Slots, time: TimeTerm::Sum, ..MODELS };
        let mut context = fleet();
        context.states[0].price_per_s = 0.25;
        (context.states[1].pace, context.states[1].warm_up) = (0.5, Seconds(6.0));
        let problem = build(&request(), &context, &models);
        let sum = problem.sum().unwrap();
        assert_eq!(sum.work(0, D0), Work { prefill: Seconds(0.5), decode: Seconds(2.0) });
        // Loading takes 6 s whatever the pace.
        assert_eq!(sum.work(0, D1), Work { prefill: Seconds(3.5), decode: Seconds(1.0) });
        assert_eq!(sum.timelines[1].predict(sum.work(0, D1)).first_content, Seconds(7.0));
        assert_eq!((&*sum.price_per_s, sum.others_time_weight), (&[0.25, 0.0][..], Weights::EQUAL.time));
        // 0.5 + 2 / 4.
        assert!((sum.saturated_work_s(0, D0) - 1.0).abs() < 1e-12);
        assert!(build(&request(), &context, &MODELS).sum().is_none(), "a makespan needs none");
    }

    #[test]
    fn predicted_cluster_errors_are_uniroutes() {
        let (request, context) = (request(), fleet());
        let prediction = prediction(&[0.7, 0.9], &[200.0, 100.0]);
        let clustered = Prediction { cluster_error: vec![0.25, 0.5], ..prediction.clone() };
        let legal = legal_set(&request, None, &context, &[]).unwrap();
        let item =
            BatchItem { request: &request, prediction: &prediction, legal: &legal, waited: Seconds::ZERO };
        let items = [BatchItem { prediction: &clustered, ..item }, item];
        let clusters = |items: &[BatchItem<'_>]| {
            Problem::build(items, &context, &MODELS).unwrap().tables().clusters.clone()
        };
        let of_one = clusters(&items[..1]).unwrap();
        assert_eq!((of_one.of_request, of_one.error), (vec![0], vec![0.25, 0.5]));
        assert!(clusters(&items).is_none(), "of all or of none");
    }

    #[test]
    fn bad_figures_are_refused() {
        let (request, context) = (request(), fleet());
        let prediction = prediction(&[0.7, 0.9], &[200.0, 100.0]);
        let legal = legal_set(&request, None, &context, &[]).unwrap();
        let waited = Seconds::ZERO;
        let item = BatchItem { request: &request, prediction: &prediction, legal: &legal, waited };
        assert_eq!(Problem::build(&[], &context, &MODELS).unwrap_err(), ProblemError::Empty("requests"));
        let mut stalled = destination("a", "m");
        stalled.throughput.decode = crate::units::TokensPerSec(0.0);
        let stalled = RoutingContext { destinations: vec![stalled, destination("b", "m")].into(), ..context };
        let refused = Problem::build(&[item], &stalled, &MODELS).unwrap_err();
        assert!(matches!(refused, ProblemError::Cell { request: 0, .. }), "{refused}");
        let short = Prediction { quality: Vec::new(), ..prediction.clone() };
        let item = BatchItem { prediction: &short, ..item };
        let refused = Problem::build(&[item], &stalled, &MODELS).unwrap_err();
        assert_eq!(refused, ProblemError::Size { table: "prediction.quality", got: 0, want: 2 });
    }
}

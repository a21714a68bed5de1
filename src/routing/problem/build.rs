//! From a batch and a context snapshot to problem tables (Algorithm 1, lines 4–5; Eq. 2–4).

use crate::domain::{
    Destination, DestinationOrd, DestinationState, Prediction, RoutingContext, RoutingRequest,
};
use crate::routing::completion::destination_finish_s;
use crate::routing::legal::LegalSet;
use crate::routing::params::{CompletionModel, EnergyModel, TimeTerm};
use crate::routing::problem::{DestinationLoad, Problem, ProblemError, ProblemTables};
use crate::units::{Bytes, Joules, Seconds, Tokens, Usd, Watts};

/// Bytes of response body per completion token: about four characters of text. Framing is not counted.
const RESPONSE_BYTES_PER_TOKEN: f64 = 4.0;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// if another legal destination can meet it. `round_robin` starts at request number 0; see
    /// [`Problem::numbered_from`].
    ///
    /// # Errors
    /// [`ProblemError::UnsupportedCompletion`] and [`ProblemError::UnsupportedTimeTerm`] for all but `fifo`
    /// and `makespan`; otherwise a figure that is not a number (a calibrated speed of zero, say) or an
    /// empty batch.
    pub fn build(
        batch: &[BatchItem<'_>],
        context: &RoutingContext,
        models: &CostModels,
    ) -> Result<Self, ProblemError> {
        if models.completion != CompletionModel::Fifo {
            return Err(ProblemError::UnsupportedCompletion(models.completion));
        }
        if models.time != TimeTerm::Makespan {
            return Err(ProblemError::UnsupportedTimeTerm(models.time));
        }
        let m = context.destinations.len();
        let mut tables = empty_tables(batch.len(), m);
        for item in batch {
            check_prediction(item.prediction, m)?;
            for (d, destination, state) in context.iter() {
                let usage = Usage::new(item, d, destination);
                tables.quality_loss.push(1.0 - item.prediction.quality[d.idx()].get());
                tables.cost_usd.push(usage.cost().get());
                tables.energy_j.push(usage.energy(models.energy, state).get());
                tables.service_s.push(usage.service().get());
                tables.transfer_s.push(usage.transfer().get());
                tables.legal.push(item.legal.contains(d));
            }
            tables.length_tokens.push(predicted_length(item).get());
            tables.weights.push(item.request.weights.unwrap_or(context.weights));
        }
        tables.destinations = loads(batch.len(), context, &tables.transfer_s);
        for (r, item) in batch.iter().enumerate() {
            apply_deadline(item, context, &mut tables, r * m);
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
struct Usage<'a> {
    destination: &'a Destination,
    prompt: Tokens,
    completion: Tokens,
    up: Bytes,
    down: Bytes,
}

impl<'a> Usage<'a> {
    fn new(item: &BatchItem<'_>, d: DestinationOrd, destination: &'a Destination) -> Self {
        let completion = item.request.completion(item.prediction.completion_tokens[d.idx()]);
        Self {
            destination,
            prompt: item.request.prompt_tokens,
            completion,
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

    /// Alone on the endpoint: prompt and completion tokens at the calibrated single-request speeds.
    fn service(&self) -> Seconds {
        self.destination.throughput.service_time(self.prompt, self.completion)
    }

    fn transfer(&self) -> Seconds {
        self.destination.network.transfer_time(self.up, self.down)
    }

    /// Eq. 3: inference plus transfer.
    fn energy(&self, model: EnergyModel, state: &DestinationState) -> Joules {
        let power = &self.destination.power;
        let inference = match model {
            EnergyModel::Paper => power.active().over(self.service()),
            EnergyModel::Marginal => {
                let above_idle = (power.active() - power.idle).max(Watts::ZERO);
                Joules(above_idle.over(self.service()).get() / speedup_with_one_more(self.destination, state))
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
    }
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
    };
    context.iter().map(load).collect()
}

/// Drops destinations that miss the deadline of the row starting at `row`, if another meets it.
fn apply_deadline(item: &BatchItem<'_>, context: &RoutingContext, tables: &mut ProblemTables, row: usize) {
    let Some(deadline) = item.request.constraints.deadline else { return };
    let left_s = (deadline - item.waited).get();
    let meets = |d: usize, tables: &ProblemTables| {
        let (load, service_s) = (&tables.destinations[d], tables.service_s[row + d]);
        // The request's own transfer, not the batch's mean: the deadline is its own.
        let own_network_s = context.destinations[d].network.rtt.get() + tables.transfer_s[row + d];
        let in_queue_s = destination_finish_s(load, service_s, service_s) - load.network_s;
        tables.legal[row + d] && own_network_s + in_queue_s <= left_s
    };
    let met: Vec<bool> = (0..tables.destinations.len()).map(|d| meets(d, tables)).collect();
    if met.contains(&true) {
        tables.legal[row..row + met.len()].copy_from_slice(&met);
    }
}

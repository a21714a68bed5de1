//! What a live run amounts to: latency, score, energy and money, and one figure that joins them.
//!
//! The first tenth of the arrivals, while the fleet fills up, is left out of times and score. A request that was
//! answered with an error counts as an answer of score 0 after [`DEADLINE`]: nobody gets better by rejecting.

use rand::seq::SliceRandom as _;

use crate::planning::Ticket;
use crate::routing::{DestinationLoad, EnergyModel, Problem, rng_for};
use crate::simulate::engine::{EngineKind, Job, Milestone};
use crate::simulate::live::{DEADLINE, LiveParams, LiveRun, Record};
use crate::simulate::{Method, SimulateError, Workload};
use crate::statistics::{mean, quantile};
use crate::units::{Joules, Seconds};

/// One in so many arrivals, the first ones, is left out of times and score.
const WARM_UP_ONE_IN: usize = 10;

/// Requests an engine finishes to find out its capacity, and further ones per slot.
const SATURATED_REQUESTS: (usize, usize) = (2_000, 60);
/// Seed of the order in which they come.
const SATURATED_SEED: u64 = 0;

/// A distribution of times, seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Spread {
    fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |q| quantile(&samples, q);
        Self { mean: mean(&samples), p50: at(0.5), p95: at(0.95), p99: at(0.99) }
    }
}

/// How one method did.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveOutcome {
    /// Name of the method.
    pub name: String,
    /// Mean true score of the answers.
    pub score: f64,
    /// From arrival to the whole answer.
    pub latency_s: Spread,
    /// From arrival to the first token.
    pub ttft_s: Spread,
    /// From arrival to departure from the router: window and hold.
    pub hold_s: Spread,
    /// Energy of all answers by the scenario's model, joules; `marginal`: what engines drew above idle.
    pub energy_j: f64,
    /// All that nodes drew from the first arrival to the last answer, idle power included, and transfers.
    pub energy_with_idle_j: f64,
    /// Money of all answers, US dollars.
    pub usd: f64,
    /// Realised J per answer under the scales of [`LiveScales`]; comparable between methods of a run.
    pub objective: f64,
    /// Answers.
    pub served: usize,
    /// Requests answered with an error.
    pub rejected: usize,
    /// Mean busy share of the engines.
    pub utilisation: f64,
    /// Time of one plan.
    pub decision: Seconds,
}

/// What one unit of each term is: mean range over the destinations (quality, money, energy) and mean service
/// time, over all rows as they really were.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LiveScales {
    quality: f64,
    cost: f64,
    energy: f64,
    time: f64,
}

/// The truth of a workload and the scales that follow from it.
#[derive(Debug, Clone)]
pub struct LiveTruth {
    problem: Problem,
    scales: LiveScales,
    energy: EnergyModel,
    capacity_per_s: f64,
}

impl LiveTruth {
    /// Works out the truth of all rows on an idle fleet, and what the fleet serves when it is saturated.
    ///
    /// # Errors
    /// Rows that make no problem.
    pub fn new(workload: &Workload, params: &LiveParams) -> Result<Self, SimulateError> {
        let energy = params.costs.energy;
        let problem = workload.truth(energy)?;
        let scales = scales(&problem);
        let capacity_per_s = match params.engine {
            EngineKind::Fifo => fifo_capacity_per_s(&problem),
            EngineKind::Slots => {
                (0..workload.destinations().len()).map(|d| saturated_per_s(workload, params.engine, d)).sum()
            }
        };
        Ok(Self { problem, scales, energy, capacity_per_s })
    }

    /// Requests a second that the fleet serves if every engine is saturated with the rows of the workload.
    #[must_use]
    pub fn capacity_per_s(&self) -> f64 {
        self.capacity_per_s
    }

    /// Sums up a run of `method`.
    #[must_use]
    pub fn outcome(
        &self,
        workload: &Workload,
        method: &Method,
        params: &LiveParams,
        run: &LiveRun,
    ) -> LiveOutcome {
        let n = run.records.len() as f64;
        let served: Vec<Record> = run.records.iter().flatten().copied().collect();
        let measured = &run.records[run.records.len() / WARM_UP_ONE_IN..];
        let spread = |value: &dyn Fn(&Record) -> Seconds| {
            let of = |record: &Option<Record>| record.as_ref().map_or(DEADLINE, value).get();
            Spread::of(measured.iter().map(of).collect())
        };
        let scores: Vec<f64> = measured
            .iter()
            .map(|record| record.map_or(0.0, |r| self.problem.quality(r.row, r.destination).get()))
            .collect();
        let score = mean(&scores);
        let usd: f64 = served.iter().map(|r| self.problem.cost(r.row, r.destination).get()).sum();
        let drawn_j = drawn_j(workload, run);
        let transfers_j = self.transfers_j(workload, &served);
        let energy_j = match self.energy {
            EnergyModel::Paper => {
                served.iter().map(|r| self.problem.energy(r.row, r.destination).get()).sum()
            }
            EnergyModel::Marginal => drawn_j + transfers_j,
        };
        let latency_s = spread(&|r| r.latency);
        let (w, scales) = (params.weights, &self.scales);
        let objective = w.quality * (1.0 - score) / scales.quality
            + w.cost * usd / n / scales.cost
            + w.energy * energy_j / n / scales.energy
            + w.time * latency_s.mean / scales.time;
        let lasted_s = run.lasted.get().max(f64::MIN_POSITIVE);
        LiveOutcome {
            name: method.name().to_owned(),
            score,
            latency_s,
            ttft_s: spread(&|r| r.first_token),
            hold_s: spread(&|r| r.held),
            energy_j,
            energy_with_idle_j: drawn_j + transfers_j + idle_j(workload, run.lasted),
            usd,
            objective,
            served: served.len(),
            rejected: run.records.len() - served.len(),
            utilisation: mean(&run.busy.iter().map(|b| b.get() / lasted_s).collect::<Vec<_>>()),
            decision: Seconds(mean(&run.decisions.iter().map(|s| s.get()).collect::<Vec<_>>())),
        }
    }

    /// Energy of moving the answers' bytes.
    fn transfers_j(&self, workload: &Workload, served: &[Record]) -> f64 {
        // The energy of the truth's table is that of an idle fleet, where a request runs alone.
        let alone_w = |d: usize| {
            let power = &workload.destinations()[d].power;
            match self.energy {
                EnergyModel::Paper => power.active().get(),
                EnergyModel::Marginal => above_idle_w(workload, d),
            }
        };
        let transfer_j = |r: &Record| {
            let inference_j = alone_w(r.destination.idx()) * self.problem.service(r.row, r.destination).get();
            self.problem.energy(r.row, r.destination).get() - inference_j
        };
        served.iter().map(transfer_j).sum()
    }
}

/// What engines drew above idle.
fn drawn_j(workload: &Workload, run: &LiveRun) -> f64 {
    run.full_draw.iter().enumerate().map(|(d, time)| above_idle_w(workload, d) * time.get()).sum()
}

/// What idle nodes draw in `lasted`; destinations of one node share it.
fn idle_j(workload: &Workload, lasted: Seconds) -> f64 {
    let destinations = workload.destinations();
    let first_of_node = destinations
        .iter()
        .enumerate()
        .filter(|(d, destination)| destinations[..*d].iter().all(|other| other.node != destination.node));
    first_of_node.map(|(_, destination)| destination.power.idle.over(lasted)).sum::<Joules>().get()
}

fn above_idle_w(workload: &Workload, d: usize) -> f64 {
    let power = &workload.destinations()[d].power;
    (power.active() - power.idle).get().max(0.0)
}

/// Σ k_d over the mean true service time at d.
fn fifo_capacity_per_s(truth: &Problem) -> f64 {
    let (n, m) = (truth.n_requests(), truth.n_destinations());
    let service = &truth.tables().service_s;
    let of = |(d, load): (usize, &DestinationLoad)| {
        let total_s: f64 = service.iter().skip(d).step_by(m).sum();
        load.batch_speedup * n as f64 / total_s.max(f64::MIN_POSITIVE)
    };
    truth.destinations().iter().enumerate().map(of).sum()
}

/// Requests a second that the engine at `d` finishes while requests always wait for it, drawn as arrivals are: in
/// rounds of random order.
fn saturated_per_s(workload: &Workload, kind: EngineKind, d: usize) -> f64 {
    let throughput = workload.destinations()[d].throughput;
    let slots = throughput.max_concurrency as usize;
    let n = SATURATED_REQUESTS.0 + SATURATED_REQUESTS.1 * slots;
    let mut engine = kind.build(throughput);
    let mut rng = rng_for(SATURATED_SEED, d as u64);
    let mut round: Vec<usize> = Vec::new();
    for ticket in 0..n + 2 * slots {
        if round.is_empty() {
            round = (0..workload.requests().len()).collect();
            round.shuffle(&mut rng);
        }
        let Some(row) = round.pop().map(|row| &workload.requests()[row]) else { continue };
        let completion = row.request.completion(row.truth.completion_tokens[d]);
        let work = throughput.work(row.request.prompt_tokens, completion);
        engine.accept(Seconds::ZERO, Job { ticket: Ticket(ticket as u64), work });
    }
    // The first quarter is left out: then as many are in their prompts as in their answers.
    let (mut n_done, mut began_s, mut events) = (0, 0.0, Vec::new());
    while let Some(at) = engine.next_event() {
        engine.advance(at, &mut events);
        for _ in events.drain(..).filter(|event| event.milestone == Milestone::LastToken) {
            n_done += 1;
            if n_done == n / 4 {
                began_s = at.get();
            }
        }
        if n_done >= n {
            return (n_done - n / 4) as f64 / (at.get() - began_s).max(f64::MIN_POSITIVE);
        }
    }
    0.0
}

fn scales(problem: &Problem) -> LiveScales {
    let (n, m) = (problem.n_requests() as f64, problem.n_destinations());
    let tables = problem.tables();
    let mean_range = |table: &[f64]| {
        let range = |row: &[f64]| {
            row.iter().copied().fold(f64::NEG_INFINITY, f64::max)
                - row.iter().copied().fold(f64::INFINITY, f64::min)
        };
        positive(table.chunks(m).map(range).sum::<f64>() / n)
    };
    LiveScales {
        quality: mean_range(&tables.quality_loss),
        cost: mean_range(&tables.cost_usd),
        energy: mean_range(&tables.energy_j),
        time: positive(mean(&tables.service_s)),
    }
}

/// A term that is the same everywhere decides nothing, whatever its scale.
fn positive(scale: f64) -> f64 {
    if scale > 0.0 { scale } else { 1.0 }
}

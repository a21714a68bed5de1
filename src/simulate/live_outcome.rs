//! What a live run amounts to: latency, score, energy and money, and one figure that joins them.

use crate::routing::{CostModels, EnergyModel, Problem};
use crate::simulate::live::{LiveParams, LiveRun, Record};
use crate::simulate::statistics::{mean, quantile};
use crate::simulate::workload::Figures;
use crate::simulate::{Method, SimulateError, Workload};
use crate::units::Seconds;

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
    /// Energy of all answers, joules.
    pub energy_j: f64,
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
    costs: CostModels,
}

impl LiveTruth {
    /// Works out the truth of all rows on an idle fleet.
    ///
    /// # Errors
    /// Rows that make no problem.
    pub fn new(workload: &Workload, params: &LiveParams) -> Result<Self, SimulateError> {
        let rows: Vec<usize> = (0..workload.requests().len()).collect();
        let problem = workload.problem(&rows, Figures::True, &params.costs, params.weights)?;
        let scales = scales(&problem);
        Ok(Self { problem, scales, costs: params.costs })
    }

    /// Requests a second that the fleet serves if every engine is saturated with average requests: Σ k_d over
    /// the mean true service time at d.
    #[must_use]
    pub fn capacity_per_s(&self) -> f64 {
        let (n, m) = (self.problem.n_requests(), self.problem.n_destinations());
        let loads = self.problem.destinations().iter().enumerate();
        let service = &self.problem.tables().service_s;
        loads
            .map(|(d, load)| {
                let total_s: f64 = service.iter().skip(d).step_by(m).sum();
                load.batch_speedup * n as f64 / total_s.max(f64::MIN_POSITIVE)
            })
            .sum()
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
        let records: Vec<Record> = run.records.iter().flatten().copied().collect();
        let n = (records.len() as f64).max(1.0);
        let sum = |value: &dyn Fn(&Record) -> f64| records.iter().map(value).sum::<f64>();
        let spread = |value: &dyn Fn(&Record) -> Seconds| {
            Spread::of(records.iter().map(|record| value(record).get()).collect())
        };
        let score = sum(&|r| self.problem.quality(r.row, r.destination).get()) / n;
        let usd = sum(&|r| self.problem.cost(r.row, r.destination).get());
        let energy_j = self.energy_j(workload, &records, run);
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
            usd,
            objective,
            served: records.len(),
            rejected: run.records.len() - records.len(),
            utilisation: mean(&run.busy.iter().map(|b| b.get() / lasted_s).collect::<Vec<_>>()),
            decision: Seconds(mean(&run.decisions.iter().map(|s| s.get()).collect::<Vec<_>>())),
        }
    }

    /// `paper`: board power × service, undivided. `marginal`: power above idle while an engine is busy. Both
    /// with the energy of the transfers.
    fn energy_j(&self, workload: &Workload, records: &[Record], run: &LiveRun) -> f64 {
        // The tables are those of an idle fleet, where a request runs alone.
        let alone_j: f64 = records.iter().map(|r| self.problem.energy(r.row, r.destination).get()).sum();
        if self.costs.energy == EnergyModel::Paper {
            return alone_j;
        }
        let above_idle_w = |d: usize| {
            let power = &workload.destinations()[d].power;
            (power.active() - power.idle).get().max(0.0)
        };
        let inference_alone_j: f64 = records
            .iter()
            .map(|r| above_idle_w(r.destination.idx()) * self.problem.service(r.row, r.destination).get())
            .sum();
        let busy_j: f64 = run.busy.iter().enumerate().map(|(d, busy)| above_idle_w(d) * busy.get()).sum();
        alone_j - inference_alone_j + busy_j
    }
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

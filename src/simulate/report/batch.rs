//! Independent batches as CSV rows and tables.

use serde::Serialize;

use super::aligned;
use crate::simulate::batches::{BatchOutcome, Judgement};

/// One comparison over independent batches.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchRun {
    /// R.
    pub batch_size: usize,
    /// Batches averaged over.
    pub batches: usize,
    /// How often the fleet was replicated.
    pub copies: usize,
    /// M.
    pub destinations: usize,
    /// The compared methods.
    pub methods: Vec<BatchMethod>,
}

/// One method over independent batches.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchMethod {
    /// Its name.
    pub name: String,
    /// By the router's predictions, as the paper judges.
    #[serde(flatten)]
    pub predicted: Judgement,
    /// By what really was.
    #[serde(rename = "true")]
    pub truth: Judgement,
    /// Mean J under the bounds the solvers minimise; does not depend on the other methods.
    #[serde(rename = "solver_J")]
    pub solver_objective: f64,
    /// CPU time of one decision, milliseconds.
    pub decision_ms: f64,
    /// Half the width of its 95 % confidence interval.
    pub decision_ms_ci95: f64,
}

impl From<BatchOutcome> for BatchMethod {
    fn from(outcome: BatchOutcome) -> Self {
        Self {
            name: outcome.name,
            predicted: outcome.predicted,
            truth: outcome.truth,
            solver_objective: outcome.solver_objective,
            decision_ms: outcome.decision.get() * 1e3,
            decision_ms_ci95: outcome.decision_ci95_s * 1e3,
        }
    }
}

const BATCH_COLUMNS: [&str; 10] = [
    "J",
    "J_ci95",
    "quality_normalized",
    "cost_normalized",
    "energy_normalized",
    "time_normalized",
    "quality_loss",
    "cost_usd",
    "energy_j",
    "time_s",
];

pub(super) fn rows(runs: &[BatchRun]) -> Vec<Vec<String>> {
    let names = |prefix: &'static str| BATCH_COLUMNS.iter().map(move |name| format!("{prefix}{name}"));
    let of_run = ["batch_size", "batches", "copies", "destinations", "method"].map(str::to_owned);
    let rest = ["solver_J", "decision_ms"].map(str::to_owned);
    let mut rows = vec![of_run.into_iter().chain(names("")).chain(names("true_")).chain(rest).collect()];
    let numbers = |judged: &Judgement| {
        let (n, r) = (judged.normalised, judged.raw);
        let scaled = [judged.objective, judged.objective_ci95, n.quality, n.cost, n.energy, n.time];
        scaled.into_iter().chain([r.quality, r.cost, r.energy, r.time]).map(|x| x.to_string())
    };
    for run in runs {
        let sizes = [run.batch_size, run.batches, run.copies, run.destinations].map(|n| n.to_string());
        rows.extend(run.methods.iter().map(|m| {
            let named = sizes.iter().cloned().chain([m.name.clone()]);
            let rest = [m.solver_objective, m.decision_ms].map(|x| x.to_string());
            named.chain(numbers(&m.predicted)).chain(numbers(&m.truth)).chain(rest).collect()
        }));
    }
    rows
}

pub(super) fn table(run: &BatchRun) -> String {
    let head = ["J", "+-", "Q~", "C~", "E~", "T~", "quality loss", "USD", "joules", "seconds"];
    let fixed = |x: f64, digits: usize| format!("{x:.digits$}");
    let cells = |judged: &Judgement| {
        let (n, r) = (judged.normalised, judged.raw);
        let scaled = [judged.objective, judged.objective_ci95, n.quality, n.cost, n.energy, n.time];
        let raw = [fixed(r.quality, 3), fixed(r.cost, 5), fixed(r.energy, 1), fixed(r.time, 3)];
        scaled.map(|x| fixed(x, 3)).into_iter().chain(raw)
    };
    let by_predictions = run.methods.iter().map(|m| {
        let rest = [fixed(m.solver_objective, 4), fixed(m.decision_ms, 3)];
        (m.name.as_str(), cells(&m.predicted).chain(rest).collect())
    });
    let by_truth = run.methods.iter().map(|m| (m.name.as_str(), cells(&m.truth).collect()));
    format!(
        "\n{} requests x {} destinations, mean of {} batches; lower is better\n\
         judged by the router's predictions, as the paper judges\n{}\
         judged by what really was\n{}",
        run.batch_size,
        run.destinations,
        run.batches,
        aligned(head.into_iter().chain(["solver J", "decision ms"]).collect(), by_predictions.collect()),
        aligned(head.to_vec(), by_truth.collect())
    )
}

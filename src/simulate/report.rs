//! Results as JSON, CSV and plain tables.

use std::fmt::Write as _;

use serde::Serialize;

use crate::domain::Weights;
use crate::simulate::batches::{BatchOutcome, Judgement};
use crate::simulate::live_outcome::{LiveOutcome, Spread};

/// What every result rests on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Header {
    /// Name of the scenario.
    pub scenario: String,
    /// What it is, one line.
    pub title: String,
    /// `batch` or `live`.
    pub mode: &'static str,
    /// Seed of batches, arrivals and solvers.
    pub seed: u64,
    /// `predicted` or `oracle`: what the router knows of quality and length.
    pub quality: &'static str,
    /// `recorded` or `synthetic` completion lengths.
    pub lengths: &'static str,
    /// Rows that were simulated.
    pub trace: Rows,
    /// Rows that predictions come from; null with `oracle`.
    pub profile: Option<Rows>,
    /// ω.
    pub weights: NamedWeights,
    /// What is not measured.
    pub assumptions: Vec<String>,
}

/// Rows of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rows {
    /// The file, or the name of shipped rows.
    pub source: String,
    /// How many; null for a quality store.
    pub rows: Option<usize>,
}

/// ω by name.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct NamedWeights {
    quality: f64,
    cost: f64,
    energy: f64,
    time: f64,
}

impl From<Weights> for NamedWeights {
    fn from(w: Weights) -> Self {
        Self { quality: w.quality, cost: w.cost, energy: w.energy, time: w.time }
    }
}

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

/// One comparison under arrivals over time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LiveRun {
    /// Mean arrivals a second.
    pub arrivals_per_s: f64,
    /// The same as a share of what the saturated fleet serves.
    pub load: f64,
    /// `poisson`, `bursty`, or the file.
    pub arrivals: String,
    /// Requests.
    pub requests: usize,
    /// M.
    pub destinations: usize,
    /// How the windows of joint policies close: `fixed` or `adaptive`.
    pub window: &'static str,
    /// Their length, milliseconds.
    pub window_ms: f64,
    /// The compared methods.
    pub methods: Vec<LiveMethod>,
}

/// One method under arrivals over time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LiveMethod {
    /// Its name.
    pub name: String,
    /// Mean true score of the answers.
    pub score: f64,
    /// From arrival to the whole answer.
    pub latency_s: Spread,
    /// From arrival to the first token.
    pub ttft_s: Spread,
    /// Energy of all answers.
    pub energy_j: f64,
    /// Money of all answers.
    pub usd: f64,
    /// From arrival to departure from the router.
    pub hold_s: Spread,
    /// Realised J per answer under scales fixed for the run; lower is better.
    pub objective: f64,
    /// Answers.
    pub served: usize,
    /// Requests answered with an error.
    pub rejected: usize,
    /// Mean busy share of the engines.
    pub utilisation: f64,
    /// CPU time of one plan, milliseconds.
    pub decision_ms: f64,
}

impl From<LiveOutcome> for LiveMethod {
    fn from(outcome: LiveOutcome) -> Self {
        Self {
            name: outcome.name,
            score: outcome.score,
            latency_s: outcome.latency_s,
            ttft_s: outcome.ttft_s,
            energy_j: outcome.energy_j,
            usd: outcome.usd,
            hold_s: outcome.hold_s,
            objective: outcome.objective,
            served: outcome.served,
            rejected: outcome.rejected,
            utilisation: outcome.utilisation,
            decision_ms: outcome.decision.get() * 1e3,
        }
    }
}

/// The comparisons of one call: one, or several that differ in one setting.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Runs {
    /// Independent batches.
    Batch(Vec<BatchRun>),
    /// Arrivals over time.
    Live(Vec<LiveRun>),
}

/// Everything one call found out.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What it rests on.
    pub header: Header,
    /// The setting that differs between the runs, where there are several.
    pub sweep: Option<&'static str>,
    /// The comparisons.
    pub runs: Runs,
}

#[derive(Serialize)]
struct Single<'a, R> {
    #[serde(flatten)]
    header: &'a Header,
    #[serde(flatten)]
    run: &'a R,
}

#[derive(Serialize)]
struct Sweep<'a> {
    #[serde(flatten)]
    header: &'a Header,
    sweep: Option<&'static str>,
    runs: &'a Runs,
}

impl Report {
    /// One JSON object: header and `methods`, or header and `runs` where a setting was swept.
    ///
    /// # Errors
    /// None that is known of; the encoder's type has room for some.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let header = &self.header;
        let text = match &self.runs {
            Runs::Batch(runs) if runs.len() == 1 => {
                serde_json::to_string_pretty(&Single { header, run: &runs[0] })
            }
            Runs::Live(runs) if runs.len() == 1 => {
                serde_json::to_string_pretty(&Single { header, run: &runs[0] })
            }
            runs => serde_json::to_string_pretty(&Sweep { header, sweep: self.sweep, runs }),
        };
        text.map(|text| text + "\n")
    }

    /// One line per method and run, with a header line.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let rows = match &self.runs {
            Runs::Batch(runs) => batch_rows(runs),
            Runs::Live(runs) => live_rows(runs),
        };
        let mut text = String::new();
        for row in rows {
            let cells: Vec<String> = row.iter().map(|cell| csv_cell(cell)).collect();
            text.push_str(&cells.join(","));
            text.push('\n');
        }
        text
    }

    /// Tables to read, one per run, under a few lines about what they rest on.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut text = self.header.to_text();
        match &self.runs {
            Runs::Batch(runs) => runs.iter().for_each(|run| text.push_str(&batch_table(run))),
            Runs::Live(runs) => runs.iter().for_each(|run| text.push_str(&live_table(run))),
        }
        text
    }
}

impl Header {
    fn to_text(&self) -> String {
        let mut text = format!("scenario {}: {}; seed {}\n", self.scenario, self.title, self.seed);
        let rows = |rows: &Rows| match rows.rows {
            Some(n) => format!("{n} rows of {}", rows.source),
            None => rows.source.clone(),
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "trace    {}, {} lengths", rows(&self.trace), self.lengths);
        let _ = match &self.profile {
            Some(profile) => writeln!(text, "quality  {}, from {}", self.quality, rows(profile)),
            None => {
                writeln!(text, "quality  {}: the router knows scores and lengths beforehand", self.quality)
            }
        };
        let w = &self.weights;
        let _ = writeln!(
            text,
            "weights  quality {}, cost {}, energy {}, time {}",
            w.quality, w.cost, w.energy, w.time
        );
        for assumption in &self.assumptions {
            let _ = writeln!(text, "assumed  {assumption}");
        }
        text
    }
}

fn csv_cell(cell: &str) -> String {
    if cell.contains([',', '"', '\n']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
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

fn batch_rows(runs: &[BatchRun]) -> Vec<Vec<String>> {
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

fn live_rows(runs: &[LiveRun]) -> Vec<Vec<String>> {
    let names = "arrivals_per_s,load,requests,destinations,method,score,latency_mean_s,latency_p50_s,latency_p95_s,latency_p99_s,ttft_mean_s,hold_mean_s,energy_j,usd,objective,served,rejected,utilisation,decision_ms";
    let mut rows = vec![names.split(',').map(str::to_owned).collect()];
    for run in runs {
        rows.extend(run.methods.iter().map(|m| {
            let l = &m.latency_s;
            let of_run = [run.arrivals_per_s.to_string(), run.load.to_string(), run.requests.to_string()];
            let timed = [m.score, l.mean, l.p50, l.p95, l.p99, m.ttft_s.mean, m.hold_s.mean];
            let summed = [m.energy_j, m.usd, m.objective];
            let named = of_run.into_iter().chain([run.destinations.to_string(), m.name.clone()]);
            let measured = timed.iter().chain(&summed).map(ToString::to_string);
            let counted = [m.served.to_string(), m.rejected.to_string()];
            let rest = [m.utilisation.to_string(), m.decision_ms.to_string()];
            named.chain(measured).chain(counted).chain(rest).collect()
        }));
    }
    rows
}

fn batch_table(run: &BatchRun) -> String {
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

fn live_table(run: &LiveRun) -> String {
    let mut text = format!(
        "\n{:.1} arrivals a second ({:.0} % of capacity, {}), {} requests, {} destinations, {} windows of {} ms for joint policies\n",
        run.arrivals_per_s,
        run.load * 100.0,
        run.arrivals,
        run.requests,
        run.destinations,
        run.window,
        run.window_ms
    );
    let head = ["objective", "score", "latency s", "p50", "p95", "p99", "first token s", "hold s"];
    let head = head.into_iter().chain(["joules", "USD", "busy", "rejected", "decision ms"]);
    let body = run.methods.iter().map(|m| {
        let fixed = |x: f64, digits: usize| format!("{x:.digits$}");
        let l = &m.latency_s;
        let timed = [m.objective, m.score, l.mean, l.p50, l.p95, l.p99, m.ttft_s.mean, m.hold_s.mean];
        let rest = [
            fixed(m.energy_j, 0),
            fixed(m.usd, 4),
            format!("{:.0} %", m.utilisation * 100.0),
            m.rejected.to_string(),
            fixed(m.decision_ms, 3),
        ];
        (m.name.as_str(), timed.map(|x| fixed(x, 3)).into_iter().chain(rest).collect())
    });
    text.push_str(&aligned(head.collect(), body.collect()));
    text
}

/// A table with its first column to the left and the others to the right.
fn aligned(head: Vec<&str>, body: Vec<(&str, Vec<String>)>) -> String {
    let first = body.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let width =
        |i: usize| body.iter().map(|(_, cells)| cells[i].len()).chain([head[i].len()]).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = " ".repeat(first);
    for (title, width) in head.iter().zip(&widths) {
        let _ = write!(text, "  {title:>width$}");
    }
    for (name, cells) in &body {
        let _ = write!(text, "\n{name:first$}");
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(text, "  {cell:>width$}");
        }
    }
    text.push('\n');
    text
}

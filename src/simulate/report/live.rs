//! Arrivals over time as CSV rows and tables, one method each and at equal score.

use serde::Serialize;

use super::aligned;
use crate::simulate::live_outcome::{LiveOutcome, Spread};
use crate::simulate::matched::{Matched, MeanSweep};

/// One comparison under arrivals over time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LiveRun {
    /// Mean arrivals a second.
    pub arrivals_per_s: f64,
    /// The same as a share of what the saturated fleet serves.
    pub load: f64,
    /// `poisson`, `bursty`, `onoff`, or the file.
    pub arrivals: String,
    /// What served them: `slots` or `fifo`.
    pub engine: &'static str,
    /// Requests.
    pub requests: usize,
    /// M.
    pub destinations: usize,
    /// How the windows of joint policies close: `fixed` or `adaptive`.
    pub window: &'static str,
    /// Their length, milliseconds.
    pub window_ms: f64,
    /// Seeds that differences are taken over; `methods` are those of the first.
    pub seeds: usize,
    /// The compared methods.
    pub methods: Vec<LiveMethod>,
    /// Their comparison at equal score, where it was asked for.
    #[serde(flatten)]
    pub comparison: Option<Comparison>,
}

/// Methods at equal score.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// All but the reference.
    pub matched: Vec<Matched>,
    /// The curves they are read from, means over the seeds.
    pub sweeps: Vec<MeanSweep>,
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
    /// Energy of all answers by the scenario's model; `marginal`: what engines drew above idle.
    pub energy_j: f64,
    /// All that nodes drew, idle power included.
    pub energy_with_idle_j: f64,
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
            energy_with_idle_j: outcome.energy_with_idle_j,
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

/// One line per method and run; where methods were compared at equal score, that comparison instead.
pub(super) fn rows(runs: &[LiveRun]) -> Vec<Vec<String>> {
    if runs.iter().any(|run| run.comparison.is_some()) {
        return matched_rows(runs);
    }
    let names = "arrivals_per_s,load,requests,destinations,method,score,latency_mean_s,latency_p50_s,latency_p95_s,latency_p99_s,ttft_mean_s,hold_mean_s,energy_j,energy_with_idle_j,usd,objective,served,rejected,utilisation,decision_ms";
    let mut rows = vec![names.split(',').map(str::to_owned).collect()];
    for run in runs {
        rows.extend(run.methods.iter().map(|m| {
            let l = &m.latency_s;
            let of_run = [run.arrivals_per_s.to_string(), run.load.to_string(), run.requests.to_string()];
            let timed = [m.score, l.mean, l.p50, l.p95, l.p99, m.ttft_s.mean, m.hold_s.mean];
            let summed = [m.energy_j, m.energy_with_idle_j, m.usd, m.objective];
            let named = of_run.into_iter().chain([run.destinations.to_string(), m.name.clone()]);
            let measured = timed.iter().chain(&summed).map(ToString::to_string);
            let counted = [m.served.to_string(), m.rejected.to_string()];
            let rest = [m.utilisation.to_string(), m.decision_ms.to_string()];
            named.chain(measured).chain(counted).chain(rest).collect()
        }));
    }
    rows
}

fn matched_rows(runs: &[LiveRun]) -> Vec<Vec<String>> {
    let of_run = ["arrivals_per_s", "load", "requests", "seeds", "method", "reference", "at_score"];
    let figures = ["latency_pct", "p95_pct", "p99_pct", "score_points", "energy_pct"];
    let with_ends =
        figures.iter().flat_map(|name| [(*name).to_owned(), format!("{name}_lo"), format!("{name}_hi")]);
    let mut rows = vec![of_run.map(str::to_owned).into_iter().chain(with_ends).collect::<Vec<_>>()];
    let cell = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    for run in runs {
        for m in run.comparison.iter().flat_map(|comparison| &comparison.matched) {
            let sizes =
                [run.requests.to_string(), run.seeds.to_string(), m.method.clone(), m.reference.clone()];
            let named = [run.arrivals_per_s.to_string(), run.load.to_string()].into_iter().chain(sizes);
            let figures = figures_of(m).into_iter().flat_map(|(value, interval)| {
                let ends = interval.map_or([None, None], |ends| ends.map(Some));
                [cell(Some(value)), cell(ends[0]), cell(ends[1])]
            });
            rows.push(named.chain([m.at_score.to_string()]).chain(figures).collect());
        }
    }
    rows
}

/// Latency, its two percentiles, score and energy, each with its interval.
fn figures_of(m: &Matched) -> [(f64, Option<[f64; 2]>); 5] {
    [
        (m.latency_pct, m.latency_ci),
        (m.p95_pct, m.p95_ci),
        (m.p99_pct, m.p99_ci),
        (m.score_points, m.score_ci),
        (m.energy_pct, m.energy_ci),
    ]
}

pub(super) fn table(run: &LiveRun) -> String {
    let mut text = format!(
        "\n{:.2} arrivals a second ({:.0} % of capacity, {}), {} requests, {} destinations with {} engines, {} windows of {} ms for joint policies\n",
        run.arrivals_per_s,
        run.load * 100.0,
        run.arrivals,
        run.requests,
        run.destinations,
        run.engine,
        run.window,
        run.window_ms
    );
    let head = ["objective", "score", "latency s", "p50", "p95", "p99", "first token s", "hold s"];
    let head = head.into_iter().chain(["joules", "with idle", "USD", "busy", "rejected", "decision ms"]);
    let body = run.methods.iter().map(|m| {
        let fixed = |x: f64, digits: usize| format!("{x:.digits$}");
        let l = &m.latency_s;
        let timed = [m.objective, m.score, l.mean, l.p50, l.p95, l.p99, m.ttft_s.mean, m.hold_s.mean];
        let rest = [
            fixed(m.energy_j, 0),
            fixed(m.energy_with_idle_j, 0),
            fixed(m.usd, 4),
            format!("{:.0} %", m.utilisation * 100.0),
            m.rejected.to_string(),
            fixed(m.decision_ms, 3),
        ];
        (m.name.as_str(), timed.map(|x| fixed(x, 3)).into_iter().chain(rest).collect())
    });
    text.push_str(&aligned(head.collect(), body.collect()));
    if let Some(comparison) = &run.comparison {
        text.push_str(&matched_table(run, comparison));
    }
    text
}

fn matched_table(run: &LiveRun, comparison: &Comparison) -> String {
    let Some(first) = comparison.matched.first() else { return String::new() };
    let head = ["latency %", "p95 %", "p99 %", "score points", "joules %", "at score"];
    let body = comparison.matched.iter().map(|m| {
        let figures = figures_of(m).into_iter().map(|(value, interval)| with_interval(value, interval));
        (m.method.as_str(), figures.chain([format!("{:.3}", m.at_score)]).collect())
    });
    format!(
        "against {} at equal true score (score points: at equal latency), {} seeds, 95 % intervals\n{}",
        first.reference,
        run.seeds,
        aligned(head.to_vec(), body.collect())
    )
}

fn with_interval(value: f64, interval: Option<[f64; 2]>) -> String {
    match interval {
        None => format!("{value:+.1}"),
        Some([low, high]) => format!("{value:+.1} [{low:+.1}, {high:+.1}]"),
    }
}

/// Latency at equal score of all runs side by side; empty unless there are several.
pub(super) fn overview(runs: &[LiveRun]) -> String {
    let compared: Vec<(&LiveRun, &Comparison)> =
        runs.iter().filter_map(|run| Some((run, run.comparison.as_ref()?))).collect();
    let (Some((_, first)), true) = (compared.first(), compared.len() > 1) else { return String::new() };
    let heads: Vec<String> =
        compared.iter().map(|(run, _)| format!("{:.0} % load", run.load * 100.0)).collect();
    let body = first.matched.iter().enumerate().map(|(i, m)| {
        let cell = |(_, comparison): &(&LiveRun, &Comparison)| {
            let of_run = comparison.matched.get(i);
            of_run.map_or(String::new(), |m| with_interval(m.latency_pct, m.latency_ci))
        };
        (m.method.as_str(), compared.iter().map(cell).collect())
    });
    let table = aligned(heads.iter().map(String::as_str).collect(), body.collect());
    let reference = first.matched.first().map_or("", |m| m.reference.as_str());
    format!("\nmean latency at equal true score, % of {reference}'s\n{table}")
}

//! The results: a table, a chart, and everything as JSON.

use cema_router::calibrate::fit::{median, quantile};
use cema_router::plot::{Content, Figure, Line, Marks, Panel, XAxis};
use serde_json::json;

use crate::level::{Backlog, Outcome, Record};
use crate::pilot::Pilot;

/// Requests in a row whose errors are told together: how fast predictions get better.
const BLOCK: usize = 25;

pub(crate) struct Report<'a> {
    pub(crate) label: &'a str,
    pub(crate) capacity_per_s: f64,
    pub(crate) pilot: Pilot,
    pub(crate) seed: u64,
    pub(crate) levels: Vec<Outcome>,
}

/// Errors of some predictions.
struct Errors {
    median_pct: f64,
    p90_pct: f64,
    bias_pct: f64,
}

impl Errors {
    fn of(records: &[Record]) -> Option<Self> {
        let signed: Vec<f64> = records.iter().map(|record| 100.0 * record.error()).collect();
        let absolute: Vec<f64> = signed.iter().map(|error| error.abs()).collect();
        Some(Self {
            median_pct: median(&absolute)?,
            p90_pct: quantile(&absolute, 0.9)?,
            bias_pct: median(&signed)?,
        })
    }
}

/// Σ |belief − truth| / Σ truth, and Σ (belief − truth) / Σ truth, in percent.
fn backlog_errors(points: impl Iterator<Item = [f64; 3]>) -> Option<(f64, f64)> {
    let (mut absolute, mut signed, mut truth) = (0.0, 0.0, 0.0);
    for [_, believed, true_s] in points {
        absolute += (believed - true_s).abs();
        signed += believed - true_s;
        truth += true_s;
    }
    (truth > 0.0).then(|| (100.0 * absolute / truth, 100.0 * signed / truth))
}

impl Report<'_> {
    /// Markdown.
    pub(crate) fn table(&self) -> String {
        let mut text = format!(
            "{}: capacity {:.3} requests/s at {:.1} prompt and {:.1} completion tokens, seed {}\n\n",
            self.label,
            self.capacity_per_s,
            self.pilot.prompt_tokens,
            self.pilot.completion_tokens,
            self.seed
        );
        text.push_str(LOADS_HEAD);
        text.extend(self.levels.iter().filter_map(load_row));
        text.push_str(SERVERS_HEAD);
        text.extend(self.levels.iter().flat_map(server_rows));
        text.push_str(BLOCKS_HEAD);
        text.extend(self.levels.iter().flat_map(block_rows));
        text.extend(
            self.levels
                .iter()
                .flat_map(|level| &level.failures)
                .map(|failure| format!("\nfailed: {failure}\n")),
        );
        text
    }

    pub(crate) fn json(&self) -> String {
        let summary: Vec<_> = self
            .levels
            .iter()
            .map(|level| {
                let errors = Errors::of(&level.records);
                let points = level.backlogs.iter().flat_map(|backlog| backlog.points.iter().copied());
                let backlog = backlog_errors(points);
                json!({
                    "load": level.load,
                    "median_abs_error_pct": errors.as_ref().map(|e| e.median_pct),
                    "p90_abs_error_pct": errors.as_ref().map(|e| e.p90_pct),
                    "bias_pct": errors.as_ref().map(|e| e.bias_pct),
                    "backlog_error_pct": backlog.map(|(error, _)| error),
                    "backlog_bias_pct": backlog.map(|(_, bias)| bias),
                })
            })
            .collect();
        let report = json!({
            "label": self.label,
            "seed": self.seed,
            "capacity_per_s": self.capacity_per_s,
            "pilot": self.pilot,
            "summary": summary,
            "levels": self.levels,
        });
        report.to_string() + "\n"
    }

    /// Predicted over actual, and the backlogs over time, a row for each load.
    pub(crate) fn chart(&self) -> String {
        let rows = self.levels.iter().map(|level| {
            let mut panels = vec![prediction_panel(level)];
            panels.extend(backlog_panel(level));
            panels
        });
        let loads: Vec<String> =
            self.levels.iter().map(|level| format!("{:.0} %", 100.0 * level.load)).collect();
        let figure = Figure {
            title: format!("Predicted and actual ({})", self.label),
            note: format!(
                "a row for each load: {} of {:.2} requests/s",
                loads.join(", "),
                self.capacity_per_s
            ),
            rows: rows.collect(),
            legend: vec![
                ("the router".to_owned(), BELIEVED),
                ("left: predicted = actual; right: the truth".to_owned(), TRUE),
            ],
            width: 1_000.0,
        };
        figure.draw()
    }
}

const BELIEVED: &str = "#0072B2";
const TRUE: &str = "#D55E00";

fn prediction_panel(level: &Outcome) -> Panel {
    let points: Vec<[f64; 3]> = level.records.iter().map(|r| [r.actual_s, r.predicted_s, 0.0]).collect();
    let longest = points.iter().map(|[actual, ..]| *actual).fold(0.0, f64::max);
    let lines = vec![
        Line { points, colour: BELIEVED, marks: Marks::Points },
        Line { points: vec![[0.0; 3], [longest, longest, 0.0]], colour: TRUE, marks: Marks::Stroke },
    ];
    let content = Content::Lines { lines, x_label: "actual seconds", x_axis: XAxis::FromZero };
    Panel { title: "Predicted seconds", content }
}

/// Of the server with the most work.
fn backlog_panel(level: &Outcome) -> Option<Panel> {
    let work = |backlog: &&Backlog| backlog.points.iter().map(|[.., truth]| *truth).sum::<f64>();
    let busiest =
        level.backlogs.iter().max_by(|a, b| work(a).total_cmp(&work(b))).filter(|b| !b.points.is_empty())?;
    let line = |of: fn(&[f64; 3]) -> f64, colour| Line {
        points: busiest.points.iter().map(|point| [point[0], of(point), 0.0]).collect(),
        colour,
        marks: Marks::Stroke,
    };
    let lines = vec![line(|point| point[1], BELIEVED), line(|point| point[2], TRUE)];
    let content = Content::Lines { lines, x_label: "seconds", x_axis: XAxis::FromZero };
    Some(Panel { title: "Outstanding seconds of the busiest server", content })
}

const LOADS_HEAD: &str = "\
| load | requests | failed | median abs. error | 90 % within | bias | backlog error | bias | at its limit | actual p50 s | held p50 s |
|---|---|---|---|---|---|---|---|---|---|---|
";
const SERVERS_HEAD: &str = "
| load | destination | requests | median abs. error | bias | backlog error | bias |
|---|---|---|---|---|---|---|
";
const BLOCKS_HEAD: &str = "
Median absolute error by order of arrival:

| load | requests | error |
|---|---|---|
";

fn load_row(level: &Outcome) -> Option<String> {
    let errors = Errors::of(&level.records)?;
    let points = level.backlogs.iter().flat_map(|backlog| backlog.points.iter().copied());
    let capped = level.records.iter().filter(|r| r.completion_tokens >= u64::from(r.max_tokens)).count();
    let middle = |of: fn(&Record) -> f64| median(&level.records.iter().map(of).collect::<Vec<_>>());
    Some(format!(
        "| {:.0} % | {} | {} | {:.1} % | {:.1} % | {:+.1} % | {} | {:.0} % | {:.2} | {:.2} |\n",
        100.0 * level.load,
        level.records.len(),
        level.failures.len(),
        errors.median_pct,
        errors.p90_pct,
        errors.bias_pct,
        backlog_cells(points),
        100.0 * capped as f64 / level.records.len() as f64,
        middle(|record| record.actual_s)?,
        middle(|record| record.window_s)?,
    ))
}

fn backlog_cells(points: impl Iterator<Item = [f64; 3]>) -> String {
    backlog_errors(points).map_or("- | -".to_owned(), |(error, bias)| format!("{error:.1} % | {bias:+.1} %"))
}

fn server_rows(level: &Outcome) -> impl Iterator<Item = String> {
    level.backlogs.iter().map(|backlog| {
        let is_here = |record: &&Record| record.destination == backlog.destination;
        let here: Vec<Record> = level.records.iter().filter(is_here).cloned().collect();
        let errors = Errors::of(&here).map_or("- | -".to_owned(), |errors| {
            format!("{:.1} % | {:+.1} %", errors.median_pct, errors.bias_pct)
        });
        let backlogs = backlog_cells(backlog.points.iter().copied());
        let load = 100.0 * level.load;
        format!("| {load:.0} % | {} | {} | {errors} | {backlogs} |\n", backlog.destination, here.len())
    })
}

fn block_rows(level: &Outcome) -> impl Iterator<Item = String> {
    level.records.chunks(BLOCK).enumerate().filter_map(|(n, block)| {
        let (first, errors) = (n * BLOCK + 1, Errors::of(block)?);
        let last = first + block.len() - 1;
        Some(format!("| {:.0} % | {first} to {last} | {:.1} % |\n", 100.0 * level.load, errors.median_pct))
    })
}

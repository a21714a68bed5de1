//! A chart of each destination: time to first token over prompt length, tokens per second over concurrency.

use super::report::Row;
use crate::plot::{Content, Figure, Line, Marks, Panel, XAxis};

/// A drawn chart.
pub(super) struct Chart {
    pub(super) file_name: String,
    pub(super) svg: String,
}

const MEASURED: &str = "#0072B2";
const FITTED: &str = "#D55E00";
const KNEE: &str = "#009E73";

/// One chart for each destination with anything to draw.
pub(super) fn throughput(rows: &[Row<'_>]) -> Vec<Chart> {
    rows.iter().filter_map(chart).collect()
}

fn chart(row: &Row<'_>) -> Option<Chart> {
    let panels: Vec<Panel> = [prefill_panel(row), ladder_panel(row)].into_iter().flatten().collect();
    if panels.is_empty() {
        return None;
    }
    let legend = [("measured", MEASURED), ("fitted line", FITTED), ("recommended max_concurrency", KNEE)];
    let figure = Figure {
        title: row.destination.id.to_string(),
        note: note(row),
        rows: vec![panels],
        legend: legend.map(|(name, colour)| (name.to_owned(), colour)).to_vec(),
        width: 900.0,
    };
    let name: String = row
        .destination
        .id
        .as_str()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' })
        .collect();
    Some(Chart { file_name: format!("throughput-{name}.svg"), svg: figure.draw() })
}

fn note(row: &Row<'_>) -> String {
    let figures = row.figures;
    let parts = [
        figures.prefill.map(|fit| format!("prefill {:.1} tokens/s", fit.speed.get())),
        figures.decode.map(|decode| format!("decode {:.1} tokens/s alone", decode.median)),
        figures
            .ladder
            .map(|fit| format!("{:.2} times that at {} at once", fit.batch_speedup, fit.max_concurrency)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn prefill_panel(row: &Row<'_>) -> Option<Panel> {
    let points: Vec<[f64; 3]> = row
        .measured
        .singles
        .iter()
        .map(|sample| [sample.prompt_tokens as f64, sample.ttft().get(), 0.0])
        .collect();
    if points.is_empty() {
        return None;
    }
    let longest = points.iter().map(|[tokens, ..]| *tokens).fold(0.0, f64::max);
    let mut lines = vec![Line { points, colour: MEASURED, marks: Marks::Points }];
    lines.extend(row.figures.prefill.map(|fit| Line {
        points: [0.0, longest].map(|tokens| [tokens, fit.ttft(tokens).get(), 0.0]).to_vec(),
        colour: FITTED,
        marks: Marks::Stroke,
    }));
    let content = Content::Lines { lines, x_label: "prompt tokens", x_axis: XAxis::FromZero };
    Some(Panel { title: "Time to first token, alone, seconds", content })
}

fn ladder_panel(row: &Row<'_>) -> Option<Panel> {
    let rungs = row.measured.rungs.iter().filter(|rung| rung.failures == 0);
    let points: Vec<[f64; 3]> =
        rungs.map(|rung| [f64::from(rung.concurrency), rung.aggregate().get(), 0.0]).collect();
    if points.is_empty() {
        return None;
    }
    let mut lines = Vec::new();
    if let Some(fit) = row.figures.ladder {
        let at = [f64::from(fit.max_concurrency), fit.batch.get(), 0.0];
        lines.push(Line { points: vec![at], colour: KNEE, marks: Marks::StrongLine });
    }
    lines.push(Line { points, colour: MEASURED, marks: Marks::Line });
    let content = Content::Lines { lines, x_label: "requests at once", x_axis: XAxis::EachLog };
    Some(Panel { title: "All together, completion tokens per second", content })
}

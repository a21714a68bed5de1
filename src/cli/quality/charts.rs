//! Charts of what predictions are worth: calibration, cost against quality, error against profile size.

use crate::plot::{Content, Figure, Line, Marks, Panel, XAxis};
use crate::profiler::quality::evaluation::JudgedPrompt;
use crate::profiler::quality::evaluation::calibration;
use crate::profiler::quality::evaluation::cost_quality::CostSweep;
use crate::profiler::quality::evaluation::learning::LearningPoint;

/// A drawn chart.
pub(super) struct Chart {
    pub(super) file_name: &'static str,
    pub(super) svg: String,
}

const PREDICTED: &str = "#0072B2";
const IDEAL: &str = "#999999";
const SINGLES: &str = "#D55E00";

/// Mean score over mean q̂ in bins of q̂.
pub(super) fn calibration_chart(rows: &[JudgedPrompt]) -> Option<Chart> {
    let bins = calibration(rows);
    let points: Vec<[f64; 3]> = bins.iter().map(|bin| [bin.predicted, bin.actual, bin.half]).collect();
    let last = points.last()?[0];
    let lines = vec![
        Line { points, colour: PREDICTED, marks: Marks::StrongLine },
        Line { points: vec![[0.0, 0.0, 0.0], [last, last, 0.0]], colour: IDEAL, marks: Marks::Stroke },
    ];
    let content = Content::Lines { lines, x_label: "predicted quality", x_axis: XAxis::FromZero };
    Some(draw(
        "quality-calibration.svg",
        "Calibration of predicted quality",
        format!("{} prompts; band: 95 % interval of the mean score", rows.len()),
        Panel { title: "Mean score", content },
        &[("predictions in bins of 0.1", PREDICTED), ("as predicted", IDEAL)],
    ))
}

/// Mean score over mean cost along λ, with each model alone.
pub(super) fn cost_chart(rows: &[JudgedPrompt], models: &[String]) -> Option<Chart> {
    let sweep = CostSweep::new(rows, models.len())?;
    let usd_per_thousand = |[cost, score]: [f64; 2]| [1e3 * cost, score, 0.0];
    let curve: Vec<[f64; 3]> = sweep.curve(None).into_iter().map(usd_per_thousand).collect();
    let singles = sweep.singles(None).into_iter().map(usd_per_thousand).collect();
    let lines = vec![
        Line { points: curve, colour: PREDICTED, marks: Marks::StrongLine },
        Line { points: singles, colour: SINGLES, marks: Marks::Points },
    ];
    let content = Content::Lines { lines, x_label: "USD per thousand requests", x_axis: XAxis::FromZero };
    Some(draw(
        "quality-cost.svg",
        "Cost and quality",
        format!("{} prompts; area under the curve {:.3}", sweep.rows(), sweep.aiq(None)),
        Panel { title: "Mean score", content },
        &[("highest q\u{302} - \u{3bb} cost", PREDICTED), ("one model for everything", SINGLES)],
    ))
}

/// Mean squared error over the number of profiled prompts.
pub(super) fn learning_chart(curve: &[LearningPoint]) -> Option<Chart> {
    if curve.is_empty() {
        return None;
    }
    let points = |y: fn(&LearningPoint) -> [f64; 2]| -> Vec<[f64; 3]> {
        curve
            .iter()
            .map(|point| (point, y(point)))
            .map(|(point, [y, half])| [point.rows as f64, y, half])
            .collect()
    };
    let lines = vec![
        Line { points: points(|p| [p.mse, p.half]), colour: PREDICTED, marks: Marks::StrongLine },
        Line { points: points(|p| [p.mse_global_mean, 0.0]), colour: IDEAL, marks: Marks::Line },
    ];
    let content = Content::Lines { lines, x_label: "profiled prompts", x_axis: XAxis::EachLog };
    Some(draw(
        "quality-learning.svg",
        "Learning curve",
        "the same prompts predicted from ever more of the others; band: 95 % interval".to_owned(),
        Panel { title: "Mean squared error", content },
        &[("predictions", PREDICTED), ("each model's mean", IDEAL)],
    ))
}

fn draw(
    file_name: &'static str,
    title: &str,
    note: String,
    panel: Panel,
    legend: &[(&str, &'static str)],
) -> Chart {
    let figure = Figure {
        title: title.to_owned(),
        note,
        rows: vec![vec![panel]],
        legend: legend.iter().map(|(name, colour)| ((*name).to_owned(), *colour)).collect(),
        width: 640.0,
    };
    Chart { file_name, svg: figure.draw() }
}

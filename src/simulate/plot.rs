//! Charts of a report, as SVG: the figures of the paper's section V that its runs allow, and latency over load.

use crate::plot::{Bar, Content, Figure, Group, Line, Marks, Panel, XAxis};
use crate::simulate::batches::{Judgement, Terms};
use crate::simulate::matched::{MeanSweep, SweepPoint};
use crate::simulate::methods::{PER_REQUEST, QUALITY_ONLY};
use crate::simulate::report::{BatchMethod, BatchRun, Header, LiveMethod, LiveRun, Report, Runs};

/// A drawn chart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chart {
    /// What to call its file.
    pub file_name: String,
    /// The drawing.
    pub svg: String,
}

/// Every chart that the report has the figures for.
#[must_use]
pub fn charts(report: &Report) -> Vec<Chart> {
    match &report.runs {
        Runs::Batch(runs) if runs.len() == 1 => batch_charts(&report.header, &runs[0]),
        Runs::Batch(runs) => vec![scaling_chart(report, runs)],
        Runs::Live(runs) => {
            let whole = match runs.as_slice() {
                [run] => live_chart(&report.header, run),
                runs => load_chart(&report.header, runs),
            };
            let compared = runs.iter().filter_map(|run| Some((run, run.comparison.as_ref()?)));
            let matched =
                compared.map(|(run, comparison)| matched_chart(&report.header, run, &comparison.sweeps));
            std::iter::once(whole).chain(matched).collect()
        }
    }
}

/// Colours that colour-blind readers can tell apart (Okabe and Ito), the same for a method in every chart.
fn colour(method: &str) -> &'static str {
    match method.split('(').next().unwrap_or(method) {
        "memetic" => "#0072B2",
        "memetic_fixed" => "#00436A",
        "memetic_paper" => "#56B4E9",
        "memetic_paper_fixed" => "#9BD3F2",
        "greedy" => "#D55E00",
        "greedy_plain" => "#8C3B00",
        "greedy_plain_early" => "#C79A7A",
        "uniroute" => "#009E73",
        "round_robin" => "#999999",
        "least_loaded" => "#CC79A7",
        "cloud_only" => "#E69F00",
        "edge_only" => "#B5A900",
        QUALITY_ONLY => "#7A4FA3",
        PER_REQUEST => "#444444",
        _ => "#222222",
    }
}

fn marks(method: &str) -> Marks {
    if matches!(method, "memetic" | "greedy") { Marks::StrongLine } else { Marks::Line }
}

fn note(header: &Header, about: &str) -> String {
    format!(
        "{}; {about}; {} quality, {} lengths, seed {}",
        header.scenario, header.quality, header.lengths, header.seed
    )
}

fn batch_note(header: &Header, run: &BatchRun) -> String {
    let about =
        format!("{} requests × {} destinations, {} batches", run.batch_size, run.destinations, run.batches);
    note(header, &about)
}

fn batch_charts(header: &Header, run: &BatchRun) -> Vec<Chart> {
    let mut charts = vec![
        Chart { file_name: "objective.svg".to_owned(), svg: objective_figure(header, run).draw() },
        Chart { file_name: "raw-metrics.svg".to_owned(), svg: raw_figure(header, run).draw() },
    ];
    let find = |name: &str| run.methods.iter().find(|method| method.name == name);
    if let (Some(quality_only), Some(memetic)) = (find(QUALITY_ONLY), find("memetic")) {
        let svg = quality_only_figure(header, run, [quality_only, memetic]).draw();
        charts.push(Chart { file_name: "quality-only.svg".to_owned(), svg });
    }
    if find(PER_REQUEST).is_some() {
        charts.push(Chart {
            file_name: "per-request.svg".to_owned(),
            svg: per_request_figure(header, run).draw(),
        });
    }
    charts
}

/// Two bars a method: by the router's predictions, and by what really was.
fn bars_of<'a>(
    methods: impl Iterator<Item = &'a BatchMethod>,
    value: impl Fn(&Judgement) -> (f64, f64),
) -> Content {
    let group = |method: &BatchMethod| {
        let bar = |judged: &Judgement, colour| {
            let (value, half) = value(judged);
            Bar { value, half, colour }
        };
        let bars = vec![bar(&method.predicted, colour(&method.name)), bar(&method.truth, TRUTH_COLOUR)];
        Group { label: method.name.clone(), bars }
    };
    Content::Bars(methods.map(group).collect())
}

const TRUTH_COLOUR: &str = "#C4C4C4";

fn judgement_legend() -> Vec<(String, &'static str)> {
    let entries =
        [("coloured: by the router's predictions", "#0072B2"), ("grey: by what really was", TRUTH_COLOUR)];
    entries.map(|(name, colour)| (name.to_owned(), colour)).to_vec()
}

/// Fig. 4.
fn objective_figure(header: &Header, run: &BatchRun) -> Figure {
    let content = bars_of(run.methods.iter(), |j| (j.objective, j.objective_ci95));
    let title = "J: weighted terms, each scaled over these methods (lower is better, 95 % CI)";
    Figure {
        title: "Weighted objective".to_owned(),
        note: batch_note(header, run),
        rows: vec![vec![Panel { title, content }]],
        legend: judgement_legend(),
        width: 720.0,
    }
}

/// Fig. 5.
fn raw_figure(header: &Header, run: &BatchRun) -> Figure {
    let panel = |title, value: fn(&Terms) -> f64| Panel {
        title,
        content: bars_of(run.methods.iter(), |j| (value(&j.raw), 0.0)),
    };
    Figure {
        title: "Raw metrics of a batch".to_owned(),
        note: batch_note(header, run),
        rows: vec![
            vec![panel("Quality loss", |raw| raw.quality), panel("Money, USD", |raw| raw.cost)],
            vec![
                panel("Energy, joules", |raw| raw.energy),
                panel("Completion time, seconds", |raw| raw.time),
            ],
        ],
        legend: judgement_legend(),
        width: 900.0,
    }
}

/// A term's name and value.
type NamedTerm = (&'static str, fn(&Terms) -> f64);

/// Fig. 1.
fn quality_only_figure(header: &Header, run: &BatchRun, methods: [&BatchMethod; 2]) -> Figure {
    let terms: [NamedTerm; 4] = [
        ("quality loss", |raw| raw.quality),
        ("money", |raw| raw.cost),
        ("energy", |raw| raw.energy),
        ("completion time", |raw| raw.time),
    ];
    let group = |(label, value): &NamedTerm| {
        let max = methods.iter().map(|m| value(&m.truth.raw)).fold(f64::MIN_POSITIVE, f64::max);
        let bar =
            |m: &&BatchMethod| Bar { value: value(&m.truth.raw) / max, half: 0.0, colour: colour(&m.name) };
        Group { label: (*label).to_owned(), bars: methods.iter().map(bar).collect() }
    };
    let content = Content::Bars(terms.iter().map(group).collect());
    let names = ["quality alone", "all four metrics (memetic)"];
    Figure {
        title: "Routing by quality alone and by four metrics".to_owned(),
        note: batch_note(header, run),
        rows: vec![vec![Panel {
            title: "What really was, as a share of the larger value (lower is better)",
            content,
        }]],
        legend: names.iter().zip(methods).map(|(name, m)| ((*name).to_owned(), colour(&m.name))).collect(),
        width: 720.0,
    }
}

/// Fig. 2, with the per-request router that sees the load.
fn per_request_figure(header: &Header, run: &BatchRun) -> Figure {
    let shown = [PER_REQUEST, "greedy", "memetic_paper", "memetic"];
    let methods = || shown.iter().filter_map(|name| run.methods.iter().find(|method| method.name == *name));
    let panel =
        |title, value: fn(&Judgement) -> (f64, f64)| Panel { title, content: bars_of(methods(), value) };
    Figure {
        title: "Each request alone, or the batch together".to_owned(),
        note: batch_note(header, run),
        rows: vec![
            vec![panel("Completion time of the batch, seconds (lower is better)", |j| (j.raw.time, 0.0))],
            vec![panel("J (lower is better, 95 % CI)", |j| (j.objective, j.objective_ci95))],
        ],
        legend: judgement_legend(),
        width: 720.0,
    }
}

/// Fig. 6 and 7.
fn scaling_chart(report: &Report, runs: &[BatchRun]) -> Chart {
    let is_by_destinations = report.sweep == Some("copies");
    let x = |run: &BatchRun| (if is_by_destinations { run.destinations } else { run.batch_size }) as f64;
    let x_axis = if is_by_destinations { XAxis::EachLog } else { XAxis::Each };
    let x_label = if is_by_destinations { "destinations M" } else { "requests in a batch R" };
    let panel = |title, value: fn(&BatchMethod) -> (f64, f64)| {
        let line = |name: &str| {
            let points = runs.iter().flat_map(|run| {
                let method = run.methods.iter().find(|method| method.name == name);
                method.map(|method| [x(run), value(method).0, value(method).1])
            });
            Line { points: points.collect(), colour: colour(name), marks: marks(name) }
        };
        let lines = runs[0].methods.iter().map(|method| line(&method.name)).collect();
        Panel { title, content: Content::Lines { lines, x_label, x_axis } }
    };
    let figure = Figure {
        title: if is_by_destinations { "More destinations" } else { "Larger batches" }.to_owned(),
        note: note(&report.header, &format!("{} batches each, 95 % CI", runs[0].batches)),
        rows: vec![vec![
            panel("J (lower is better)", |m| (m.predicted.objective, m.predicted.objective_ci95)),
            panel("Decision, CPU milliseconds", |m| (m.decision_ms, m.decision_ms_ci95)),
        ]],
        legend: legend(runs[0].methods.iter().map(|method| method.name.as_str())),
        width: 900.0,
    };
    let file_name = if is_by_destinations { "destinations.svg" } else { "batch-size.svg" };
    Chart { file_name: file_name.to_owned(), svg: figure.draw() }
}

fn legend<'a>(names: impl Iterator<Item = &'a str>) -> Vec<(String, &'static str)> {
    names.map(|name| (name.to_owned(), colour(name))).collect()
}

fn live_chart(header: &Header, run: &LiveRun) -> Chart {
    let panel = |title, value: fn(&LiveMethod) -> f64| {
        let group = |method: &LiveMethod| Group {
            label: method.name.clone(),
            bars: vec![Bar { value: value(method), half: 0.0, colour: colour(&method.name) }],
        };
        Panel { title, content: Content::Bars(run.methods.iter().map(group).collect()) }
    };
    let figure = Figure {
        title: format!("{:.1} arrivals a second ({:.0} % load)", run.arrivals_per_s, run.load * 100.0),
        note: note(header, &format!("{} requests, {} destinations", run.requests, run.destinations)),
        rows: vec![
            vec![
                panel("Realised J per answer", |m| m.objective),
                panel("Mean true score (higher is better)", |m| m.score),
            ],
            vec![
                panel("Latency, mean, seconds", |m| m.latency_s.mean),
                panel("Latency, 99th percentile, seconds", |m| m.latency_s.p99),
            ],
        ],
        legend: Vec::new(),
        width: 900.0,
    };
    Chart { file_name: "live.svg".to_owned(), svg: figure.draw() }
}

/// Latency and energy over score, a line per method through its quality weights.
fn matched_chart(header: &Header, run: &LiveRun, sweeps: &[MeanSweep]) -> Chart {
    let panel = |title, value: fn(&SweepPoint) -> f64| {
        let line = |sweep: &MeanSweep| Line {
            points: sweep.points.iter().map(|point| [point.score, value(point), 0.0]).collect(),
            colour: colour(&sweep.method),
            marks: if sweep.points.len() == 1 { Marks::Points } else { marks(&sweep.method) },
        };
        let lines = sweeps.iter().map(line).collect();
        Panel { title, content: Content::Lines { lines, x_label: "mean true score", x_axis: XAxis::Round } }
    };
    let figure = Figure {
        title: format!("Latency over score at {:.0} % load", run.load * 100.0),
        note: note(header, &format!("{} requests, mean of {} seeds", run.requests, run.seeds)),
        rows: vec![
            vec![panel("Latency, mean, seconds", |p| p.latency_s)],
            vec![
                panel("Latency, 99th percentile, seconds", |p| p.p99_s),
                panel("Energy per request, joules", |p| p.energy_j),
            ],
        ],
        legend: legend(sweeps.iter().map(|sweep| sweep.method.as_str())),
        width: 900.0,
    };
    Chart { file_name: format!("matched-{:.0}.svg", run.load * 100.0), svg: figure.draw() }
}

fn load_chart(header: &Header, runs: &[LiveRun]) -> Chart {
    let panel = |title, value: fn(&LiveMethod) -> f64| {
        let line = |name: &str| {
            let points = runs.iter().flat_map(|run| {
                let method = run.methods.iter().find(|method| method.name == name);
                method.map(|method| [run.arrivals_per_s, value(method), 0.0])
            });
            Line { points: points.collect(), colour: colour(name), marks: marks(name) }
        };
        let lines = runs[0].methods.iter().map(|method| line(&method.name)).collect();
        Panel { title, content: Content::Lines { lines, x_label: "arrivals a second", x_axis: XAxis::Each } }
    };
    let figure = Figure {
        title: "Latency and realised J over load".to_owned(),
        note: note(
            header,
            &format!("{} requests each, {} destinations", runs[0].requests, runs[0].destinations),
        ),
        rows: vec![
            vec![
                panel("Latency, mean, seconds", |m| m.latency_s.mean),
                panel("Latency, 99th percentile, seconds", |m| m.latency_s.p99),
            ],
            vec![
                panel("Realised J per answer (lower is better)", |m| m.objective),
                panel("Mean true score (higher is better)", |m| m.score),
            ],
        ],
        legend: legend(runs[0].methods.iter().map(|method| method.name.as_str())),
        width: 900.0,
    };
    Chart { file_name: "load.svg".to_owned(), svg: figure.draw() }
}

//! Results as JSON, CSV and plain tables.

mod batch;
mod live;

pub use batch::{BatchMethod, BatchRun};
pub use live::{Comparison, LiveMethod, LiveRun};

use std::fmt::Write as _;

use serde::Serialize;

use crate::domain::Weights;

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
            Runs::Batch(runs) => batch::rows(runs),
            Runs::Live(runs) => live::rows(runs),
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
            Runs::Batch(runs) => runs.iter().for_each(|run| text.push_str(&batch::table(run))),
            Runs::Live(runs) => {
                runs.iter().for_each(|run| text.push_str(&live::table(run)));
                text.push_str(&live::overview(runs));
            }
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

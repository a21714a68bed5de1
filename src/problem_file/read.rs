//! Reading a problem file: streamed into flat tables, so that size limits hold while reading.

use std::fmt;
use std::io::Read;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};
use thiserror::Error;

use crate::domain::{DestinationId, NodeClass, Weights};
use crate::problem_file::sum::RawSum;
use crate::problem_file::{PerTerm, ProblemFile, SCHEMA};
use crate::routing::problem::CELLS_MAX;
use crate::routing::{
    Bounds, Clusters, DestinationLoad, Objective, Problem, ProblemError, ProblemTables, TermRange,
};

/// Largest problem file that is read.
pub const FILE_BYTES_MAX: u64 = 256 << 20;

/// Why a file is not a problem.
#[derive(Debug, Error)]
pub enum ProblemFileError {
    /// Not JSON, or not of this format: syntax, unknown field, missing field, wrong type.
    #[error("not a {SCHEMA} file: {0}{hint}", hint = hint(.0))]
    Json(serde_json::Error),
    /// Another schema.
    #[error("schema is {0:?}; this version reads {SCHEMA:?}")]
    Schema(String),
    /// Rows of different lengths, or a different number of rows or columns than the problem has.
    #[error("{table} is ragged or of the wrong shape: {detail}")]
    Shape {
        /// Name of the table.
        table: &'static str,
        /// What was found and what was expected.
        detail: String,
    },
    /// Bounds that are not finite or the wrong way round.
    #[error("objective.bounds.{term} is [{min}, {max}]; both must be finite and min not above max")]
    Bounds {
        /// Name of the term.
        term: &'static str,
        /// First entry.
        min: f64,
        /// Second entry.
        max: f64,
    },
    /// A class other than those known.
    #[error("destinations[].class {0:?} is unknown; use \"cloud\" or \"edge\"")]
    Class(String),
    /// Tables that are no valid problem.
    #[error(transparent)]
    Problem(#[from] ProblemError),
}

impl From<serde_json::Error> for ProblemFileError {
    /// The message holds all that serde_json says, so it is no source to print again.
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error)
    }
}

fn hint(error: &serde_json::Error) -> &'static str {
    if error.is_syntax() { " (JSON has no NaN or Infinity)" } else { "" }
}

/// Reads at most [`FILE_BYTES_MAX`] bytes; a longer file ends in a syntax error.
///
/// # Errors
/// The first fault found, with its place in the file or the problem.
pub fn from_reader(reader: impl Read) -> Result<ProblemFile, ProblemFileError> {
    let raw: Raw = serde_json::from_reader(reader.take(FILE_BYTES_MAX))?;
    if raw.schema != SCHEMA {
        return Err(ProblemFileError::Schema(raw.schema));
    }
    let bounds = bounds(&raw.objective.bounds)?;
    let has_backlog_term = raw.objective.backlog_term;
    let problem = Problem::new(tables(raw)?)?;
    let objective = if has_backlog_term {
        Objective::with_bounds_and_backlog_term(&problem, bounds)
    } else {
        Objective::with_bounds(&problem, bounds)
    };
    Ok(ProblemFile { problem, objective })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    schema: String,
    #[serde(default, rename = "name")]
    _name: IgnoredAny,
    #[serde(default, rename = "reference")]
    _reference: IgnoredAny,
    objective: RawObjective,
    destinations: Vec<RawDestination>,
    quality_loss: Table<f64>,
    cost_usd: Table<f64>,
    energy_j: Table<f64>,
    service_s: Table<f64>,
    transfer_s: Option<Table<f64>>,
    legal: Option<Table<bool>>,
    clusters: Option<RawClusters>,
    sum: Option<RawSum>,
    request_weights: Option<Vec<PerTerm<f64>>>,
    length_tokens: Option<Vec<f64>>,
    #[serde(default)]
    first_request_number: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawObjective {
    weights: PerTerm<f64>,
    bounds: PerTerm<[f64; 2]>,
    #[serde(default)]
    backlog_term: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDestination {
    id: String,
    class: Option<String>,
    backlog_s: f64,
    batch_speedup: f64,
    network_s: f64,
    #[serde(default)]
    inflight: u32,
    #[serde(default = "one")]
    max_concurrency: u32,
    cap: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClusters {
    request: Vec<usize>,
    error: Table<f64>,
}

fn one() -> u32 {
    1
}

fn bounds(raw: &PerTerm<[f64; 2]>) -> Result<Bounds, ProblemFileError> {
    let range = |term, [min, max]: [f64; 2]| {
        let is_range = min.is_finite() && max.is_finite() && min <= max;
        if is_range { Ok(TermRange { min, max }) } else { Err(ProblemFileError::Bounds { term, min, max }) }
    };
    Ok(Bounds {
        quality: range("quality", raw.quality)?,
        cost: range("cost", raw.cost)?,
        energy: range("energy", raw.energy)?,
        time: range("time", raw.time)?,
    })
}

fn tables(raw: Raw) -> Result<ProblemTables, ProblemFileError> {
    let (n, m) = (raw.service_s.rows, raw.destinations.len());
    if n == 0 {
        return Err(ProblemError::Empty("requests").into());
    }
    if m == 0 {
        return Err(ProblemError::Empty("destinations").into());
    }
    let service_s = raw.service_s.cells("service_s", n, m)?;
    let legal = match raw.legal {
        Some(table) => table.cells("legal", n, m)?,
        None => vec![true; n * m],
    };
    let transfer_s = match raw.transfer_s {
        Some(table) => table.cells("transfer_s", n, m)?,
        None => vec![0.0; n * m],
    };
    let common = raw.objective.weights.into();
    let per_request = |rows: Vec<PerTerm<f64>>| rows.into_iter().map(Weights::from).collect();
    let weights: Vec<Weights> = raw.request_weights.map_or_else(|| vec![common; n], per_request);
    if weights.len() != n {
        let detail = format!("{} entries for {n} requests", weights.len());
        return Err(ProblemFileError::Shape { table: "request_weights", detail });
    }
    Ok(ProblemTables {
        quality_loss: raw.quality_loss.cells("quality_loss", n, m)?,
        cost_usd: raw.cost_usd.cells("cost_usd", n, m)?,
        energy_j: raw.energy_j.cells("energy_j", n, m)?,
        length_tokens: raw.length_tokens.unwrap_or_else(|| mean_services(&service_s, &legal, m)),
        service_s,
        transfer_s,
        legal,
        destinations: raw.destinations.into_iter().map(destination).collect::<Result<_, _>>()?,
        weights,
        first_request_number: raw.first_request_number,
        clusters: raw.clusters.map(|clusters| self::clusters(clusters, m)).transpose()?,
        sum: raw.sum.map(|sum| sum.tables(n, m)).transpose()?,
    })
}

fn destination(raw: RawDestination) -> Result<DestinationLoad, ProblemFileError> {
    let class = match raw.class {
        Some(name) => Some(NodeClass::from_name(&name).ok_or(ProblemFileError::Class(name))?),
        None => None,
    };
    Ok(DestinationLoad {
        id: DestinationId::from_text(&raw.id),
        class,
        backlog_s: raw.backlog_s,
        batch_speedup: raw.batch_speedup,
        network_s: raw.network_s,
        inflight: raw.inflight,
        max_concurrency: raw.max_concurrency,
        cap: raw.cap,
    })
}

fn clusters(raw: RawClusters, m: usize) -> Result<Clusters, ProblemFileError> {
    let count = raw.error.rows;
    Ok(Clusters { of_request: raw.request, error: raw.error.cells("clusters.error", count, m)? })
}

/// Stands in for the predicted length: requests are ordered by it, and service grows with length.
fn mean_services(service_s: &[f64], legal: &[bool], m: usize) -> Vec<f64> {
    let mean = |(services, legal): (&[f64], &[bool])| {
        let legal = || services.iter().zip(legal).filter(|(_, legal)| **legal);
        legal().map(|(s, _)| s).sum::<f64>() / legal().count().max(1) as f64
    };
    service_s.chunks_exact(m).zip(legal.chunks_exact(m)).map(mean).collect()
}

/// Rows of a JSON array of arrays, one after the other.
pub(super) struct Table<T> {
    cells: Vec<T>,
    rows: usize,
    columns: usize,
    /// The first row of another length than row 0, and its length.
    ragged: Option<(usize, usize)>,
}

impl<T> Table<T> {
    pub(super) fn cells(self, table: &'static str, n: usize, m: usize) -> Result<Vec<T>, ProblemFileError> {
        let detail = if let Some((row, got)) = self.ragged {
            format!("row {row} has {got} entries, row 0 has {}", self.columns)
        } else if self.rows != n {
            format!("{} rows where service_s has {n}", self.rows)
        } else if self.columns != m {
            format!("{} columns for {m} destinations", self.columns)
        } else {
            return Ok(self.cells);
        };
        Err(ProblemFileError::Shape { table, detail })
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Table<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let empty = Self { cells: Vec::new(), rows: 0, columns: 0, ragged: None };
        deserializer.deserialize_seq(TableVisitor(empty))
    }
}

struct TableVisitor<T>(Table<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for TableVisitor<T> {
    type Value = Table<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of rows")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut rows: A) -> Result<Table<T>, A::Error> {
        while let Some(columns) = rows.next_element_seed(Row(&mut self.0.cells))? {
            if self.0.rows == 0 {
                self.0.columns = columns;
            } else if columns != self.0.columns && self.0.ragged.is_none() {
                self.0.ragged = Some((self.0.rows, columns));
            }
            self.0.rows += 1;
            if self.0.rows > CELLS_MAX {
                return Err(A::Error::custom(format_args!("a table has more than {CELLS_MAX} rows")));
            }
        }
        Ok(self.0)
    }
}

/// Appends one row to the cells; yields its length.
struct Row<'c, T>(&'c mut Vec<T>);

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Row<'_, T> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Row<'_, T> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a row of one entry per destination")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut row: A) -> Result<usize, A::Error> {
        let before = self.0.len();
        while let Some(cell) = row.next_element()? {
            if self.0.len() >= CELLS_MAX {
                return Err(A::Error::custom(format_args!("a table has more than {CELLS_MAX} cells")));
            }
            self.0.push(cell);
        }
        Ok(self.0.len() - before)
    }
}

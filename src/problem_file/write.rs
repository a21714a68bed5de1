//! Writing a problem file.

use serde::Serialize;

use crate::domain::Weights;
use crate::problem_file::sum::FileSum;
use crate::problem_file::{PerTerm, SCHEMA};
use crate::routing::{Clusters, DestinationLoad, Objective, Problem};

#[derive(Serialize)]
struct File<'a> {
    schema: &'static str,
    name: &'a str,
    objective: FileObjective,
    destinations: Vec<FileDestination<'a>>,
    quality_loss: Vec<&'a [f64]>,
    cost_usd: Vec<&'a [f64]>,
    energy_j: Vec<&'a [f64]>,
    service_s: Vec<&'a [f64]>,
    transfer_s: Vec<&'a [f64]>,
    legal: Vec<&'a [bool]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clusters: Option<FileClusters<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sum: Option<FileSum>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_weights: Option<Vec<PerTerm<f64>>>,
    length_tokens: &'a [f64],
    first_request_number: u64,
}

#[derive(Serialize)]
struct FileObjective {
    weights: PerTerm<f64>,
    bounds: PerTerm<[f64; 2]>,
    backlog_term: bool,
}

#[derive(Serialize)]
struct FileDestination<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<&'static str>,
    backlog_s: f64,
    batch_speedup: f64,
    network_s: f64,
    inflight: u32,
    max_concurrency: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    cap: Option<u32>,
}

#[derive(Serialize)]
struct FileClusters<'a> {
    request: &'a [usize],
    error: Vec<&'a [f64]>,
}

/// A problem and its objective as `cema-problem/1`; reading it back gives the same J to the last bit.
///
/// `request_weights` are written only where requests differ; other readers of the format then take the
/// mean weights for all.
///
/// # Errors
/// Never for a [`Problem`]: its numbers are finite.
pub fn to_json(name: &str, problem: &Problem, objective: &Objective) -> Result<String, serde_json::Error> {
    let (m, tables) = (problem.n_destinations(), problem.tables());
    let first = problem.weights(0);
    let differs = tables.weights.iter().any(|weights| *weights != first);
    let weights: Weights = if differs { objective.mean_weights() } else { first };
    let file = File {
        schema: SCHEMA,
        name,
        objective: FileObjective {
            weights: weights.into(),
            bounds: objective.bounds().into(),
            backlog_term: objective.has_backlog_term(),
        },
        destinations: tables.destinations.iter().map(destination).collect(),
        quality_loss: rows(&tables.quality_loss, m),
        cost_usd: rows(&tables.cost_usd, m),
        energy_j: rows(&tables.energy_j, m),
        service_s: rows(&tables.service_s, m),
        transfer_s: rows(&tables.transfer_s, m),
        legal: rows(&tables.legal, m),
        clusters: tables.clusters.as_ref().map(|clusters| self::clusters(clusters, m)),
        sum: tables.sum.as_ref().map(FileSum::from),
        request_weights: differs.then(|| tables.weights.iter().map(|w| (*w).into()).collect()),
        length_tokens: &tables.length_tokens,
        first_request_number: tables.first_request_number,
    };
    serde_json::to_string(&file)
}

fn destination(load: &DestinationLoad) -> FileDestination<'_> {
    FileDestination {
        id: load.id.as_str(),
        class: load.class.map(|class| class.as_str()),
        backlog_s: load.backlog_s,
        batch_speedup: load.batch_speedup,
        network_s: load.network_s,
        inflight: load.inflight,
        max_concurrency: load.max_concurrency,
        cap: load.cap,
    }
}

fn clusters(clusters: &Clusters, m: usize) -> FileClusters<'_> {
    FileClusters { request: &clusters.of_request, error: rows(&clusters.error, m) }
}

fn rows<T>(cells: &[T], m: usize) -> Vec<&[T]> {
    cells.chunks_exact(m).collect()
}

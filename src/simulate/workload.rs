//! What a simulation runs on: a fleet and requests, each as predicted and as it really was.

use std::sync::Arc;

use crate::domain::{
    Destination, DestinationId, DestinationState, ObjectiveScales, Prediction, RoutingContext,
    RoutingRequest, Weights,
};
use crate::routing::{
    BatchItem, Clusters, CompletionModel, CostModels, EnergyModel, Problem, ProblemError, ProblemTables,
    TimeTerm, legal_set,
};
use crate::simulate::SimulateError;
use crate::units::{Joules, Seconds, Usd};

/// One row of a trace.
#[derive(Debug, Clone)]
pub struct SimulatedRequest {
    /// What routing knows of it.
    pub request: Arc<RoutingRequest>,
    /// Quality and lengths as the router predicts them, M entries each.
    pub prediction: Arc<Prediction>,
    /// Quality and lengths as they really were, M entries each.
    pub truth: Arc<Prediction>,
    /// Its prompt cluster, for `uniroute`.
    pub cluster: usize,
}

/// A fleet and the requests that arrive at it.
#[derive(Debug, Clone)]
pub struct Workload {
    destinations: Arc<[Destination]>,
    requests: Vec<SimulatedRequest>,
    cluster_error: Vec<f64>,
}

/// Why rows and fleet do not go together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// There is nothing to simulate.
    #[error("the workload has no {0}")]
    Empty(&'static str),
    /// A row does not have one entry per destination.
    #[error("request {id} has {got} entries of {what} where the fleet has {want} destinations")]
    Ragged {
        /// Id of the row.
        id: String,
        /// What is of the wrong size.
        what: &'static str,
        /// Entries found.
        got: usize,
        /// Entries needed.
        want: usize,
    },
    /// A row names a cluster without an error row.
    #[error("request {id} is of cluster {cluster}, but there are {clusters} clusters")]
    Cluster {
        /// Id of the row.
        id: String,
        /// The cluster it names.
        cluster: usize,
        /// Clusters there are.
        clusters: usize,
    },
}

/// Whose figures fill the tables of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figures {
    /// The router's predictions: what it decides upon.
    Predicted,
    /// What really was: what it is judged by.
    True,
}

impl Workload {
    /// Checks and joins the parts. `cluster_error` is the mean quality loss per cluster and destination,
    /// K × M, row-major.
    ///
    /// # Errors
    /// [`WorkloadError`] with the first row that does not fit.
    pub fn new(
        destinations: Arc<[Destination]>,
        requests: Vec<SimulatedRequest>,
        cluster_error: Vec<f64>,
    ) -> Result<Self, WorkloadError> {
        let m = destinations.len();
        if m == 0 {
            return Err(WorkloadError::Empty("destinations"));
        }
        if requests.is_empty() {
            return Err(WorkloadError::Empty("requests"));
        }
        let clusters = cluster_error.len() / m;
        for row in &requests {
            let id = || row.request.id.to_string();
            let sizes = [
                ("predicted quality", row.prediction.quality.len()),
                ("predicted length", row.prediction.completion_tokens.len()),
                ("score", row.truth.quality.len()),
                ("length", row.truth.completion_tokens.len()),
            ];
            if let Some((what, got)) = sizes.into_iter().find(|(_, got)| *got != m) {
                return Err(WorkloadError::Ragged { id: id(), what, got, want: m });
            }
            if row.cluster >= clusters {
                return Err(WorkloadError::Cluster { id: id(), cluster: row.cluster, clusters });
            }
        }
        Ok(Self { destinations, requests, cluster_error })
    }

    /// The fleet, M destinations.
    #[must_use]
    pub fn destinations(&self) -> &Arc<[Destination]> {
        &self.destinations
    }

    /// The rows.
    #[must_use]
    pub fn requests(&self) -> &[SimulatedRequest] {
        &self.requests
    }

    /// The same requests on a fleet `copies` times as large: every node is there again, its destinations under ids of
    /// their own, with the same profile (the paper's destination scalability, M = 11, 22, 44, 88).
    #[must_use]
    pub fn replicated(&self, copies: usize) -> Self {
        let copy = |c: usize, d: &Destination| match c {
            0 => d.clone(),
            _ => Destination {
                id: DestinationId::from_text(&format!("{}#{}", d.id, c + 1)),
                node: format!("{}#{}", d.node, c + 1).into(),
                ..d.clone()
            },
        };
        let repeat = |prediction: &Prediction| {
            Arc::new(Prediction {
                quality: prediction.quality.repeat(copies),
                completion_tokens: prediction.completion_tokens.repeat(copies),
                cluster_error: prediction.cluster_error.repeat(copies),
                source: prediction.source,
            })
        };
        let destinations =
            (0..copies).flat_map(|c| self.destinations.iter().map(move |d| copy(c, d))).collect();
        let requests = self.requests.iter().map(|row| SimulatedRequest {
            prediction: repeat(&row.prediction),
            truth: repeat(&row.truth),
            ..row.clone()
        });
        let error = self.cluster_error.chunks(self.destinations.len());
        Self {
            destinations,
            requests: requests.collect(),
            cluster_error: error.flat_map(|row| row.repeat(copies)).collect(),
        }
    }

    /// The problem of some rows (indexes into [`Workload::requests`]) on an idle fleet, clusters included.
    ///
    /// # Errors
    /// A row without a legal destination, or figures that make no problem.
    pub fn problem(
        &self,
        rows: &[usize],
        figures: Figures,
        costs: &CostModels,
        weights: Weights,
    ) -> Result<Problem, SimulateError> {
        let context = self.idle_context(weights);
        let mut items = Vec::with_capacity(rows.len());
        for row in rows.iter().map(|row| &self.requests[*row]) {
            let legal = legal_set(&row.request, Some(&row.prediction), &context, &[]).map_err(|reason| {
                SimulateError::NoDestination { id: row.request.id.to_string(), reason: reason.to_string() }
            })?;
            items.push((row, legal));
        }
        let items: Vec<BatchItem<'_>> = items
            .iter()
            .map(|(row, legal)| BatchItem {
                request: &row.request,
                prediction: match figures {
                    Figures::Predicted => &row.prediction,
                    Figures::True => &row.truth,
                },
                legal,
                waited: Seconds::ZERO,
            })
            .collect();
        let problem = Problem::build(&items, &context, costs)?;
        Ok(self.with_clusters(&problem, rows)?)
    }

    /// All rows as they really were, on an idle fleet: what a run is judged by. Models of completion have no part in it.
    ///
    /// # Errors
    /// A row without a legal destination, or figures that make no problem.
    pub fn truth(&self, energy: EnergyModel) -> Result<Problem, SimulateError> {
        let rows: Vec<usize> = (0..self.requests.len()).collect();
        let costs = CostModels { completion: CompletionModel::Fifo, time: TimeTerm::Makespan, energy };
        self.problem(&rows, Figures::True, &costs, Weights::EQUAL)
    }

    /// `problem` with the clusters of these rows, in the order of its requests.
    ///
    /// # Errors
    /// [`ProblemError`] if `rows` are not as many as its requests.
    pub fn with_clusters(&self, problem: &Problem, rows: &[usize]) -> Result<Problem, ProblemError> {
        let clusters = Clusters {
            of_request: rows.iter().map(|row| self.requests[*row].cluster).collect(),
            error: self.cluster_error.clone(),
        };
        Problem::new(ProblemTables { clusters: Some(clusters), ..problem.tables().clone() })
    }

    fn idle_context(&self, weights: Weights) -> RoutingContext {
        RoutingContext {
            states: vec![DestinationState::idle(); self.destinations.len()],
            destinations: Arc::clone(&self.destinations),
            weights,
            // Batches are judged by their own bounds.
            scales: ObjectiveScales { quality: 1.0, cost: Usd(1.0), energy: Joules(1.0), time: Seconds(1.0) },
            finish_target: None,
        }
    }
}

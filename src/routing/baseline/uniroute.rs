//! UniRoute: the quality–cost router the paper compares with. Blind to load, energy and completion time.

use rand_chacha::ChaCha8Rng;

use crate::domain::DestinationOrd;
use crate::routing::decision::{RoutingDecision, SearchRecord};
use crate::routing::objective::{Objective, TermRange};
use crate::routing::params::PolicyKind;
use crate::routing::policy::{PolicyError, RoutingPolicy};
use crate::routing::problem::{Clusters, Problem};

/// Parameters of UniRoute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnirouteParams {
    /// λ: what one range of money weighs against an error rate of 1. Not negative.
    pub lambda: f64,
}

impl Default for UnirouteParams {
    /// The paper's λ = 0.05.
    fn default() -> Self {
        Self { lambda: 0.05 }
    }
}

/// Each request to the legal destination with the least
/// `error[cluster of r][d] + λ · (C_rd − min C) / (max C − min C)`, money normalised over the batch's
/// legal cells.
#[derive(Debug, Clone, Copy)]
pub struct Uniroute {
    params: UnirouteParams,
}

impl Uniroute {
    /// UniRoute with these parameters.
    #[must_use]
    pub fn new(params: UnirouteParams) -> Self {
        Self { params }
    }
}

impl RoutingPolicy for Uniroute {
    fn name(&self) -> &'static str {
        PolicyKind::Uniroute.as_str()
    }

    fn route(
        &self,
        problem: &Problem,
        objective: &Objective,
        _rng: &mut ChaCha8Rng,
        _stop: &mut dyn FnMut() -> bool,
    ) -> Result<RoutingDecision, PolicyError> {
        let clusters = problem.tables().clusters.as_ref().ok_or(PolicyError::NoClusters)?;
        let money = legal_cost_range(problem);
        let mut places = problem.places();
        let choose = |r: usize| {
            let score = |d: &DestinationOrd| {
                error_rate(clusters, problem, r, *d)
                    + self.params.lambda * money.normalise(problem.cost(r, *d).get())
            };
            let by_score = |a: &DestinationOrd, b: &DestinationOrd| score(a).total_cmp(&score(b));
            places.look(r);
            let open = problem.legal_destinations(r).filter(|d| places.is_open(d.idx()));
            let d = open.min_by(by_score).unwrap_or(DestinationOrd(0));
            places.take(r, d.idx());
            d
        };
        let assignment = (0..problem.n_requests()).map(choose).collect();
        Ok(RoutingDecision::new(problem, objective, assignment, SearchRecord::default()))
    }
}

fn error_rate(clusters: &Clusters, problem: &Problem, r: usize, d: DestinationOrd) -> f64 {
    clusters.error[clusters.of_request[r] * problem.n_destinations() + d.idx()]
}

fn legal_cost_range(problem: &Problem) -> TermRange {
    let tables = problem.tables();
    let legal = tables.cost_usd.iter().zip(&tables.legal).filter(|(_, legal)| **legal);
    TermRange::over(legal.map(|(cost, _)| *cost))
}

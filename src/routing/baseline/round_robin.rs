//! Destinations in turn.

use rand_chacha::ChaCha8Rng;

use crate::domain::DestinationOrd;
use crate::routing::decision::{RoutingDecision, SearchRecord};
use crate::routing::objective::Objective;
use crate::routing::params::PolicyKind;
use crate::routing::policy::{PolicyError, RoutingPolicy};
use crate::routing::problem::Problem;

/// Request number i goes to destination i mod M, or the next legal one after it.
///
/// The number counts on over batches ([`Problem::numbered_from`]), so the policy itself keeps no cursor.
#[derive(Debug, Clone, Copy)]
pub struct RoundRobin;

impl RoutingPolicy for RoundRobin {
    fn name(&self) -> &'static str {
        PolicyKind::RoundRobin.as_str()
    }

    fn route(
        &self,
        problem: &Problem,
        objective: &Objective,
        _rng: &mut ChaCha8Rng,
        _stop: &mut dyn FnMut() -> bool,
    ) -> Result<RoutingDecision, PolicyError> {
        let m = problem.n_destinations() as u64;
        let first = problem.tables().first_request_number % m;
        let mut places = problem.places();
        let choose = |r: usize| {
            let turn = (first + r as u64) % m;
            let waits = |d: &DestinationOrd| (u64::from(d.0) + m - turn) % m;
            places.look(r);
            let open = problem.legal_destinations(r).filter(|d| places.is_open(d.idx()));
            let d = open.min_by_key(waits).unwrap_or(DestinationOrd(0));
            places.take(r, d.idx());
            d
        };
        let assignment = (0..problem.n_requests()).map(choose).collect();
        Ok(RoutingDecision::new(problem, objective, assignment, SearchRecord::default()))
    }
}

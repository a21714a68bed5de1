//! The one seam between the scheduler and whatever assigns a batch.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use thiserror::Error;

use crate::domain::NodeClass;
use crate::routing::baseline::{Greedy, LeastLoaded, PlacementOnly, RoundRobin, Uniroute, UnirouteParams};
use crate::routing::decision::RoutingDecision;
use crate::routing::memetic::{Memetic, MemeticParams};
use crate::routing::memetic_paper::{MemeticPaper, MemeticPaperParams};
use crate::routing::objective::Objective;
use crate::routing::params::PolicyKind;
use crate::routing::problem::Problem;

/// Assigns every request of a batch to one of its legal destinations.
///
/// The decision is a function of the arguments. `stop` is polled at least once a generation and ends the
/// search with the best assignment so far; policies that do not search ignore it.
pub trait RoutingPolicy {
    /// The name of configurations, metrics and decision records.
    fn name(&self) -> &'static str;

    /// Chooses an assignment.
    ///
    /// # Errors
    /// What the policy needs and the problem lacks.
    fn route(
        &self,
        problem: &Problem,
        objective: &Objective,
        rng: &mut ChaCha8Rng,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<RoutingDecision, PolicyError>;
}

/// Why a policy cannot assign a batch.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// `uniroute` without clusters.
    #[error("policy uniroute needs prompt clusters, which the problem does not have")]
    NoClusters,
    /// A placement policy on destinations of unknown class.
    #[error("policy {policy} needs the class of every destination; {destination} has none")]
    NoClass {
        /// The policy.
        policy: &'static str,
        /// The first destination without a class.
        destination: String,
    },
    /// A placement policy for a request without a legal destination of that class.
    #[error("policy {policy}: request {request} has no legal {class} destination")]
    NoDestinationOfClass {
        /// The policy.
        policy: &'static str,
        /// Row of the first such request.
        request: usize,
        /// The class the policy is restricted to.
        class: NodeClass,
    },
    /// A placement policy whose class has too few places under the caps.
    #[error("policy {policy}: the caps leave no {class} place for request {request}")]
    NoPlaceOfClass {
        /// The policy.
        policy: &'static str,
        /// Row of the first request without a place.
        request: usize,
        /// The class the policy is restricted to.
        class: NodeClass,
    },
}

/// Parameters of the policies that have any.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PolicyParams {
    /// Of `memetic`.
    pub memetic: MemeticParams,
    /// Of `memetic_paper`.
    pub memetic_paper: MemeticPaperParams,
    /// Of `uniroute`.
    pub uniroute: UnirouteParams,
}

/// The policy of a kind.
#[must_use]
pub fn for_kind(kind: PolicyKind, params: &PolicyParams) -> Box<dyn RoutingPolicy + Send + Sync> {
    match kind {
        PolicyKind::Memetic => Box::new(Memetic::new(params.memetic)),
        PolicyKind::MemeticPaper => Box::new(MemeticPaper::new(params.memetic_paper)),
        PolicyKind::Greedy => Box::new(Greedy::new(PolicyKind::Greedy)),
        PolicyKind::GreedyPlain => Box::new(Greedy::new(PolicyKind::GreedyPlain)),
        PolicyKind::Uniroute => Box::new(Uniroute::new(params.uniroute)),
        PolicyKind::RoundRobin => Box::new(RoundRobin),
        PolicyKind::LeastLoaded => Box::new(LeastLoaded),
        PolicyKind::CloudOnly => Box::new(PlacementOnly::new(NodeClass::Cloud)),
        PolicyKind::EdgeOnly => Box::new(PlacementOnly::new(NodeClass::Edge)),
    }
}

/// The random numbers of one batch: a stream of its own under the configured seed, the same on every
/// platform.
#[must_use]
pub fn rng_for(seed: u64, batch_number: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(batch_number);
    rng
}

//! `cloud_only` and `edge_only`: one class of node, least loaded within it.

use rand_chacha::ChaCha8Rng;

use crate::domain::{DestinationOrd, NodeClass};
use crate::routing::baseline::least_loaded::OutstandingWork;
use crate::routing::decision::{RoutingDecision, SearchRecord};
use crate::routing::objective::Objective;
use crate::routing::params::PolicyKind;
use crate::routing::policy::{PolicyError, RoutingPolicy};
use crate::routing::problem::Problem;

/// Least loaded among the destinations of one class.
#[derive(Debug, Clone, Copy)]
pub struct PlacementOnly {
    class: NodeClass,
}

impl PlacementOnly {
    /// `cloud_only` or `edge_only`.
    #[must_use]
    pub fn new(class: NodeClass) -> Self {
        Self { class }
    }
}

impl RoutingPolicy for PlacementOnly {
    fn name(&self) -> &'static str {
        match self.class {
            NodeClass::Cloud => PolicyKind::CloudOnly.as_str(),
            NodeClass::Edge => PolicyKind::EdgeOnly.as_str(),
        }
    }

    fn route(
        &self,
        problem: &Problem,
        objective: &Objective,
        _rng: &mut ChaCha8Rng,
        _stop: &mut dyn FnMut() -> bool,
    ) -> Result<RoutingDecision, PolicyError> {
        if let Some(unknown) = problem.destinations().iter().find(|d| d.class.is_none()) {
            let destination = unknown.id.to_string();
            return Err(PolicyError::NoClass { policy: self.name(), destination });
        }
        let of_class = |d: &DestinationOrd| problem.destination(*d).class == Some(self.class);
        let absent = |request| !problem.legal_destinations(request).any(|d| of_class(&d));
        if let Some(request) = (0..problem.n_requests()).find(|r| absent(*r)) {
            return Err(PolicyError::NoDestinationOfClass {
                policy: self.name(),
                request,
                class: self.class,
            });
        }
        let caps = problem.caps_within(|load| load.class == Some(self.class));
        let no_place =
            |request| PolicyError::NoPlaceOfClass { policy: self.name(), request, class: self.class };
        let caps = caps.map_err(|shortage| no_place(shortage.request))?;
        let mut outstanding = OutstandingWork::new(problem, caps.as_ref());
        let choose = |request: usize| {
            let candidates = problem.legal_destinations(request).filter(of_class);
            outstanding.send_to_least(request, candidates).ok_or_else(|| no_place(request))
        };
        let assignment = (0..problem.n_requests()).map(choose).collect::<Result<_, _>>()?;
        Ok(RoutingDecision::new(problem, objective, assignment, SearchRecord::default()))
    }
}

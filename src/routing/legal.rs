//! Legal sets D_r: where a request may go at all (Algorithm 1, line 4).
//!
//! The same function serves planning, fail-over and retry, so a constraint holds on every path. The
//! deadline is not here: it only drops a destination where another can meet it, which needs service
//! times ([`crate::routing::Problem::build`]).

use std::sync::Arc;

use thiserror::Error;

use crate::domain::{
    Availability, Destination, DestinationOrd, DestinationState, ModelTarget, NodeClass, Prediction,
    RoutingContext, RoutingRequest,
};
use crate::units::{Quality, Tokens};

/// The destinations one request may be sent to; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegalSet {
    allowed: Vec<bool>,
    len: usize,
}

impl LegalSet {
    /// The legal destinations in fleet order.
    pub fn iter(&self) -> impl Iterator<Item = DestinationOrd> + '_ {
        (0u32..).map(DestinationOrd).zip(&self.allowed).filter(|(_, allowed)| **allowed).map(|(d, _)| d)
    }

    /// Whether `d` is legal.
    #[must_use]
    pub fn contains(&self, d: DestinationOrd) -> bool {
        self.allowed.get(d.idx()).copied().unwrap_or(false)
    }

    /// Number of legal destinations; at least 1.
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "a legal set is never empty; an empty one is NoDestination"
    )]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// The constraint that leaves a request without a destination.
///
/// Constraints are applied in the order of the variants; the first that empties the set is named.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum NoDestination {
    /// No destination serves the model (the client's fault, 404).
    #[error("no destination serves model {model}")]
    UnknownModel {
        /// The name asked for, or `any model` for a virtual model over an empty fleet.
        model: Arc<str>,
    },
    /// No destination of the model offers everything the request needs (the client's fault, 400).
    #[error("no destination offers {}", missing.join(", "))]
    MissingCapability {
        /// What the best candidate lacks, by configuration name.
        missing: Vec<&'static str>,
    },
    /// Prompt and completion fit into no candidate's context (the client's fault, 400).
    #[error("{} tokens of prompt and completion exceed the largest context of {} tokens", needed.get(), largest.get())]
    ContextTooSmall {
        /// Prompt tokens plus the cap on the completion.
        needed: Tokens,
        /// Largest context among the candidates.
        largest: Tokens,
    },
    /// No candidate stands where the request must be served.
    #[error("no {wanted} destination can serve the request")]
    Placement {
        /// The class asked for.
        wanted: NodeClass,
    },
    /// No candidate is predicted good enough.
    #[error("the quality floor {} is above the best prediction {:.3}", floor.get(), best.get())]
    QualityFloor {
        /// The least quality asked for.
        floor: Quality,
        /// The best prediction among the candidates.
        best: Quality,
    },
    /// All candidates are out of service (ours, 503, worth a retry).
    #[error("no destination is available: {down} down, {loading} loading, {draining} draining")]
    Unavailable {
        /// Candidates unreachable or failing.
        down: usize,
        /// Candidates still loading.
        loading: usize,
        /// Candidates being taken out of service.
        draining: usize,
    },
    /// All candidates were tried before (ours, 503).
    #[error("all {tried} legal destinations were tried")]
    AllTried {
        /// Candidates tried.
        tried: usize,
    },
}

/// D_r: every destination that satisfies all hard constraints of `request`, less those in `excluded`.
///
/// `min_quality` is applied only where a `prediction` (M entries) is given.
///
/// # Errors
/// The first constraint that empties the set.
pub fn legal_set(
    request: &RoutingRequest,
    prediction: Option<&Prediction>,
    context: &RoutingContext,
    excluded: &[DestinationOrd],
) -> Result<LegalSet, NoDestination> {
    let mut candidates: Vec<Candidate<'_>> = context.iter().collect();
    by_model(&mut candidates, request)?;
    by_capability(&mut candidates, request)?;
    by_context(&mut candidates, request)?;
    by_placement(&mut candidates, request)?;
    by_quality(&mut candidates, request, prediction)?;
    by_availability(&mut candidates)?;
    let tried = candidates.len();
    candidates.retain(|(d, ..)| !excluded.contains(d));
    if candidates.is_empty() {
        return Err(NoDestination::AllTried { tried });
    }
    let mut allowed = vec![false; context.destinations.len()];
    for (d, ..) in &candidates {
        allowed[d.idx()] = true;
    }
    Ok(LegalSet { allowed, len: candidates.len() })
}

type Candidate<'a> = (DestinationOrd, &'a Destination, &'a DestinationState);

fn by_model(candidates: &mut Vec<Candidate<'_>>, request: &RoutingRequest) -> Result<(), NoDestination> {
    let model = match &request.target {
        ModelTarget::Any => "any model".into(),
        ModelTarget::Named(name) => {
            candidates.retain(|(_, d, _)| d.model == *name);
            Arc::clone(name)
        }
    };
    if candidates.is_empty() { Err(NoDestination::UnknownModel { model }) } else { Ok(()) }
}

fn by_capability(candidates: &mut Vec<Candidate<'_>>, request: &RoutingRequest) -> Result<(), NoDestination> {
    let lacks = |d: &Destination| request.needs.missing_from(d.capabilities).collect::<Vec<_>>();
    let nearest = candidates.iter().map(|(_, d, _)| lacks(d)).min_by_key(Vec::len).unwrap_or_default();
    candidates.retain(|(_, d, _)| d.capabilities.offers(request.needs));
    if candidates.is_empty() { Err(NoDestination::MissingCapability { missing: nearest }) } else { Ok(()) }
}

fn by_context(candidates: &mut Vec<Candidate<'_>>, request: &RoutingRequest) -> Result<(), NoDestination> {
    let needed = request.prompt_tokens + request.max_completion_tokens.unwrap_or(Tokens::ZERO);
    let largest = candidates.iter().map(|(_, d, _)| d.context).fold(Tokens::ZERO, Tokens::max);
    candidates.retain(|(_, d, _)| d.context >= needed);
    if candidates.is_empty() { Err(NoDestination::ContextTooSmall { needed, largest }) } else { Ok(()) }
}

fn by_placement(candidates: &mut Vec<Candidate<'_>>, request: &RoutingRequest) -> Result<(), NoDestination> {
    let Some(wanted) = request.constraints.placement else { return Ok(()) };
    candidates.retain(|(_, d, _)| d.class == wanted);
    if candidates.is_empty() { Err(NoDestination::Placement { wanted }) } else { Ok(()) }
}

fn by_quality(
    candidates: &mut Vec<Candidate<'_>>,
    request: &RoutingRequest,
    prediction: Option<&Prediction>,
) -> Result<(), NoDestination> {
    let (Some(floor), Some(prediction)) = (request.constraints.min_quality, prediction) else {
        return Ok(());
    };
    let predicted = |d: &DestinationOrd| prediction.quality.get(d.idx()).copied().unwrap_or(Quality::ZERO);
    let best = candidates.iter().map(|(d, ..)| predicted(d)).fold(Quality::ZERO, Quality::max);
    candidates.retain(|(d, ..)| predicted(d) >= floor);
    if candidates.is_empty() { Err(NoDestination::QualityFloor { floor, best }) } else { Ok(()) }
}

fn by_availability(candidates: &mut Vec<Candidate<'_>>) -> Result<(), NoDestination> {
    let count = |wanted| candidates.iter().filter(|(.., state)| state.availability == wanted).count();
    let unavailable = NoDestination::Unavailable {
        down: count(Availability::Down),
        loading: count(Availability::Loading),
        draining: count(Availability::Draining),
    };
    candidates.retain(|(.., state)| state.availability == Availability::Ready);
    if candidates.is_empty() { Err(unavailable) } else { Ok(()) }
}

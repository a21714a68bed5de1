//! Legal sets D_r: where a request may go at all (Algorithm 1, line 4).
//!
//! The same function serves planning, fail-over and retry, so a constraint holds on every path. The
//! deadline is not here: it only drops a destination where another can meet it, which needs service
//! times ([`crate::routing::Problem::build`]).

use std::sync::Arc;

use thiserror::Error;

use crate::domain::named::named_enum;
use crate::domain::{
    Availability, Destination, DestinationOrd, DestinationState, ModelTarget, NodeClass, Prediction,
    RoutingContext, RoutingRequest,
};
use crate::units::{Quality, Seconds, Tokens};

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
    ///
    /// Clients tell it by the words that OpenAI and vLLM use.
    #[error(
        "This model's maximum context length is {} tokens. However, your request has about {} tokens in the prompt \
         and asks for up to {} in the completion (context_length_exceeded). Please shorten the prompt or the completion.",
        largest.get().floor(),
        prompt.get().ceil(),
        completion.get().ceil()
    )]
    ContextTooSmall {
        /// Tokens of the longest prompt.
        prompt: Tokens,
        /// The cap on the completion, zero where there is none.
        completion: Tokens,
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
    #[error(
        "no destination is available: {down} down, {loading} loading, {draining} draining, {} cooling or given up for now",
        returning.len()
    )]
    Unavailable {
        /// Candidates unreachable or failing.
        down: usize,
        /// Candidates still loading.
        loading: usize,
        /// Candidates being taken out of service.
        draining: usize,
        /// Candidates that are back by themselves after a while: cooling, or with an open circuit.
        returning: Vec<DestinationOrd>,
    },
    /// All candidates were tried before (ours, 503).
    #[error("all {tried} legal destinations were tried")]
    AllTried {
        /// Candidates tried.
        tried: usize,
    },
    /// None of them is predicted to be done in time (ours, 503). [`legal_set`] never says so: whoever refuses such
    /// requests does.
    #[error(
        "no destination is predicted to meet the deadline of {:.2} s{}: the earliest would be done {:.2} s after the \
         request came",
        deadline.get(),
        if *is_hopeless { ", not even an idle one" } else { "" },
        earliest.get()
    )]
    Deadline {
        /// Time from arrival within which it is wanted.
        deadline: Seconds,
        /// Least predicted time from arrival to completion.
        earliest: Seconds,
        /// Whether it would be missed without any other request too.
        is_hopeless: bool,
    },
}

named_enum! {
    /// Why a destination is none for a request.
    pub enum Exclusion {
        /// It serves another model than the one asked for.
        OtherModel = "other_model",
        /// It lacks a capability that the request needs.
        MissingCapability = "missing_capability",
        /// Its context is too small.
        ContextTooSmall = "context_too_small",
        /// It stands elsewhere than where the request must be served.
        Placement = "placement",
        /// Its predicted quality is below the floor.
        QualityFloor = "quality_floor",
        /// It is out of service: down, loading, draining, cooling, or given up for now.
        Unavailable = "unavailable",
        /// It failed this request before.
        Failed = "failed_before",
        /// It has no free slot, or no room, and another has.
        Taken = "taken",
        /// It is predicted to miss the deadline, and another is not.
        Deadline = "deadline",
        /// It is predicted to miss `window.finish_target_ms`, and another is not, or misses it by less.
        FinishTarget = "finish_target",
    }
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
    let demand = Demand { request, prediction, excluded };
    let allowed: Vec<bool> = context.iter().map(|candidate| demand.is_met_by(candidate)).collect();
    match allowed.iter().filter(|allowed| **allowed).count() {
        0 => Err(demand.unmet(context)),
        len => Ok(LegalSet { allowed, len }),
    }
}

/// Why one destination is none for one request; constraints in the order in which they are applied.
///
/// `None` = it is legal. What only drops destinations where others are better (deadlines, patience) is not here.
#[must_use]
pub fn exclusion(
    request: &RoutingRequest,
    prediction: Option<&Prediction>,
    candidate: (DestinationOrd, &Destination, &DestinationState),
    excluded: &[DestinationOrd],
) -> Option<Exclusion> {
    let demand = Demand { request, prediction, excluded };
    let checks: [(bool, Exclusion); 7] = [
        (demand.is_model(candidate), Exclusion::OtherModel),
        (demand.is_offered(candidate), Exclusion::MissingCapability),
        (demand.fits(candidate), Exclusion::ContextTooSmall),
        (demand.is_placed(candidate), Exclusion::Placement),
        (demand.is_good_enough(candidate), Exclusion::QualityFloor),
        (takes_work(candidate), Exclusion::Unavailable),
        (demand.is_untried(candidate), Exclusion::Failed),
    ];
    checks.into_iter().find(|(holds, _)| !holds).map(|(_, exclusion)| exclusion)
}

type Candidate<'a> = (DestinationOrd, &'a Destination, &'a DestinationState);

/// What a destination must satisfy.
struct Demand<'a> {
    request: &'a RoutingRequest,
    prediction: Option<&'a Prediction>,
    excluded: &'a [DestinationOrd],
}

impl Demand<'_> {
    fn is_met_by(&self, candidate: Candidate<'_>) -> bool {
        self.is_model(candidate)
            && self.is_offered(candidate)
            && self.fits(candidate)
            && self.is_placed(candidate)
            && self.is_good_enough(candidate)
            && takes_work(candidate)
            && self.is_untried(candidate)
    }

    fn is_model(&self, (_, destination, _): Candidate<'_>) -> bool {
        match &self.request.target {
            ModelTarget::Any => true,
            ModelTarget::Named(name) => destination.model == *name,
        }
    }

    fn is_offered(&self, (_, destination, _): Candidate<'_>) -> bool {
        destination.capabilities.offers(self.request.needs)
    }

    fn fits(&self, (_, destination, _): Candidate<'_>) -> bool {
        destination
            .context
            .is_none_or(|context| context >= self.request.longest_prompt + self.completion_cap())
    }

    fn is_placed(&self, (_, destination, _): Candidate<'_>) -> bool {
        self.request.constraints.placement.is_none_or(|wanted| destination.class == wanted)
    }

    fn is_good_enough(&self, (ord, ..): Candidate<'_>) -> bool {
        match (self.request.constraints.min_quality, self.prediction) {
            (Some(floor), Some(prediction)) => quality_at(prediction, ord) >= floor,
            _ => true,
        }
    }

    fn is_untried(&self, (ord, ..): Candidate<'_>) -> bool {
        !self.excluded.contains(&ord)
    }

    /// The cap on the completion, zero where there is none.
    fn completion_cap(&self) -> Tokens {
        self.request.max_completion_tokens.unwrap_or(Tokens::ZERO)
    }

    /// The first constraint that leaves nothing, in an unsatisfiable demand.
    fn unmet(&self, context: &RoutingContext) -> NoDestination {
        let mut left: Vec<Candidate<'_>> = context.iter().collect();
        let mut empties = |is_kept: &dyn Fn(Candidate<'_>) -> bool| {
            let before = left.clone();
            left.retain(|candidate| is_kept(*candidate));
            left.is_empty().then_some(before)
        };
        if empties(&|candidate| self.is_model(candidate)).is_some() {
            return NoDestination::UnknownModel { model: self.model() };
        }
        if let Some(before) = empties(&|candidate| self.is_offered(candidate)) {
            return NoDestination::MissingCapability { missing: self.nearly_offered(&before) };
        }
        if let Some(before) = empties(&|candidate| self.fits(candidate)) {
            let contexts = before.iter().filter_map(|(_, destination, _)| destination.context);
            return NoDestination::ContextTooSmall {
                prompt: self.request.longest_prompt,
                completion: self.completion_cap(),
                largest: contexts.fold(Tokens::ZERO, Tokens::max),
            };
        }
        if empties(&|candidate| self.is_placed(candidate)).is_some()
            && let Some(wanted) = self.request.constraints.placement
        {
            return NoDestination::Placement { wanted };
        }
        if let Some(before) = empties(&|candidate| self.is_good_enough(candidate))
            && let (Some(floor), Some(prediction)) = (self.request.constraints.min_quality, self.prediction)
        {
            let predicted = before.iter().map(|(ord, ..)| quality_at(prediction, *ord));
            return NoDestination::QualityFloor { floor, best: predicted.fold(Quality::ZERO, Quality::max) };
        }
        if let Some(before) = empties(&takes_work) {
            return unavailable(&before);
        }
        NoDestination::AllTried { tried: left.len() }
    }

    fn model(&self) -> Arc<str> {
        match &self.request.target {
            ModelTarget::Any => "any model".into(),
            ModelTarget::Named(name) => Arc::clone(name),
        }
    }

    /// What the candidate lacks that offers most of what is needed.
    fn nearly_offered(&self, candidates: &[Candidate<'_>]) -> Vec<&'static str> {
        let lacks = |d: &Destination| self.request.needs.missing_from(d.capabilities).collect::<Vec<_>>();
        candidates.iter().map(|(_, d, _)| lacks(d)).min_by_key(Vec::len).unwrap_or_default()
    }
}

fn quality_at(prediction: &Prediction, ord: DestinationOrd) -> Quality {
    prediction.quality.get(ord.idx()).copied().unwrap_or(Quality::ZERO)
}

fn takes_work((.., state): Candidate<'_>) -> bool {
    state.availability.takes_work()
}

fn unavailable(candidates: &[Candidate<'_>]) -> NoDestination {
    let count = |wanted| candidates.iter().filter(|(.., state)| state.availability == wanted).count();
    let returning = candidates.iter().filter(|(.., state)| state.availability.returns());
    NoDestination::Unavailable {
        down: count(Availability::Down),
        loading: count(Availability::Loading),
        draining: count(Availability::Draining),
        returning: returning.map(|(ord, ..)| *ord).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Capabilities, Constraints};
    use crate::routing::testing::{context, destination, named, prediction, request};

    /// a/small (edge), b/big (cloud, tools), c/big (cloud, small context).
    fn fleet() -> RoutingContext {
        let mut small = destination("a", "small");
        small.class = NodeClass::Edge;
        let mut big = destination("b", "big");
        big.capabilities = Capabilities::CHAT.with(Capabilities::TOOLS);
        let mut short = destination("c", "big");
        short.context = Some(Tokens(1_000.0));
        context(vec![small, big, short])
    }

    fn legal(request: &RoutingRequest, context: &RoutingContext) -> Result<Vec<u32>, NoDestination> {
        legal_set(request, Some(&prediction(&[0.4, 0.9, 0.8], &[100.0; 3])), context, &[])
            .map(|set| set.iter().map(|d| d.0).collect())
    }

    #[test]
    fn keeps_what_satisfies_every_constraint() {
        let fleet = fleet();
        assert_eq!(legal(&request(), &fleet), Ok(vec![0, 1, 2]));
        let named = RoutingRequest { target: named("big"), ..request() };
        assert_eq!(legal(&named, &fleet), Ok(vec![1, 2]));
        let long = RoutingRequest { max_completion_tokens: Some(Tokens(501.0)), ..named };
        assert_eq!(legal(&long, &fleet), Ok(vec![1]));
        let tools = RoutingRequest { needs: Capabilities::CHAT.with(Capabilities::TOOLS), ..request() };
        assert_eq!(legal(&tools, &fleet), Ok(vec![1]));
        let edge = Constraints { placement: Some(NodeClass::Edge), ..Constraints::default() };
        assert_eq!(legal(&RoutingRequest { constraints: edge, ..request() }, &fleet), Ok(vec![0]));
        let good = Constraints { min_quality: Some(Quality(0.8)), ..Constraints::default() };
        assert_eq!(legal(&RoutingRequest { constraints: good, ..request() }, &fleet), Ok(vec![1, 2]));
    }

    #[test]
    fn the_set_answers_for_single_destinations() {
        let set = legal_set(&request(), None, &fleet(), &[DestinationOrd(1)]).unwrap();
        assert_eq!(
            (set.len(), set.contains(DestinationOrd(1)), set.contains(DestinationOrd(2))),
            (2, false, true)
        );
        assert!(!set.contains(DestinationOrd(99)));
    }

    #[test]
    fn names_the_constraint_that_empties_the_set() {
        let mut fleet = fleet();
        let unknown = RoutingRequest { target: named("huge"), ..request() };
        assert_eq!(legal(&unknown, &fleet), Err(NoDestination::UnknownModel { model: "huge".into() }));
        let vision = RoutingRequest {
            needs: Capabilities::CHAT.with(Capabilities::TOOLS).with(Capabilities::VISION),
            ..request()
        };
        assert_eq!(legal(&vision, &fleet), Err(NoDestination::MissingCapability { missing: vec!["vision"] }));
        let cap = Some(Tokens(20.0));
        let long =
            RoutingRequest { longest_prompt: Tokens(9_000.25), max_completion_tokens: cap, ..request() };
        let too_small = legal(&long, &fleet).unwrap_err();
        assert_eq!(
            too_small.to_string(),
            "This model's maximum context length is 4096 tokens. However, your request has about 9001 tokens in the \
             prompt and asks for up to 20 in the completion (context_length_exceeded). Please shorten the prompt or \
             the completion."
        );
        let edge = Constraints { placement: Some(NodeClass::Edge), ..Constraints::default() };
        let edge_big = RoutingRequest { target: named("big"), constraints: edge, ..request() };
        assert_eq!(legal(&edge_big, &fleet), Err(NoDestination::Placement { wanted: NodeClass::Edge }));
        let floor = Constraints { min_quality: Some(Quality(0.95)), ..Constraints::default() };
        let perfect = RoutingRequest { constraints: floor, ..request() };
        let too_low = NoDestination::QualityFloor { floor: Quality(0.95), best: Quality(0.9) };
        assert_eq!(legal(&perfect, &fleet), Err(too_low));
        fleet.states[1].availability = Availability::Draining;
        fleet.states[2].availability = Availability::Down;
        let big = RoutingRequest { target: named("big"), ..request() };
        let unavailable = NoDestination::Unavailable { down: 1, loading: 0, draining: 1, returning: vec![] };
        assert_eq!(legal(&big, &fleet), Err(unavailable));
        fleet.states[1].availability = Availability::Cooling;
        fleet.states[2].availability = Availability::CircuitOpen;
        let returning = vec![DestinationOrd(1), DestinationOrd(2)];
        let unavailable = NoDestination::Unavailable { down: 0, loading: 0, draining: 0, returning };
        assert_eq!(legal(&big, &fleet), Err(unavailable));
        let tried = legal_set(&request(), None, &fleet, &[DestinationOrd(0)]);
        assert_eq!(tried, Err(NoDestination::AllTried { tried: 1 }));
    }

    #[test]
    fn a_context_that_is_not_known_has_no_limit() {
        let mut unknown = destination("b", "big");
        unknown.context = None;
        let fleet = context(vec![destination("a", "small"), unknown]);
        let cap = Some(Tokens(1e9));
        let long = RoutingRequest { longest_prompt: Tokens(1e9), max_completion_tokens: cap, ..request() };
        let set = legal_set(&long, None, &fleet, &[]).unwrap();
        assert_eq!(set.iter().collect::<Vec<_>>(), [DestinationOrd(1)]);
    }

    #[test]
    fn without_a_prediction_the_quality_floor_waits() {
        let floor = Constraints { min_quality: Some(Quality(0.95)), ..Constraints::default() };
        let request = RoutingRequest { constraints: floor, ..request() };
        assert_eq!(legal_set(&request, None, &fleet(), &[]).unwrap().len(), 3);
    }
}

//! A plan in the decision log: what was decided, and all it takes to decide it again.
//!
//! docs/DECISION_LOG.md documents every field; a test holds it to this file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::blob::{self, BlobError};
use super::solved::{Alternatives, Effort, SolvedPlan};
use crate::domain::{
    Destination, DestinationOrd, DestinationState, ObjectiveScales, QualitySource, TimeTerm, Weights,
};
use crate::planning::{PlanJob, PlanParams, Planned, SolveError, Solved, Waiting};
use crate::routing::{
    Exclusion, PolicyKind, PolicyParams, Problem, RoutingDecision, exclusion, for_kind, rng_for,
};

/// One plan, as a line of the log holds it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlanRecord {
    /// Its number, from 1 in each run of the router and after each change of the fleet.
    pub plan: u64,
    /// The policy that decided.
    pub policy: String,
    /// Models, normalisation and seed.
    pub params: PlanParams,
    /// ω of requests that bring none of their own.
    pub weights: Weights,
    /// Scales of objective mode `stationary`.
    pub scales: ObjectiveScales,
    /// Wall time of solving.
    pub solve_ms: f64,
    /// Times the search was told to go on.
    pub polls: u64,
    /// What came of it; `None` = no request had a destination.
    #[serde(flatten)]
    pub outcome: Option<Outcome>,
    /// Congestion prices that are not zero, J per second at ω_T = 1, by destination.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub price_per_s: BTreeMap<String, f64>,
    /// Those that were placed, in the order of the problem's rows.
    pub requests: Vec<PlacedRecord>,
    /// Those that had no destination.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub impossible: Vec<ImpossibleRecord>,
    /// Everything that was decided on (a [`PlanJob`]): base64 of gzip of JSON. `None` where the log keeps none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub situation: Option<String>,
}

/// What a policy came to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// What the time term measured.
    pub time: TimeTerm,
    /// J.
    pub objective: f64,
    /// Its terms; they sum to J.
    pub terms: BTreeMap<String, f64>,
    /// The terms before weights and normalisation.
    pub raw: RawRecord,
    /// A value that J is proven not to be below.
    pub lower_bound: Option<f64>,
    /// `(J − lower_bound) / |J|`.
    pub certified_gap: Option<f64>,
    /// Assignments scored.
    pub evaluations: u64,
    /// Rounds of the search.
    pub generations: u64,
    /// What a greedy choice request by request comes to in the same situation.
    pub greedy: Option<GreedyRecord>,
}

/// Q, C, E, T of a batch.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct RawRecord {
    /// Mean of `1 − q̂`.
    pub quality_loss: f64,
    /// US dollars.
    pub usd: f64,
    /// Joules.
    pub joules: f64,
    /// Until the last request is done.
    pub seconds: f64,
}

/// The rival of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GreedyRecord {
    /// J of its choice under the plan's objective.
    pub objective: f64,
    /// Its destinations, in the order of `requests`.
    pub destinations: Vec<String>,
}

/// A request that was placed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlacedRecord {
    /// Its `x-request-id`.
    pub id: String,
    /// Where it goes.
    pub destination: String,
    /// The next best place with all others as planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_up: Option<RunnerUp>,
    /// Where the quality prediction came from.
    pub quality_source: QualitySource,
    /// Time since its arrival.
    pub waited_s: f64,
    /// Destinations that were no choice, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub excluded: BTreeMap<String, Exclusion>,
    /// What is expected of it there.
    pub predicted: PredictedRecord,
}

/// The place a request would have gone to next.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunnerUp {
    /// Its id.
    pub destination: String,
    /// By how much J is larger with it.
    pub more_j: f64,
}

/// What a plan predicts of a request at its destination.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct PredictedRecord {
    /// q̂.
    pub quality: f64,
    /// Money (Eq. 2).
    pub usd: f64,
    /// Energy (Eq. 3).
    pub joules: f64,
    /// From departure to the last byte.
    pub seconds: f64,
    /// Prompt.
    pub prompt_tokens: f64,
    /// Of the prompt, expected in the destination's cache.
    pub cached_prompt_tokens: f64,
    /// Completion, all choices.
    pub completion_tokens: f64,
}

/// A request without a destination.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImpossibleRecord {
    /// Its `x-request-id`.
    pub id: String,
    /// The constraint that left none.
    pub reason: String,
}

/// Why a plan cannot be made again.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The log was written without situations.
    #[error("plan {0} has no `situation`: it was logged with `decision_log.situations: false`")]
    NoSituation(u64),
    /// The situation cannot be read.
    #[error("the situation of plan {plan} cannot be read: {source}")]
    Situation {
        /// Number of the plan.
        plan: u64,
        /// What is wrong.
        source: BlobError,
    },
    /// The policy is not known to this version.
    #[error("plan {plan} was made by policy {policy:?}, which this version does not know")]
    Policy {
        /// Number of the plan.
        plan: u64,
        /// Its name.
        policy: String,
    },
    /// The policy cannot decide on it.
    #[error("plan {plan} cannot be decided: {source}")]
    Solve {
        /// Number of the plan.
        plan: u64,
        /// Why.
        source: SolveError,
    },
}

impl PlanRecord {
    /// The record of a plan; `with_situation` = with all it takes to make it again.
    #[must_use]
    pub fn new(solved: &SolvedPlan, with_situation: bool) -> Self {
        let SolvedPlan { plan, job, policy, params, effort, took } = solved;
        let outcome = plan.solved.as_ref().map(|of| Outcome::new(of, &job.context.destinations));
        let places = plan.planned.iter().enumerate();
        let mut others = plan.solved.as_deref().map(Alternatives::of);
        Self {
            plan: plan.number,
            policy: (*policy).to_owned(),
            params: *params,
            weights: job.context.weights,
            scales: job.context.scales,
            solve_ms: took.as_secs_f64() * 1e3,
            polls: effort.polls,
            outcome,
            price_per_s: prices(job),
            requests: places
                .map(|(row, planned)| {
                    let runner_up = others.as_mut().and_then(|others| others.runner_up(row));
                    PlacedRecord::new(solved, (row, planned), runner_up)
                })
                .collect(),
            impossible: impossible(solved),
            situation: with_situation.then(|| blob::pack(job).ok()).flatten(),
        }
    }

    /// What was decided on.
    ///
    /// # Errors
    /// Where the log does not have it, or what it has cannot be read.
    pub fn job(&self) -> Result<PlanJob, RecordError> {
        let text = self.situation.as_ref().ok_or(RecordError::NoSituation(self.plan))?;
        blob::unpack(text).map_err(|source| RecordError::Situation { plan: self.plan, source })
    }

    /// Makes the plan again, the search stopped where it was.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn solve_again(&self) -> Result<SolvedPlan, RecordError> {
        let kind = self.policy_kind()?;
        let policy = for_kind(kind, &PolicyParams::default());
        let mut stop = Effort { polls: self.polls }.again();
        SolvedPlan::solve(Box::new(self.job()?), policy.as_ref(), self.params, &mut stop)
            .map_err(|source| RecordError::Solve { plan: self.plan, source })
    }

    /// The policy that decided.
    ///
    /// # Errors
    /// Where this version does not know it.
    pub fn policy_kind(&self) -> Result<PolicyKind, RecordError> {
        let unknown = || RecordError::Policy { plan: self.plan, policy: self.policy.clone() };
        PolicyKind::from_name(&self.policy).ok_or_else(unknown)
    }

    /// Whether `again` places every request where the record says, at the same J to the last bit.
    #[must_use]
    pub fn is_reproduced_by(&self, again: &SolvedPlan) -> bool {
        let objective = again.plan.solved.as_ref().map(|solved| solved.decision.objective.to_bits());
        self.is_placed_by(again)
            && objective == self.outcome.as_ref().map(|outcome| outcome.objective.to_bits())
    }

    /// Whether `again` places every request where the record says.
    #[must_use]
    pub fn is_placed_by(&self, again: &SolvedPlan) -> bool {
        let id = |d: DestinationOrd| again.job.context.destinations[d.idx()].id.as_str();
        let planned = &again.plan.planned;
        let is_same = |(placed, planned): (&PlacedRecord, &Planned)| {
            placed.id == *planned.request_id && placed.destination == id(planned.destination)
        };
        planned.len() == self.requests.len() && self.requests.iter().zip(planned).all(is_same)
    }
}

impl Outcome {
    fn new(solved: &Solved, destinations: &[Destination]) -> Self {
        let Solved { problem, decision, .. } = solved;
        Self {
            time: time_term(problem),
            objective: decision.objective,
            terms: decision.terms.named().map(|(name, term)| (name.to_owned(), term)).into(),
            raw: RawRecord::of(decision),
            lower_bound: decision.lower_bound,
            certified_gap: decision.certified_gap,
            evaluations: decision.evaluations,
            generations: decision.generations,
            greedy: GreedyRecord::of(solved, destinations),
        }
    }
}

impl RawRecord {
    fn of(decision: &RoutingDecision) -> Self {
        let raw = &decision.raw;
        let (usd, joules, seconds) = (raw.cost.0, raw.energy.0, raw.time.0);
        Self { quality_loss: raw.quality_loss, usd, joules, seconds }
    }
}

impl GreedyRecord {
    /// What `greedy` would have done.
    pub(super) fn of(
        Solved { problem, objective, .. }: &Solved,
        destinations: &[Destination],
    ) -> Option<Self> {
        let greedy = for_kind(PolicyKind::Greedy, &PolicyParams::default());
        let decision = greedy.route(problem, objective, &mut rng_for(0, 0), &mut || true).ok()?;
        let id = |d: &DestinationOrd| destinations[d.idx()].id.to_string();
        Some(Self {
            objective: decision.objective,
            destinations: decision.assignment.iter().map(id).collect(),
        })
    }
}

impl PlacedRecord {
    fn new(
        solved: &SolvedPlan,
        (row, planned): (usize, &Planned),
        runner_up: Option<(DestinationOrd, f64)>,
    ) -> Self {
        let destinations = &solved.job.context.destinations;
        let id = |d: DestinationOrd| destinations[d.idx()].id.to_string();
        let waiting = solved.waiting(&planned.request_id);
        Self {
            id: planned.request_id.to_string(),
            destination: id(planned.destination),
            runner_up: runner_up.map(|(d, more_j)| RunnerUp { destination: id(d), more_j }),
            quality_source: planned.source,
            waited_s: waiting.map_or(0.0, |waiting| waiting.waited.0),
            excluded: waiting.map(|waiting| exclusions(solved, waiting, row)).unwrap_or_default(),
            predicted: PredictedRecord::of(planned, waiting),
        }
    }
}

impl PredictedRecord {
    fn of(planned: &Planned, waiting: Option<&Waiting>) -> Self {
        let e = &planned.estimate;
        Self {
            quality: e.quality.0,
            usd: e.usd.0,
            joules: e.joules.0,
            seconds: e.completion.0,
            prompt_tokens: waiting.map_or(0.0, |waiting| waiting.request.prompt_tokens.0),
            cached_prompt_tokens: planned.cached.0,
            completion_tokens: planned.completion.0,
        }
    }
}

/// Why destinations were no choice for the request in `row`.
pub(super) fn exclusions(solved: &SolvedPlan, waiting: &Waiting, row: usize) -> BTreeMap<String, Exclusion> {
    let Some(problem) = solved.plan.solved.as_ref().map(|solved| &solved.problem) else {
        return BTreeMap::new();
    };
    let (request, context) = (&waiting.request, &solved.job.context);
    let why = |candidate: (DestinationOrd, &Destination, &DestinationState)| {
        let (d, destination, state) = candidate;
        let hard = exclusion(request, Some(&waiting.prediction), candidate, &waiting.excluded);
        let taken = state.inflight.max(state.load.outstanding());
        let passes_by = (waiting.takes_any_slot && taken >= destination.throughput.max_concurrency)
            || (waiting.takes_any_room && taken >= destination.max_inflight);
        let soft = || match request.constraints.deadline {
            _ if passes_by => Exclusion::Taken,
            Some(_) => Exclusion::Deadline,
            None => Exclusion::FinishTarget,
        };
        (!problem.is_legal(row, d)).then(|| hard.unwrap_or_else(soft))
    };
    let excluded = context.iter().filter_map(|candidate| Some((candidate.1.id.to_string(), why(candidate)?)));
    excluded.collect()
}

fn impossible(solved: &SolvedPlan) -> Vec<ImpossibleRecord> {
    let id_of = |ticket| solved.job.waiting.iter().find(|waiting| waiting.ticket == ticket);
    let refused = solved.plan.impossible.iter().filter_map(|(ticket, reason)| {
        let id = id_of(*ticket)?.request.id.to_string();
        Some(ImpossibleRecord { id, reason: reason.to_string() })
    });
    refused.collect()
}

fn prices(job: &PlanJob) -> BTreeMap<String, f64> {
    let priced = job.context.iter().filter(|(.., state)| state.price_per_s > 0.0);
    priced.map(|(_, destination, state)| (destination.id.to_string(), state.price_per_s)).collect()
}

fn time_term(problem: &Problem) -> TimeTerm {
    if problem.sum().is_some() { TimeTerm::Sum } else { TimeTerm::Makespan }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::decision::testing::{job, solved};

    fn written_and_read(plan: &SolvedPlan) -> PlanRecord {
        let line = serde_json::to_string(&PlanRecord::new(plan, true)).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn every_policy_is_reproduced_to_the_last_bit_wherever_it_was_stopped() {
        // Clusters are not part of a live batch.
        let kinds = PolicyKind::ALL.iter().filter(|kind| **kind != PolicyKind::Uniroute);
        for kind in kinds {
            for polls in [0, 1, 2, 3, 7, 20, 100] {
                let mut job = job(12);
                if matches!(kind, PolicyKind::CloudOnly | PolicyKind::EdgeOnly) {
                    job.waiting.truncate(1);
                }
                let plan = solved(job, *kind, polls);
                let record = written_and_read(&plan);
                let again = record.solve_again().unwrap();
                assert!(record.is_reproduced_by(&again), "{kind} {polls}");
                assert_eq!(again.effort, plan.effort, "{kind} {polls}");
                let decision = |plan: &SolvedPlan| plan.plan.solved.as_ref().unwrap().decision.clone();
                assert_eq!(decision(&again), decision(&plan), "{kind} {polls}");
            }
        }
    }

    #[test]
    fn where_a_search_is_stopped_matters() {
        let evaluations = |polls| {
            let plan = solved(job(12), PolicyKind::Memetic, polls);
            plan.plan.solved.unwrap().decision.evaluations
        };
        assert!(evaluations(0) < evaluations(3) && evaluations(3) < evaluations(30));
    }

    #[test]
    fn what_was_no_choice_is_said_with_its_reason() {
        let record = PlanRecord::new(&solved(job(6), PolicyKind::Memetic, 50), false);
        let excluded =
            |row: usize, d: u32| record.requests[row].excluded.get(&format!("node-{d}/model-{d}")).copied();
        assert_eq!(excluded(0, 3), Some(Exclusion::Unavailable));
        assert_eq!(excluded(0, 2), None);
        assert_eq!(excluded(1, 2), Some(Exclusion::QualityFloor));
        assert_eq!(excluded(4, 1), Some(Exclusion::Failed));
        assert!(record.situation.is_none());
        assert!(matches!(record.job(), Err(RecordError::NoSituation(42))));
        let runner_up = record.requests[0].runner_up.as_ref().unwrap();
        assert!(runner_up.more_j > 0.0 && runner_up.destination != record.requests[0].destination);
        let greedy = record.outcome.as_ref().unwrap().greedy.as_ref().unwrap();
        assert_eq!(greedy.destinations.len(), 6);
        assert!(greedy.objective >= record.outcome.as_ref().unwrap().objective);
        assert_eq!(record.price_per_s, BTreeMap::from([("node-0/model-0".to_owned(), 0.013)]));
    }

    #[test]
    fn a_request_without_a_destination_is_named_with_the_constraint() {
        let mut job = job(2);
        let request = std::sync::Arc::make_mut(&mut job.waiting[1].request);
        request.constraints.min_quality = Some(crate::units::Quality(0.99));
        let record = PlanRecord::new(&solved(job, PolicyKind::Greedy, 0), true);
        assert_eq!(record.requests.len(), 1);
        assert_eq!(record.impossible[0].id, "r1");
        assert!(record.impossible[0].reason.contains("0.99"), "{}", record.impossible[0].reason);
        assert!(record.solve_again().is_ok());
    }

    #[test]
    fn a_situation_that_was_tampered_with_is_refused() {
        let mut record = PlanRecord::new(&solved(job(2), PolicyKind::Greedy, 0), true);
        record.situation = Some("AAAA".to_owned());
        assert!(record.job().unwrap_err().to_string().contains("plan 42"));
        record.policy = "oracle".to_owned();
        assert!(record.solve_again().unwrap_err().to_string().contains("oracle"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn a_makespan_is_reproduced_too(n in 1..20_u32, polls in 0..40_u64) {
            let mut job = job(n);
            job.time = Some(TimeTerm::Makespan);
            let plan = solved(job, PolicyKind::Memetic, polls);
            let record = written_and_read(&plan);
            prop_assert!(record.is_reproduced_by(&record.solve_again().unwrap()));
        }
    }
}

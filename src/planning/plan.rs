//! One plan: the waiting set of an instant, solved against one immutable context.
//!
//! A [`PlanJob`] is everything the decision depends on; [`PlanJob::solve`] runs on the solver's thread
//! and is a function of (job, policy, seed, stop).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::messages::Ticket;
use super::predicting::Predicting;
use crate::domain::{
    CompletionModel, Destination, DestinationOrd, DestinationState, Prediction, QualitySource,
    RequestEstimate, RoutingContext, RoutingRequest, Work,
};
use crate::routing::{
    BatchItem, CostModels, LegalSet, NoDestination, Objective, ObjectiveMode, PolicyError, Problem,
    ProblemError, RoutingDecision, RoutingPolicy, TimeTerm, greedy_finish, legal_set, rng_for,
};
use crate::units::{Seconds, Tokens};

/// A request that waits to be placed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Waiting {
    /// Its identity inside the planner.
    pub ticket: Ticket,
    /// What routing knows of it.
    pub request: Arc<RoutingRequest>,
    /// The prediction to plan with.
    pub prediction: Arc<Prediction>,
    /// Destinations that failed it already.
    pub excluded: Vec<DestinationOrd>,
    /// Time since its arrival.
    pub waited: Seconds,
    /// Whether destinations without a free slot are no choice for it while another legal one has one.
    pub takes_any_slot: bool,
    /// Whether destinations that take no more requests are no choice while another legal one does.
    pub takes_any_room: bool,
}

/// What stays the same from plan to plan.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct PlanParams {
    /// Completion, time and energy models.
    pub costs: CostModels,
    /// How terms are normalised.
    pub objective: ObjectiveMode,
    /// Seed of the whole run; each plan derives its own from it and its number.
    pub seed: u64,
}

/// Everything one decision depends on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlanJob {
    /// Number of this plan, from 1.
    pub number: u64,
    /// When the set was taken.
    pub taken_at: Seconds,
    /// Requests routed before this plan (round robin continues there).
    pub first_request_number: u64,
    /// The set.
    pub waiting: Vec<Waiting>,
    /// Fleet state at `taken_at`.
    pub context: RoutingContext,
    /// How completion is predicted.
    pub completion: CompletionModel,
    /// The time term of these requests; `None` = that of the parameters.
    pub time: Option<TimeTerm>,
}

/// Where one request goes and what is expected of it there.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The request.
    pub ticket: Ticket,
    /// Its id.
    pub request_id: Arc<str>,
    /// Where it goes.
    pub destination: DestinationOrd,
    /// Predicted terms.
    pub estimate: RequestEstimate,
    /// Predicted completion length, all choices.
    pub completion: Tokens,
    /// Tokens of the prompt that the destination is expected to have cached of earlier requests.
    pub cached: Tokens,
    /// Predicted work, at the destination's figures.
    pub work: Work,
    /// Predicted time from departure to the first content.
    pub first_content: Seconds,
    /// Part of the completion time that is the network's.
    pub network: Seconds,
    /// When it would be done if it were alone in the batch and went where it costs least; known with time term `sum`.
    pub greedy_finish: Option<Seconds>,
    /// Where the quality prediction came from.
    pub source: QualitySource,
}

/// A solved job.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Number of the plan.
    pub number: u64,
    /// When its set was taken.
    pub taken_at: Seconds,
    /// One entry per placed request, in the order of the problem's rows.
    pub planned: Vec<Planned>,
    /// Requests without a legal destination, with the constraint that left none.
    pub impossible: Vec<(Ticket, NoDestination)>,
    /// What was solved and how; `None` when no request had a legal destination.
    pub solved: Option<Box<Solved>>,
}

/// The solved problem, kept for the decision record.
#[derive(Debug, Clone)]
pub struct Solved {
    /// The tables.
    pub problem: Problem,
    /// The objective they were judged by.
    pub objective: Objective,
    /// The policy's answer.
    pub decision: RoutingDecision,
}

/// Why a job could not be decided.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SolveError {
    /// The batch and the fleet do not make a problem.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// The policy cannot do it.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl PlanJob {
    /// Decides. Deterministic for a given `policy`, `params` and number of `stop` polls.
    ///
    /// # Errors
    /// See [`SolveError`].
    pub fn solve(
        &self,
        policy: &dyn RoutingPolicy,
        params: &PlanParams,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Plan, SolveError> {
        let busy = self.taken_up_to(|d| d.throughput.max_concurrency);
        let full = self.taken_up_to(|d| d.max_inflight);
        match self.decide((&busy, &full), policy, params, stop) {
            // It may have nothing to choose from where there is room (`cloud_only`, say): then where there is not.
            Err(SolveError::Policy(_)) if !(busy.is_empty() && full.is_empty()) => {
                self.decide((&[], &[]), policy, params, stop)
            }
            outcome => outcome,
        }
    }

    /// Decides where whoever has lost patience passes by the destinations `(busy, full)`.
    fn decide(
        &self,
        (busy, full): (&[DestinationOrd], &[DestinationOrd]),
        policy: &dyn RoutingPolicy,
        params: &PlanParams,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Plan, SolveError> {
        let mut impossible = Vec::new();
        let mut placeable: Vec<(&Waiting, LegalSet)> = Vec::with_capacity(self.waiting.len());
        for waiting in &self.waiting {
            match self.legal_for(waiting, busy, full) {
                Ok(legal) => placeable.push((waiting, legal)),
                Err(reason) => impossible.push((waiting.ticket, reason)),
            }
        }
        let mut plan = Plan {
            number: self.number,
            taken_at: self.taken_at,
            planned: Vec::new(),
            impossible,
            solved: None,
        };
        if placeable.is_empty() {
            return Ok(plan);
        }
        let items: Vec<BatchItem<'_>> = placeable
            .iter()
            .map(|(w, legal)| BatchItem {
                request: &w.request,
                prediction: &w.prediction,
                legal,
                waited: w.waited,
            })
            .collect();
        let costs = CostModels { time: self.time.unwrap_or(params.costs.time), ..params.costs };
        let problem = Problem::build(&items, &self.context, &costs)?.numbered_from(self.first_request_number);
        let objective = Objective::for_mode(&problem, params.objective, &self.context.scales);
        let mut rng = rng_for(params.seed, self.number);
        let decision = policy.route(&problem, &objective, &mut rng, stop)?;
        let waiting = placeable.iter().map(|(waiting, _)| *waiting);
        let mut predicting = Predicting::new(&self.context, self.completion);
        plan.planned = waiting
            .zip(decision.assignment.iter().enumerate())
            .map(|(waiting, (row, d))| {
                let greedy_finish = greedy_finish(&problem, &objective, row);
                predicting.planned(waiting, *d, (&problem, row), greedy_finish)
            })
            .collect();
        plan.solved = Some(Box::new(Solved { problem, objective, decision }));
        Ok(plan)
    }

    /// Destinations with as many requests in flight as `places` says they have.
    fn taken_up_to(&self, places: impl Fn(&Destination) -> u32) -> Vec<DestinationOrd> {
        let taken = |state: &DestinationState| state.inflight.max(state.load.outstanding());
        let is_taken = |d: &Destination, state: &DestinationState| taken(state) >= places(d);
        self.context.iter().filter(|(_, d, state)| is_taken(d, state)).map(|(ord, ..)| ord).collect()
    }

    fn legal_for(
        &self,
        waiting: &Waiting,
        busy: &[DestinationOrd],
        full: &[DestinationOrd],
    ) -> Result<LegalSet, NoDestination> {
        let without = |excluded: &[DestinationOrd]| {
            legal_set(&waiting.request, Some(&waiting.prediction), &self.context, excluded)
        };
        let passed_by = [(waiting.takes_any_slot, busy), (waiting.takes_any_room, full)];
        for (passes_by, taken) in passed_by {
            if passes_by && !taken.is_empty() {
                let others = without(&[&waiting.excluded, taken].concat());
                if others.is_ok() {
                    return others;
                }
            }
        }
        without(&waiting.excluded)
    }
}

//! Logged plans decided again: as they were, or with other weights, another policy or another fleet.
//!
//! Every plan is decided in the situation that was logged. What other decisions would have changed in the situations that
//! came later (other queues, other prices) is not followed, and what is summed up are predictions: see [`report::CAVEAT`].

mod fleet;
pub mod report;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::record::{PlacedRecord, PlanRecord, RecordError};
use super::solved::{Effort, SolvedPlan};
use crate::domain::{CompletionModel, Destination, DestinationOrd, Weights};
use crate::planning::{PlanJob, PlanParams, Planned};
use crate::routing::{Evaluator, PolicyKind, PolicyParams, for_kind};
use crate::units::Seconds;

use report::{Report, Sums};

/// Assignments that a search may score where the log has none of it: the plan was another policy's.
const EVALUATIONS_MAX: u64 = 20_000;
/// Plans that are named one by one.
const NAMED_MAX: usize = 10;

/// What is to be other than it was; nothing, by default.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// The policy.
    pub policy: Option<PolicyKind>,
    /// Weights of requests that bring none of their own.
    pub weights: Option<Weights>,
    /// Models, normalisation and seed.
    pub params: Option<PlanParams>,
    /// How completion is predicted.
    pub completion: Option<CompletionModel>,
    /// `window.finish_target_ms`; the outer `None` = as it was.
    pub finish_target: Option<Option<Seconds>>,
    /// Destinations, as configured.
    pub fleet: Option<Arc<[Destination]>>,
}

/// Plans decided again, and what that comes to.
#[derive(Debug)]
pub struct Replay {
    change: Change,
    /// By request; the last plan that placed it counts.
    rows: BTreeMap<String, Row>,
    n_plans: u64,
    n_reproduced: u64,
    n_same_places: u64,
    /// The first of those that came out otherwise.
    differing: Vec<u64>,
    objective: f64,
    /// J of the logged assignments under the changed objective, where they are still legal.
    objective_of_logged: f64,
    n_objectives: u64,
}

/// One request in both decisions.
#[derive(Debug, Clone)]
struct Row {
    logged: Placed,
    /// `None` = it would have had no destination.
    replayed: Option<Placed>,
    /// Whether the endpoint has answered it.
    actual: Option<Actual>,
}

/// What is predicted of a request where it goes.
#[derive(Debug, Clone)]
struct Placed {
    destination: Arc<str>,
    quality: f64,
    usd: f64,
    joules: f64,
    seconds: f64,
}

/// What a request came to.
#[derive(Debug, Clone, Copy)]
struct Actual {
    usd: f64,
    joules: f64,
    seconds: f64,
}

impl Replay {
    /// Nothing decided yet.
    #[must_use]
    pub fn new(change: Change) -> Self {
        Self {
            change,
            rows: BTreeMap::new(),
            n_plans: 0,
            n_reproduced: 0,
            n_same_places: 0,
            differing: Vec::new(),
            objective: 0.0,
            objective_of_logged: 0.0,
            n_objectives: 0,
        }
    }

    /// Decides one plan again.
    ///
    /// # Errors
    /// Where the record does not say enough, or the policy cannot decide.
    pub fn plan(&mut self, record: &PlanRecord) -> Result<(), RecordError> {
        let job = record.job()?;
        self.plan_of(record, job)
    }

    /// Decides a plan again that is at hand.
    ///
    /// # Errors
    /// Where the policy cannot decide.
    pub fn solved(&mut self, solved: &SolvedPlan) -> Result<(), RecordError> {
        self.plan_of(&PlanRecord::new(solved, false), (*solved.job).clone())
    }

    fn plan_of(&mut self, record: &PlanRecord, job: PlanJob) -> Result<(), RecordError> {
        let again = self.decide(record, job)?;
        self.n_plans += 1;
        self.n_reproduced += u64::from(record.is_reproduced_by(&again));
        if record.is_placed_by(&again) {
            self.n_same_places += 1;
        } else if self.differing.len() < NAMED_MAX {
            self.differing.push(record.plan);
        }
        self.count_objective(record, &again);
        let destinations = &again.job.context.destinations;
        let mut planned: BTreeMap<&str, &Planned> =
            again.plan.planned.iter().map(|planned| (&*planned.request_id, planned)).collect();
        for placed in &record.requests {
            let replayed = planned.remove(placed.id.as_str());
            let row = Row {
                logged: placed.into(),
                replayed: replayed.map(|planned| Placed::of(planned, destinations)),
                actual: None,
            };
            self.rows.insert(placed.id.clone(), row);
        }
        Ok(())
    }

    /// A request is over; `(usd, joules, seconds)` is what it came to.
    pub fn finished(&mut self, id: &str, (usd, joules, seconds): (f64, f64, f64)) {
        if let Some(row) = self.rows.get_mut(id) {
            row.actual = Some(Actual { usd, joules, seconds });
        }
    }

    /// What it comes to.
    #[must_use]
    pub fn report(&self) -> Report {
        let logged = self.rows.values().map(|row| &row.logged);
        let replayed = self.rows.values().filter_map(|row| row.replayed.as_ref());
        let moved = |row: &&Row| {
            row.replayed.as_ref().is_some_and(|replayed| replayed.destination != row.logged.destination)
        };
        let per_plan = |sum: f64| (self.n_objectives > 0).then(|| sum / self.n_objectives as f64);
        Report {
            n_plans: self.n_plans,
            n_reproduced: self.n_reproduced,
            n_same_places: self.n_same_places,
            differing: self.differing.clone(),
            n_moved: self.rows.values().filter(moved).count(),
            n_impossible: self.rows.values().filter(|row| row.replayed.is_none()).count(),
            logged: Sums::of(logged, per_plan(self.objective_of_logged)),
            replayed: Sums::of(replayed, per_plan(self.objective)),
            actual: report::ActualSums::of(self.rows.values().filter_map(|row| row.actual.as_ref())),
        }
    }

    fn decide(&self, record: &PlanRecord, job: PlanJob) -> Result<SolvedPlan, RecordError> {
        let was = record.policy_kind()?;
        let kind = self.change.policy.unwrap_or(was);
        let mut job = self.changed(job);
        if !kind.pays_prices() {
            job.context.states.iter_mut().for_each(|state| state.price_per_s = 0.0);
        }
        let mut params = self.change.params.unwrap_or(record.params);
        params.costs = kind.models(params.costs);
        let mut of_policy = PolicyParams::default();
        let mut again = Effort { polls: record.polls }.again();
        let mut never = || false;
        let stop: &mut dyn FnMut() -> bool = if kind == was {
            &mut again
        } else {
            of_policy.memetic.evaluations_max = Some(EVALUATIONS_MAX);
            &mut never
        };
        let policy = for_kind(kind, &of_policy);
        SolvedPlan::solve(Box::new(job), policy.as_ref(), params, stop)
            .map_err(|source| RecordError::Solve { plan: record.plan, source })
    }

    fn changed(&self, mut job: PlanJob) -> PlanJob {
        let change = &self.change;
        if let Some(weights) = change.weights {
            job.context.weights = weights;
        }
        if let Some(completion) = change.completion {
            job.completion = completion;
        }
        if let Some(finish_target) = change.finish_target {
            job.context.finish_target = finish_target;
        }
        if let Some(fleet) = &change.fleet {
            fleet::refit(&mut job, fleet);
        }
        job
    }

    /// J of what is decided now, and of what was decided, under the objective of now.
    fn count_objective(&mut self, record: &PlanRecord, again: &SolvedPlan) {
        let Some(solved) = &again.plan.solved else { return };
        let destinations = &again.job.context.destinations;
        let position = |id: &str| destinations.iter().position(|d| d.id.as_str() == id);
        let by_id: BTreeMap<&str, &PlacedRecord> =
            record.requests.iter().map(|placed| (placed.id.as_str(), placed)).collect();
        let mut was = Vec::with_capacity(again.plan.planned.len());
        for (row, planned) in again.plan.planned.iter().enumerate() {
            let placed = by_id.get(&*planned.request_id);
            let at =
                placed.and_then(|placed| position(&placed.destination)).and_then(|at| u32::try_from(at).ok());
            match at.map(DestinationOrd).filter(|d| solved.problem.is_legal(row, *d)) {
                Some(d) => was.push(d),
                None => return,
            }
        }
        self.n_objectives += 1;
        self.objective += solved.decision.objective;
        self.objective_of_logged += Evaluator::new(&solved.problem, &solved.objective).objective(&was);
    }
}

impl Placed {
    fn of(planned: &Planned, destinations: &[Destination]) -> Self {
        let e = &planned.estimate;
        Self {
            destination: destinations[planned.destination.idx()].id.as_str().into(),
            quality: e.quality.0,
            usd: e.usd.0,
            joules: e.joules.0,
            seconds: e.completion.0,
        }
    }
}

impl From<&PlacedRecord> for Placed {
    fn from(placed: &PlacedRecord) -> Self {
        let p = &placed.predicted;
        Self {
            destination: placed.destination.as_str().into(),
            quality: p.quality,
            usd: p.usd,
            joules: p.joules,
            seconds: p.seconds,
        }
    }
}

#[cfg(test)]
mod tests;

//! A decision as the admin API shows it: who went where and why, with the problem it was solved from.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::decisions::SolvedPlan;
use crate::domain::{Destination, DestinationOrd, TimeTerm};
use crate::planning::{Planned, Solved};
use crate::problem_file;
use crate::routing::Problem;
use crate::telemetry::decision_log::DecisionLog;

/// A plan, for people and tools to read.
#[derive(Debug, Serialize)]
pub struct DecisionRecord<'a> {
    request_id: &'a str,
    batch: u64,
    policy: &'static str,
    solve_ms: f64,
    placements: Vec<PlacementRecord<'a>>,
    #[serde(flatten)]
    outcome: Option<OutcomeRecord>,
}

#[derive(Debug, Serialize)]
struct PlacementRecord<'a> {
    request_id: &'a str,
    destination: &'a str,
    runner_up: Option<&'a str>,
    quality_source: &'static str,
    predicted: PredictedRecord,
}

/// Where plans are written down, with what it takes to.
#[derive(Debug)]
pub(super) struct PlanLog {
    pub(super) log: DecisionLog,
    pub(super) destinations: Arc<[Destination]>,
}

impl PlanLog {
    /// Writes a plan down, if plans are.
    pub(super) fn plan(&self, solved: &Arc<SolvedPlan>) {
        if self.log.is_on() {
            let (solved, destinations) = (Arc::clone(solved), Arc::clone(&self.destinations));
            self.log.record(move || PlanEntry { solved, destinations });
        }
    }
}

/// What a [`PlanLine`] is made of, on its way to the log's thread.
struct PlanEntry {
    solved: Arc<SolvedPlan>,
    destinations: Arc<[Destination]>,
}

impl Serialize for PlanEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        PlanLine::new(&self.solved, &self.destinations).serialize(serializer)
    }
}

/// A plan in the decision log, one line of it.
#[derive(Debug, Serialize)]
struct PlanLine<'a> {
    kind: &'static str,
    plan: u64,
    policy: &'static str,
    solve_ms: f64,
    /// What the time term measured.
    time: Option<&'static str>,
    objective: Option<f64>,
    greedy_objective: Option<f64>,
    terms: Option<BTreeMap<&'static str, f64>>,
    certified_gap: Option<f64>,
    /// Congestion prices, J per second at ω_T = 1, where there are any.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    price_per_s: BTreeMap<&'a str, f64>,
    evaluations: Option<u64>,
    requests: Vec<RequestLine<'a>>,
}

#[derive(Debug, Serialize)]
struct RequestLine<'a> {
    id: &'a str,
    destination: &'a str,
    quality_source: &'static str,
    predicted: PredictedRecord,
}

#[derive(Debug, Serialize)]
struct PredictedRecord {
    quality: f64,
    usd: f64,
    joules: f64,
    seconds: f64,
    cached_prompt_tokens: f64,
    completion_tokens: f64,
}

#[derive(Debug, Serialize)]
struct OutcomeRecord {
    /// J under the bounds of `problem`.
    objective: f64,
    terms: BTreeMap<&'static str, f64>,
    lower_bound: Option<f64>,
    certified_gap: Option<f64>,
    greedy_objective: Option<f64>,
    evaluations: u64,
    /// The batch as a problem file, for `cema-router solve`.
    problem: Box<RawValue>,
}

impl<'a> DecisionRecord<'a> {
    /// The record of the plan that placed `request_id`.
    ///
    /// # Errors
    /// When the problem cannot be written.
    pub fn new(
        request_id: &'a str,
        solved: &'a SolvedPlan,
        destinations: &'a [Destination],
    ) -> serde_json::Result<Self> {
        let id = |ord: DestinationOrd| destinations[ord.idx()].id.as_str();
        let place = |p: &'a Planned| PlacementRecord {
            request_id: &p.request_id,
            destination: id(p.destination),
            runner_up: solved.runner_up(&p.request_id).map(id),
            quality_source: p.source.as_str(),
            predicted: PredictedRecord::of(p),
        };
        let plan = &solved.plan;
        let outcome = plan.solved.as_ref().map(|s| OutcomeRecord::new(plan.number, s)).transpose()?;
        Ok(Self {
            request_id,
            batch: plan.number,
            policy: solved.policy,
            solve_ms: solved.took.as_secs_f64() * 1e3,
            placements: plan.planned.iter().map(place).collect(),
            outcome,
        })
    }
}

impl<'a> PlanLine<'a> {
    fn new(solved: &'a SolvedPlan, destinations: &'a [Destination]) -> Self {
        let (problem, decision) = solved.plan.solved.as_ref().map(|s| (&s.problem, &s.decision)).unzip();
        let request = |p: &'a Planned| RequestLine {
            id: &p.request_id,
            destination: destinations[p.destination.idx()].id.as_str(),
            quality_source: p.source.as_str(),
            predicted: PredictedRecord::of(p),
        };
        Self {
            kind: "plan",
            plan: solved.plan.number,
            policy: solved.policy,
            solve_ms: solved.took.as_secs_f64() * 1e3,
            time: problem.map(|problem| time_term(problem).as_str()),
            objective: decision.map(|d| d.objective),
            greedy_objective: decision.and_then(|d| d.greedy_objective),
            terms: decision.map(|d| d.terms.named().into()),
            certified_gap: decision.and_then(|d| d.certified_gap),
            price_per_s: problem.map(prices).unwrap_or_default(),
            evaluations: decision.map(|d| d.evaluations),
            requests: solved.plan.planned.iter().map(request).collect(),
        }
    }
}

fn time_term(problem: &Problem) -> TimeTerm {
    if problem.sum().is_some() { TimeTerm::Sum } else { TimeTerm::Makespan }
}

/// The destinations that have a congestion price.
fn prices(problem: &Problem) -> BTreeMap<&str, f64> {
    let prices = problem.sum().into_iter().flat_map(|sum| &sum.price_per_s);
    let priced = problem.destinations().iter().zip(prices).filter(|(_, price)| **price > 0.0);
    priced.map(|(load, price)| (load.id.as_str(), *price)).collect()
}

impl PredictedRecord {
    fn of(planned: &Planned) -> Self {
        let e = &planned.estimate;
        Self {
            quality: e.quality.0,
            usd: e.usd.0,
            joules: e.joules.0,
            seconds: e.completion.0,
            cached_prompt_tokens: planned.cached.0,
            completion_tokens: planned.completion.0,
        }
    }
}

impl OutcomeRecord {
    fn new(number: u64, solved: &Solved) -> serde_json::Result<Self> {
        let Solved { problem, objective, decision } = solved;
        let problem = problem_file::to_json(&format!("batch-{number}"), problem, objective)?;
        Ok(Self {
            objective: decision.objective,
            terms: decision.terms.named().into(),
            lower_bound: decision.lower_bound,
            certified_gap: decision.certified_gap,
            greedy_objective: decision.greedy_objective,
            evaluations: decision.evaluations,
            problem: RawValue::from_string(problem)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::planning::Plan;
    use crate::routing::testing::{context, random_sum_problem};
    use crate::routing::{Objective, PolicyKind, PolicyParams, ProblemTables, for_kind, rng_for};
    use crate::units::Seconds;

    /// A plan's line in the log, of a problem of two requests and three destinations by time term `sum`.
    fn line(change: impl FnOnce(&mut ProblemTables)) -> serde_json::Value {
        let mut tables = random_sum_problem(1, 2, 3).tables().clone();
        change(&mut tables);
        let problem = Problem::new(tables).unwrap();
        let objective = Objective::stationary(&problem, &context(Vec::new()).scales);
        let mut params = PolicyParams::default();
        params.memetic.evaluations_max = Some(1_000);
        let policy = for_kind(PolicyKind::Memetic, &params);
        let decision = policy.route(&problem, &objective, &mut rng_for(1, 0), &mut || false).unwrap();
        let solved = Some(Box::new(Solved { problem, objective, decision }));
        let (planned, impossible) = (Vec::new(), Vec::new());
        let plan = Plan { number: 1, taken_at: Seconds::ZERO, planned, impossible, solved };
        let solved = SolvedPlan { plan, policy: "memetic", took: Duration::ZERO };
        serde_json::to_value(PlanLine::new(&solved, &[])).unwrap()
    }

    #[test]
    fn a_plan_line_has_the_time_term_the_prices_and_the_greedy_choice() {
        let line = line(|tables| tables.sum.as_mut().unwrap().price_per_s = vec![0.0, 0.5, 0.0]);
        assert_eq!((&line["time"], &line["price_per_s"]), (&"sum".into(), &serde_json::json!({"d1": 0.5})));
        assert!(line["greedy_objective"].as_f64() >= line["objective"].as_f64(), "{line}");
        assert!(line["greedy_objective"].is_number(), "{line}");
    }

    #[test]
    fn without_prices_a_plan_line_has_none() {
        let makespan = line(|tables| tables.sum = None);
        assert_eq!((&makespan["time"], makespan.get("price_per_s")), (&"makespan".into(), None));
        let free = line(|tables| tables.sum.as_mut().unwrap().price_per_s = vec![0.0; 3]);
        assert_eq!((&free["time"], free.get("price_per_s")), (&"sum".into(), None));
    }
}

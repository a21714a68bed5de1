//! Why one request went where it went.
//!
//! Every candidate with what was predicted of the request there and what its choice would have done to J with all others
//! as planned, term by term; what excluded the others; what was outstanding where; and what a greedy choice would have
//! been.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::value::RawValue;

use super::record::{GreedyRecord, exclusions};
use super::solved::{Alternatives, SolvedPlan};
use crate::domain::{
    Availability, Destination, DestinationOrd, DestinationState, QualitySource, TimeTerm, Weights,
};
use crate::planning::{Planned, Solved};
use crate::problem_file;
use crate::routing::{Evaluator, Exclusion, ObjectiveTerms};

/// The reasons for one placement.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    /// The request.
    pub request_id: String,
    /// Number of the plan that placed it last.
    pub batch: u64,
    /// The policy that decided.
    pub policy: &'static str,
    /// Wall time of solving.
    pub solve_ms: f64,
    /// Requests planned together.
    pub batch_size: usize,
    /// Where it went.
    pub destination: String,
    /// The next best with all others as planned.
    pub runner_up: Option<String>,
    /// Where its destination is among the candidates by J, from 1: above 1 it made room for others.
    pub rank: usize,
    /// One sentence.
    pub reason: String,
    /// Where a greedy choice, request by request, would have sent it.
    pub greedy: Option<String>,
    /// ω of this request.
    pub weights: Weights,
    /// What the time term measures.
    pub time: TimeTerm,
    /// Where the quality prediction came from.
    pub quality_source: QualitySource,
    /// Time since its arrival.
    pub waited_s: f64,
    /// Every destination: candidates by J, then those that were none.
    pub candidates: Vec<Candidate>,
    /// J of the plan, by the objective it was made under.
    pub objective: f64,
    /// Terms of the plan's J.
    pub terms: BTreeMap<&'static str, f64>,
    /// A value that the plan's J is proven not to be below.
    pub lower_bound: Option<f64>,
    /// `(J − lower_bound) / |J|`.
    pub certified_gap: Option<f64>,
    /// J of the greedy choice for the whole batch.
    pub greedy_objective: Option<f64>,
    /// Assignments scored.
    pub evaluations: u64,
    /// All placements of the plan.
    pub placements: Vec<Placed>,
    /// The batch as a problem file, for `cema-router solve`.
    pub problem: Box<RawValue>,
}

/// A placement of the plan.
#[derive(Debug, Clone, Serialize)]
pub struct Placed {
    /// The request.
    pub request_id: String,
    /// Where it goes.
    pub destination: String,
    /// The next best with all others as planned.
    pub runner_up: Option<String>,
    /// Where its quality prediction came from.
    pub quality_source: QualitySource,
    /// What is predicted of it there.
    pub predicted: Predicted,
}

/// What is predicted of a request at its destination.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Predicted {
    /// q̂.
    pub quality: f64,
    /// Money (Eq. 2).
    pub usd: f64,
    /// Energy (Eq. 3).
    pub joules: f64,
    /// From departure to the last byte.
    pub seconds: f64,
    /// Of the prompt, expected in the destination's cache.
    pub cached_prompt_tokens: f64,
    /// Completion, all choices.
    pub completion_tokens: f64,
}

/// One destination as the plan saw it.
#[derive(Debug, Clone, Serialize)]
pub struct Candidate {
    /// Its id.
    pub destination: String,
    /// Whether the request went there.
    pub is_chosen: bool,
    /// Why it was no choice.
    pub excluded: Option<Exclusion>,
    /// q̂.
    pub quality: f64,
    /// Money (Eq. 2).
    pub usd: f64,
    /// Energy (Eq. 3).
    pub joules: f64,
    /// Completion, all choices.
    pub completion_tokens: f64,
    /// Alone on the endpoint.
    pub service_s: f64,
    /// From departure to the last byte, all others as planned; `None` where it is no choice.
    pub finish_s: Option<f64>,
    /// By how much J would be larger than planned.
    pub more_j: Option<f64>,
    /// The same by terms of J.
    pub more_j_by_term: BTreeMap<&'static str, f64>,
    /// What was there at that moment.
    pub contention: Contention,
}

/// How taken a destination was.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Contention {
    /// Whether it took work.
    pub state: Availability,
    /// Requests of this router outstanding there.
    pub inflight: u32,
    /// Requests in its slots, those of others included.
    pub running: u32,
    /// Requests behind its slots.
    pub queued: u32,
    /// Requests that it runs at once.
    pub slots: u32,
    /// Work dispatched and not finished.
    pub backlog_s: f64,
    /// Congestion price, J per second at ω_T = 1.
    pub price_per_s: f64,
    /// Requests of the plan that go there.
    pub planned: usize,
}

impl Explanation {
    /// The reasons of `request_id`'s placement in `plan`; `None` where the plan did not place it.
    #[must_use]
    pub fn new(plan: &SolvedPlan, request_id: &str) -> Option<Self> {
        let row = plan.row(request_id)?;
        let (solved, waiting) = (plan.plan.solved.as_ref()?, plan.waiting(request_id)?);
        let destinations = &plan.job.context.destinations;
        let id = |d: DestinationOrd| destinations[d.idx()].id.to_string();
        let chosen = solved.decision.assignment[row];
        let mut candidates = candidates(plan, solved, row);
        candidates.sort_by(|a, b| {
            let key = |candidate: &Candidate| candidate.more_j.unwrap_or(f64::INFINITY);
            key(a).total_cmp(&key(b))
        });
        let rank = candidates.iter().position(|candidate| candidate.is_chosen).map_or(0, |at| at + 1);
        let greedy = GreedyRecord::of(solved, destinations);
        let mut explanation = Self {
            request_id: request_id.to_owned(),
            batch: plan.plan.number,
            policy: plan.policy,
            solve_ms: plan.took.as_secs_f64() * 1e3,
            batch_size: plan.plan.planned.len(),
            destination: id(chosen),
            runner_up: plan.runner_up(request_id).map(|(d, _)| id(d)),
            rank,
            reason: String::new(),
            greedy: greedy.as_ref().and_then(|greedy| greedy.destinations.get(row).cloned()),
            weights: solved.problem.weights(row),
            time: if solved.problem.sum().is_some() { TimeTerm::Sum } else { TimeTerm::Makespan },
            quality_source: waiting.prediction.source,
            waited_s: waiting.waited.0,
            candidates,
            objective: solved.decision.objective,
            terms: solved.decision.terms.named().into(),
            lower_bound: solved.decision.lower_bound,
            certified_gap: solved.decision.certified_gap,
            greedy_objective: greedy.map(|greedy| greedy.objective),
            evaluations: solved.decision.evaluations,
            placements: placements(plan),
            problem: problem(plan, solved)?,
        };
        explanation.reason = explanation.one_sentence();
        Some(explanation)
    }

    fn one_sentence(&self) -> String {
        let to = &self.destination;
        let n_excluded = self.candidates.iter().filter(|c| c.excluded.is_some()).count();
        if n_excluded + 1 == self.candidates.len() {
            return format!("{to} was the only destination that could serve it");
        }
        let rival = self.candidates.iter().find(|c| !c.is_chosen && c.excluded.is_none());
        let Some(rival) = rival else { return format!("{to} was chosen") };
        let more_j = rival.more_j.unwrap_or(0.0);
        if self.rank > 1 && more_j < 0.0 {
            return format!(
                "{} by itself would have been better by {:.4} of J, but policy {} chose {to}",
                rival.destination, -more_j, self.policy
            );
        }
        let mut terms: Vec<_> = rival.more_j_by_term.iter().filter(|(_, more)| **more > 0.0).collect();
        terms.sort_by(|a, b| b.1.total_cmp(a.1));
        let why: Vec<_> = terms.iter().take(2).map(|(name, more)| format!("{name} (+{more:.4})")).collect();
        if why.is_empty() {
            return format!("{to} is as good as {}", rival.destination);
        }
        let (rival, why) = (&rival.destination, why.join(" and "));
        format!("{to} beats {rival} by {more_j:.4} of J: at {rival} it would be more for {why}")
    }

    /// The same for people, in lines of at most 120 columns or so.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_to(&mut text);
        text
    }

    fn write_to(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "request {}: {}", self.request_id, self.reason)?;
        let w = &self.weights;
        writeln!(
            out,
            "plan {} by {}, {} request(s) together, solved in {:.1} ms; waited {:.3} s; weights quality {:.2} \
             cost {:.2} energy {:.2} time {:.2}; quality from {}",
            self.batch,
            self.policy,
            self.batch_size,
            self.solve_ms,
            self.waited_s,
            w.quality,
            w.cost,
            w.energy,
            w.time,
            self.quality_source
        )?;
        let widest = self.candidates.iter().map(|c| c.destination.len()).max().unwrap_or(0).max(11);
        writeln!(
            out,
            "\n  {:widest$}  {:>7} {:>10} {:>9} {:>8} {:>8} {:>9}  {:>5} {:>8} {:>7}  difference in J by term",
            "destination",
            "quality",
            "USD",
            "J (pred.)",
            "alone s",
            "done s",
            "J more",
            "busy",
            "backlog",
            "price"
        )?;
        for candidate in &self.candidates {
            candidate.write_to(out, widest)?;
        }
        let optional =
            |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.4}"));
        writeln!(
            out,
            "\nplan: J {:.4}, lower bound {}, certified gap {}; greedy would have sent it to {} (J of its plan {})",
            self.objective,
            optional(self.lower_bound),
            optional(self.certified_gap),
            self.greedy.as_deref().unwrap_or("-"),
            optional(self.greedy_objective)
        )?;
        writeln!(
            out,
            "All figures are the router's predictions at that moment (its model), not measurements."
        )
    }
}

impl Candidate {
    fn write_to(&self, out: &mut String, widest: usize) -> std::fmt::Result {
        let optional = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
        };
        let c = &self.contention;
        let why = match self.excluded {
            Some(Exclusion::Unavailable) => format!("no choice: {}", c.state),
            Some(exclusion) => format!("no choice: {exclusion}"),
            None => {
                let terms = self.more_j_by_term.iter().filter(|(_, more)| more.abs() > 5e-5);
                terms.map(|(name, more)| format!("{name} {more:+.4}")).collect::<Vec<_>>().join(" ")
            }
        };
        writeln!(
            out,
            "{} {:widest$}  {:>7.3} {:>10.6} {:>9.1} {:>8.2} {:>8} {:>9}  {:>5} {:>8.2} {:>7.3}  {why}",
            if self.is_chosen { '>' } else { ' ' },
            self.destination,
            self.quality,
            self.usd,
            self.joules,
            self.service_s,
            optional(self.finish_s, 2),
            optional(self.more_j, 4),
            format!("{}/{}", c.running + c.queued, c.slots),
            c.backlog_s,
            c.price_per_s
        )
    }
}

fn candidates(plan: &SolvedPlan, solved: &Solved, row: usize) -> Vec<Candidate> {
    let Solved { problem, objective, decision } = solved;
    let planned = &plan.plan.planned[row];
    let (request, waiting) = (plan.request(&planned.request_id), plan.waiting(&planned.request_id));
    let excluded = waiting.map(|waiting| exclusions(plan, waiting, row)).unwrap_or_default();
    let mut evaluator = Evaluator::new(problem, objective);
    let mut assignment = decision.assignment.clone();
    let look = |(d, destination, state): (DestinationOrd, &Destination, &DestinationState)| {
        let excluded = excluded.get(destination.id.as_str()).copied();
        let is_candidate = excluded.is_none();
        assignment[row] = d;
        let more = is_candidate.then(|| difference(evaluator.terms(&assignment), &decision.terms));
        let finish = is_candidate.then(|| evaluator.completions(&assignment)[row].0 * state.lateness);
        let more_j = is_candidate.then(|| evaluator.objective(&assignment) - decision.objective);
        let predicted = waiting.map(|waiting| waiting.prediction.completion_tokens[d.idx()]);
        let completion = request.zip(predicted).map_or(0.0, |(request, tokens)| request.completion(tokens).0);
        Candidate {
            destination: destination.id.to_string(),
            is_chosen: decision.assignment[row] == d,
            excluded,
            quality: problem.quality(row, d).0,
            usd: problem.cost(row, d).0,
            joules: problem.energy(row, d).0,
            completion_tokens: completion,
            service_s: problem.service(row, d).0,
            finish_s: finish,
            more_j,
            more_j_by_term: more.unwrap_or_default(),
            contention: Contention {
                state: state.availability,
                inflight: state.inflight,
                running: state.load.running,
                queued: state.load.queued,
                slots: destination.throughput.max_concurrency,
                backlog_s: state.backlog.0,
                price_per_s: state.price_per_s,
                planned: decision.assignment.iter().filter(|to| **to == d).count(),
            },
        }
    };
    plan.job.context.iter().map(look).collect()
}

fn difference(terms: ObjectiveTerms, from: &ObjectiveTerms) -> BTreeMap<&'static str, f64> {
    let pairs = terms.named().into_iter().zip(from.named());
    pairs.map(|((name, term), (_, from))| (name, term - from)).collect()
}

fn placements(plan: &SolvedPlan) -> Vec<Placed> {
    let destinations = &plan.job.context.destinations;
    let id = |d: DestinationOrd| destinations[d.idx()].id.to_string();
    let mut others = plan.plan.solved.as_deref().map(Alternatives::of);
    let place = |(row, planned): (usize, &Planned)| {
        let e = &planned.estimate;
        Placed {
            request_id: planned.request_id.to_string(),
            destination: id(planned.destination),
            runner_up: others.as_mut().and_then(|others| others.runner_up(row)).map(|(d, _)| id(d)),
            quality_source: planned.source,
            predicted: Predicted {
                quality: e.quality.0,
                usd: e.usd.0,
                joules: e.joules.0,
                seconds: e.completion.0,
                cached_prompt_tokens: planned.cached.0,
                completion_tokens: planned.completion.0,
            },
        }
    };
    plan.plan.planned.iter().enumerate().map(place).collect()
}

fn problem(plan: &SolvedPlan, solved: &Solved) -> Option<Box<RawValue>> {
    let name = format!("batch-{}", plan.plan.number);
    let text = problem_file::to_json(&name, &solved.problem, &solved.objective).ok()?;
    RawValue::from_string(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::testing::{job, solved};
    use crate::routing::PolicyKind;

    #[test]
    fn every_destination_is_listed_and_the_terms_sum_to_the_difference_in_j() {
        let plan = solved(job(6), PolicyKind::Memetic, 200);
        let explanation = Explanation::new(&plan, "r1").unwrap();
        assert_eq!(explanation.candidates.len(), 4);
        assert_eq!(explanation.candidates.iter().filter(|c| c.is_chosen).count(), 1);
        for candidate in &explanation.candidates {
            match (candidate.more_j, candidate.excluded) {
                (Some(more_j), None) => {
                    let sum: f64 = candidate.more_j_by_term.values().sum();
                    assert!((sum - more_j).abs() < 1e-9, "{candidate:?}");
                    assert!(candidate.finish_s.unwrap() > 0.0);
                    if candidate.is_chosen {
                        assert!(more_j.abs() < 1e-12);
                    }
                }
                (None, Some(_)) => assert!(candidate.more_j_by_term.is_empty()),
                other => panic!("{other:?}"),
            }
        }
        let busy = explanation.candidates.iter().find(|c| c.destination == "node-0/model-0").unwrap();
        assert_eq!((busy.contention.running, busy.contention.slots), (3, 4));
        let text = explanation.to_text();
        assert!(text.contains("no choice: down") && text.contains("no choice: quality_floor"), "{text}");
        assert!(text.contains("greedy would have sent it to"), "{text}");
        assert!(text.contains("predictions"), "{text}");
    }

    #[test]
    fn a_request_of_another_plan_has_no_explanation() {
        assert!(Explanation::new(&solved(job(2), PolicyKind::Greedy, 0), "r9").is_none());
    }

    #[test]
    fn an_only_choice_is_called_one() {
        let mut job = job(1);
        job.context.states[1].availability = Availability::Cooling;
        job.context.states[2].availability = Availability::Draining;
        let explanation = Explanation::new(&solved(job, PolicyKind::Greedy, 0), "r0").unwrap();
        assert!(explanation.reason.contains("only destination"), "{}", explanation.reason);
    }
}

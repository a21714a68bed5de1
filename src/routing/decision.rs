//! What a policy answers.

use crate::domain::DestinationOrd;
use crate::routing::evaluator::{Evaluator, ObjectiveTerms, RawTerms};
use crate::routing::objective::Objective;
use crate::routing::problem::Problem;

/// An assignment with everything a record of it needs. J is relative to the objective it was made under.
#[derive(Debug, Clone, PartialEq)]
pub struct RoutingDecision {
    /// x: the destination of each request, R entries, all legal.
    pub assignment: Vec<DestinationOrd>,
    /// J of the assignment.
    pub objective: f64,
    /// Q, C, E, T of the assignment.
    pub raw: RawTerms,
    /// What each term adds to J.
    pub terms: ObjectiveTerms,
    /// A value proven not above the least possible J, where the policy has one.
    pub lower_bound: Option<f64>,
    /// `(J − lower_bound) / |J|`, where the policy has a bound; 0 if proven best.
    pub certified_gap: Option<f64>,
    /// Assignments scored, whole or by the delta of a move.
    pub evaluations: u64,
    /// Generations (or rounds of the search) completed.
    pub generations: u64,
    /// J of the greedy choice request by request, where a search began with it.
    pub greedy_objective: Option<f64>,
}

/// Effort and proof that come with an assignment.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SearchRecord {
    /// A value proven not above the least possible J.
    pub lower_bound: Option<f64>,
    /// Assignments scored, whole or by the delta of a move.
    pub evaluations: u64,
    /// Generations completed.
    pub generations: u64,
    /// J of the greedy choice request by request, where a search began with it.
    pub greedy_objective: Option<f64>,
}

impl RoutingDecision {
    /// Scores `assignment` and joins what the search recorded.
    #[must_use]
    pub fn new(
        problem: &Problem,
        objective: &Objective,
        assignment: Vec<DestinationOrd>,
        record: SearchRecord,
    ) -> Self {
        let mut evaluator = Evaluator::new(problem, objective);
        let value = evaluator.objective(&assignment);
        // Rounding may put a tight bound a hair above J.
        let lower_bound = record.lower_bound.map(|bound| bound.min(value));
        let certified_gap = lower_bound.map(|bound| {
            if value - bound > 0.0 { (value - bound) / value.abs().max(f64::MIN_POSITIVE) } else { 0.0 }
        });
        Self {
            objective: value,
            raw: evaluator.raw(&assignment),
            terms: evaluator.terms(&assignment),
            lower_bound,
            certified_gap,
            evaluations: record.evaluations,
            generations: record.generations,
            greedy_objective: record.greedy_objective,
            assignment,
        }
    }
}

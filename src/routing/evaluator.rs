//! The BatchEvaluator: raw terms, J and completion times of one assignment (Eq. 2–5), computed afresh.
//!
//! Searches use incremental deltas; tests hold those against this evaluator.

use crate::domain::DestinationOrd;
use crate::routing::completion::{Makespan, completions};
use crate::routing::decision::RequestEstimate;
use crate::routing::objective::Objective;
use crate::routing::problem::Problem;
use crate::units::{Joules, Seconds, Usd};

/// Q, C, E, T of an assignment before normalisation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RawTerms {
    /// Mean quality loss, `1 − q̂`.
    pub quality_loss: f64,
    /// Money of the batch.
    pub cost: Usd,
    /// Energy of the batch.
    pub energy: Joules,
    /// Batch completion time.
    pub time: Seconds,
}

/// What each term adds to J: weighted, normalised, lower bounds taken off. They sum to J.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ObjectiveTerms {
    /// Quality loss.
    pub quality: f64,
    /// Money.
    pub cost: f64,
    /// Energy.
    pub energy: f64,
    /// Completion time.
    pub time: f64,
    /// The backlog term of mode `stationary`; 0 otherwise.
    pub backlog: f64,
}

impl ObjectiveTerms {
    /// Every term by its name in metrics and records.
    #[must_use]
    pub fn named(&self) -> [(&'static str, f64); 5] {
        [
            ("quality", self.quality),
            ("cost", self.cost),
            ("energy", self.energy),
            ("time", self.time),
            ("backlog", self.backlog),
        ]
    }

    /// J.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.quality + self.cost + self.energy + self.time + self.backlog
    }
}

/// Scores assignments (R destinations, all legal) of one problem under one objective.
#[derive(Debug, Clone)]
pub struct Evaluator<'a> {
    problem: &'a Problem,
    objective: &'a Objective,
    makespan: Makespan,
}

impl<'a> Evaluator<'a> {
    /// An evaluator with room for the problem's sums.
    #[must_use]
    pub fn new(problem: &'a Problem, objective: &'a Objective) -> Self {
        Self { problem, objective, makespan: Makespan::new(problem) }
    }

    /// Q, C, E, T.
    pub fn raw(&mut self, assignment: &[DestinationOrd]) -> RawTerms {
        let mut raw = RawTerms {
            quality_loss: 0.0,
            cost: Usd::ZERO,
            energy: Joules::ZERO,
            time: Seconds(self.makespan.of(self.problem, assignment)),
        };
        let (m, tables) = (self.problem.n_destinations(), self.problem.tables());
        for (r, d) in assignment.iter().enumerate() {
            let cell = r * m + d.idx();
            raw.quality_loss += tables.quality_loss[cell];
            raw.cost.0 += tables.cost_usd[cell];
            raw.energy.0 += tables.energy_j[cell];
        }
        raw.quality_loss /= assignment.len() as f64;
        raw
    }

    /// J.
    pub fn objective(&mut self, assignment: &[DestinationOrd]) -> f64 {
        let m = self.problem.n_destinations();
        let cells = assignment.iter().enumerate().map(|(r, d)| r * m + d.idx());
        let separable: f64 = cells.map(|cell| self.objective.separable()[cell]).sum();
        let time_s = self.makespan.of(self.problem, assignment);
        separable + self.objective.time_weight_per_s() * time_s + self.objective.constant()
    }

    /// What each term adds to J.
    pub fn terms(&mut self, assignment: &[DestinationOrd]) -> ObjectiveTerms {
        let (n, bounds) = (assignment.len() as f64, self.objective.bounds());
        let (mean, w) = (self.objective.mean_weights(), self.objective.time_weight_per_s());
        let mut terms = ObjectiveTerms {
            quality: -mean.quality * bounds.quality.offset(),
            cost: -mean.cost * bounds.cost.offset(),
            energy: -mean.energy * bounds.energy.offset(),
            time: w * self.makespan.of(self.problem, assignment) - mean.time * bounds.time.offset(),
            backlog: 0.0,
        };
        for (r, d) in assignment.iter().enumerate() {
            let weights = self.problem.weights(r);
            let loss = 1.0 - self.problem.quality(r, *d).get();
            terms.quality += weights.quality * loss * bounds.quality.inverse() / n;
            terms.cost += weights.cost * self.problem.cost(r, *d).get() * bounds.cost.inverse();
            terms.energy += weights.energy * self.problem.energy(r, *d).get() * bounds.energy.inverse();
            if self.objective.has_backlog_term() {
                let load = self.problem.destination(*d);
                let work_s = self.problem.service(r, *d).get() / load.batch_speedup;
                terms.backlog += w * load.backlog_s * work_s;
            }
        }
        terms
    }

    /// Predicted completion time of every request, in arrival order (Eq. 4).
    #[must_use]
    pub fn completions(&self, assignment: &[DestinationOrd]) -> Vec<Seconds> {
        completions(self.problem, assignment)
    }

    /// What the decision predicts for every request.
    #[must_use]
    pub fn estimates(&self, assignment: &[DestinationOrd]) -> Vec<RequestEstimate> {
        let estimate = |((r, d), completion): ((usize, &DestinationOrd), Seconds)| RequestEstimate {
            quality: self.problem.quality(r, *d),
            usd: self.problem.cost(r, *d),
            joules: self.problem.energy(r, *d),
            service: self.problem.service(r, *d),
            completion,
        };
        assignment.iter().enumerate().zip(self.completions(assignment)).map(estimate).collect()
    }
}

//! The BatchEvaluator: raw terms, J and completion times of one assignment (Eq. 2–5), computed afresh.
//!
//! Searches use incremental deltas; tests hold those against this evaluator.

use crate::domain::DestinationOrd;
use crate::routing::completion::timeline::Timeline;
use crate::routing::completion::{Makespan, completions};
use crate::routing::objective::{Objective, network_s};
use crate::routing::problem::{Problem, SumTables};
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
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ObjectiveTerms {
    /// Quality loss.
    pub quality: f64,
    /// Money.
    pub cost: f64,
    /// Energy.
    pub energy: f64,
    /// Completion time.
    pub time: f64,
    /// The backlog term of mode `stationary` with a makespan; 0 otherwise.
    pub backlog: f64,
    /// Delay of those who run beside; time term `sum` only.
    pub externality: f64,
    /// Congestion prices; time term `sum` only.
    pub price: f64,
}

impl ObjectiveTerms {
    /// Every term by its name in metrics and records.
    #[must_use]
    pub fn named(&self) -> [(&'static str, f64); 7] {
        [
            ("quality", self.quality),
            ("cost", self.cost),
            ("energy", self.energy),
            ("time", self.time),
            ("backlog", self.backlog),
            ("externality", self.externality),
            ("price", self.price),
        ]
    }

    /// J.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.named().iter().map(|(_, term)| term).sum()
    }
}

/// Scores assignments (R destinations, all legal) of one problem under one objective.
#[derive(Debug, Clone)]
pub struct Evaluator<'a> {
    problem: &'a Problem,
    objective: &'a Objective,
    makespan: Makespan,
    /// What is at each destination, with the requests of an assignment so far.
    timelines: Vec<Timeline>,
}

impl<'a> Evaluator<'a> {
    /// An evaluator; its room for sums is used again for every assignment.
    #[must_use]
    pub fn new(problem: &'a Problem, objective: &'a Objective) -> Self {
        Self { problem, objective, makespan: Makespan::default(), timelines: Vec::new() }
    }

    /// Q, C, E, T.
    pub fn raw(&mut self, assignment: &[DestinationOrd]) -> RawTerms {
        let mut raw = RawTerms {
            quality_loss: 0.0,
            cost: Usd::ZERO,
            energy: Joules::ZERO,
            time: Seconds(self.time_s(assignment)),
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
        separable + self.coupled(assignment) + self.objective.constant()
    }

    /// What the requests in `rows`, ascending, add to J by being served at `d` together, beside their separable parts; 0
    /// where time is the makespan.
    pub fn coupled_at(&self, d: DestinationOrd, rows: impl Iterator<Item = usize>) -> f64 {
        let (Some(sum), Some(term)) = (self.problem.sum(), self.objective.sum()) else { return 0.0 };
        let mut timeline = sum.timelines[d.idx()];
        let mut added = 0.0;
        for r in rows {
            added += term.added(r, sum.work(r, d), &timeline);
            timeline.push(sum.work(r, d));
        }
        added
    }

    /// The part of J that couples requests at a destination.
    fn coupled(&mut self, assignment: &[DestinationOrd]) -> f64 {
        let (Some(sum), Some(term)) = (self.problem.sum(), self.objective.sum()) else {
            let time_s = self.makespan.of(self.problem, assignment);
            return self.objective.time_weight_per_s() * time_s + self.queueing(assignment);
        };
        let mut added = 0.0;
        self.serve(sum, assignment, |r, d, timeline| added += term.added(r, sum.work(r, d), timeline));
        added
    }

    /// Serves the requests in the order of the rows; `on` sees each with the timeline that it is to be served on next.
    fn serve(
        &mut self,
        sum: &SumTables,
        assignment: &[DestinationOrd],
        mut on: impl FnMut(usize, DestinationOrd, &Timeline),
    ) {
        self.timelines.clone_from(&sum.timelines);
        for (r, d) in assignment.iter().enumerate() {
            let timeline = &mut self.timelines[d.idx()];
            on(r, *d, timeline);
            timeline.push(sum.work(r, *d));
        }
    }

    /// Batch completion time by the model in force, seconds.
    fn time_s(&mut self, assignment: &[DestinationOrd]) -> f64 {
        let problem = self.problem;
        let Some(sum) = problem.sum() else { return self.makespan.of(problem, assignment) };
        let mut last_s = 0.0_f64;
        self.serve(sum, assignment, |r, d, timeline| {
            let finish = timeline.predict(sum.work(r, d)).finish;
            last_s = last_s.max(network_s(problem, sum, r, d) + finish.0);
        });
        last_s
    }

    /// What the requests of the batch cost each other by queueing at the same destinations: per destination the
    /// price times Σ over pairs of the product of their work.
    fn queueing(&self, assignment: &[DestinationOrd]) -> f64 {
        let price = self.objective.pair_price_per_s2();
        if price <= 0.0 {
            return 0.0;
        }
        let mut sums = vec![(0.0, 0.0); self.problem.n_destinations()];
        for (r, d) in assignment.iter().enumerate() {
            let work_s = self.problem.service(r, *d).get() / self.problem.destination(*d).batch_speedup;
            let (sum, of_squares) = &mut sums[d.idx()];
            *sum += work_s;
            *of_squares += work_s * work_s;
        }
        price * sums.iter().map(|(sum, of_squares)| (sum * sum - of_squares) / 2.0).sum::<f64>()
    }

    /// What each term adds to J.
    pub fn terms(&mut self, assignment: &[DestinationOrd]) -> ObjectiveTerms {
        let (n, bounds) = (assignment.len() as f64, self.objective.bounds());
        let (mean, w) = (self.objective.mean_weights(), self.objective.time_weight_per_s());
        let makespan_s = if w > 0.0 { self.makespan.of(self.problem, assignment) } else { 0.0 };
        let mut terms = ObjectiveTerms {
            quality: -mean.quality * bounds.quality.offset(),
            cost: -mean.cost * bounds.cost.offset(),
            energy: -mean.energy * bounds.energy.offset(),
            time: w * makespan_s - mean.time * bounds.time.offset(),
            backlog: self.queueing(assignment),
            ..ObjectiveTerms::default()
        };
        if let (Some(sum), Some(term)) = (self.problem.sum(), self.objective.sum()) {
            let problem = self.problem;
            self.serve(sum, assignment, |r, d, timeline| {
                let parts = term.parts(problem, sum, (r, d), timeline);
                terms.time += parts.finish;
                terms.externality += parts.externality;
                terms.price += parts.price;
            });
        }
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

    /// Predicted completion time of every request, in the order of the rows.
    #[must_use]
    pub fn completions(&self, assignment: &[DestinationOrd]) -> Vec<Seconds> {
        completions(self.problem, assignment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{DestinationId, Weights};
    use crate::routing::check::{CheckError, check};
    use crate::routing::decision::{RoutingDecision, SearchRecord};
    use crate::routing::{Bounds, DestinationLoad, ProblemTables, TermRange};

    /// Three requests, two destinations: d0 with speed-up 2, 1 s of backlog and 0.1 s of network; d1 serial,
    /// idle, 0.2 s of network.
    fn problem() -> Problem {
        let load = |id, backlog_s, batch_speedup, network_s| DestinationLoad {
            id: DestinationId::from_text(id),
            class: None,
            backlog_s,
            batch_speedup,
            network_s,
            inflight: 0,
            max_concurrency: 1,
            cap: None,
        };
        Problem::new(ProblemTables {
            quality_loss: vec![0.1, 0.4, 0.2, 0.5, 0.3, 0.6],
            cost_usd: vec![3.0, 1.0, 3.0, 1.0, 4.0, 2.0],
            energy_j: vec![10.0, 30.0, 10.0, 30.0, 20.0, 40.0],
            service_s: vec![1.0, 2.0, 4.0, 5.0, 2.0, 3.0],
            transfer_s: vec![0.0; 6],
            legal: vec![true; 6],
            length_tokens: vec![1.0, 3.0, 2.0],
            destinations: vec![load("d0", 1.0, 2.0, 0.1), load("d1", 0.0, 1.0, 0.2)],
            weights: vec![Weights { quality: 0.4, cost: 0.3, energy: 0.2, time: 0.1 }; 3],
            first_request_number: 0,
            clusters: None,
            sum: None,
        })
        .unwrap()
    }

    fn bounds() -> Bounds {
        let range = |min, max| TermRange { min, max };
        Bounds {
            quality: range(0.2, 0.5),
            cost: range(4.0, 10.0),
            energy: range(40.0, 100.0),
            time: range(2.1, 10.2),
        }
    }

    const D0: DestinationOrd = DestinationOrd(0);
    const D1: DestinationOrd = DestinationOrd(1);

    #[test]
    fn golden_values_of_equations_2_to_5() {
        let problem = problem();
        let objective = Objective::with_bounds(&problem, bounds());
        let mut evaluator = Evaluator::new(&problem, &objective);
        let x = [D0, D0, D1];
        let raw = evaluator.raw(&x);
        // Q = (0.1 + 0.2 + 0.6) / 3; C = 3 + 3 + 2; E = 10 + 10 + 40.
        assert!((raw.quality_loss - 0.3).abs() < 1e-12);
        assert!((raw.cost.get() - 8.0).abs() < 1e-12);
        assert!((raw.energy.get() - 60.0).abs() < 1e-12);
        // d0: 0.1 + max(4, 1 + (1 + 4) / 2) = 4.1; d1: 0.2 + max(3, 3) = 3.2.
        assert!((raw.time.get() - 4.1).abs() < 1e-12);
        // J = .4·(.1/.3) + .3·(4/6) + .2·(20/60) + .1·(2/8.1).
        let want = 0.4 / 3.0 + 0.2 + 0.2 / 3.0 + 0.1 * 2.0 / 8.1;
        assert!((evaluator.objective(&x) - want).abs() < 1e-12);
        let terms = evaluator.terms(&x);
        assert!((terms.quality - 0.4 / 3.0).abs() < 1e-12);
        assert!((terms.cost - 0.2).abs() < 1e-12);
        assert!((terms.energy - 0.2 / 3.0).abs() < 1e-12);
        assert!((terms.time - 0.1 * 2.0 / 8.1).abs() < 1e-12);
        assert!(terms.backlog.abs() < 1e-12);
    }

    #[test]
    fn golden_completions_of_equation_4() {
        let problem = problem();
        let objective = Objective::with_bounds(&problem, bounds());
        let times = Evaluator::new(&problem, &objective).completions(&[D0, D0, D0]);
        // Cumulative 1, 5, 7 at speed-up 2 behind 1 s: 1.5, 3.5, 4.5; the second runs 4 s itself.
        for (time, want) in times.iter().zip([0.1 + 1.5, 0.1 + 4.0, 0.1 + 4.5]) {
            assert!((time.get() - want).abs() < 1e-12);
        }
    }

    #[test]
    fn the_backlog_term_charges_work_behind_a_queue() {
        let problem = problem();
        let objective = Objective::with_bounds_and_backlog_term(&problem, bounds());
        // d0 has 1 s of backlog: w · 1 · (1 + 4) / 2, and one request queues behind the other: w · (1/2) · (4/2).
        // d1 has neither.
        let terms = Evaluator::new(&problem, &objective).terms(&[D0, D0, D1]);
        assert!((terms.backlog - 0.1 / 8.1 * (2.5 + 1.0)).abs() < 1e-12);
    }

    #[test]
    fn a_term_without_range_counts_nothing() {
        let problem = problem();
        let flat = Bounds { cost: TermRange { min: 4.0, max: 4.0 }, ..bounds() };
        let terms = Evaluator::new(&problem, &Objective::with_bounds(&problem, flat)).terms(&[D0, D0, D1]);
        assert!(terms.cost.abs() < 1e-12);
    }

    #[test]
    fn the_checker_notices_wrong_numbers_and_illegal_places() {
        let problem = problem();
        let objective = Objective::with_bounds(&problem, bounds());
        let good = RoutingDecision::new(&problem, &objective, vec![D0, D0, D1], SearchRecord::default());
        assert_eq!(check(&problem, &objective, &good), Ok(()));
        let short = RoutingDecision { assignment: vec![D0, D0], ..good.clone() };
        assert!(check(&problem, &objective, &short).is_err());
        let outside = RoutingDecision { assignment: vec![D0, D0, DestinationOrd(2)], ..good.clone() };
        assert!(check(&problem, &objective, &outside).is_err());
        let mut tables = problem.tables().clone();
        tables.destinations[0].cap = Some(1);
        let capped = Problem::new(tables).unwrap();
        let over = CheckError::OverCap { destination: D0, got: 2, cap: 1 };
        assert_eq!(check(&capped, &objective, &good), Err(over));
        let flattering = RoutingDecision { objective: good.objective - 1e-3, ..good.clone() };
        assert!(check(&problem, &objective, &flattering).is_err());
        let bold = RoutingDecision { lower_bound: Some(good.objective + 1e-3), ..good };
        assert!(check(&problem, &objective, &bold).is_err());
    }
}

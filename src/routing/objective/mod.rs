//! The objective J (Eq. 5) over terms normalised by fixed bounds (Eq. 6).
//!
//! `J = Σ_r a[r, x_r] + w · max T_d + c0`: quality, money and energy are separable over requests, so they
//! are folded into one table `a`; the completion term couples requests at a destination. With weights per
//! request, row r of `a` uses ω of r, and the completion weight is their mean.
//!
//! With time term `sum` there is no makespan (w = 0); what takes its place is in [`SumTerm`].

mod bounds;
mod sum;

pub use bounds::{Bounds, RANGE_MIN, TermRange};
pub use sum::{SumParts, SumTerm};

pub(in crate::routing) use sum::network_s;

use crate::domain::{DestinationOrd, ObjectiveScales, Weights};
use crate::routing::params::ObjectiveMode;
use crate::routing::problem::Problem;

/// J of one batch, with the bounds in force. A bare J is comparable only under the same bounds.
#[derive(Debug, Clone)]
pub struct Objective {
    bounds: Bounds,
    has_backlog_term: bool,
    mean_weights: Weights,
    separable: Vec<f64>,
    time_weight_per_s: f64,
    sum: Option<SumTerm>,
    constant: f64,
}

impl Objective {
    /// Mode `stationary`: fixed scales, so that weights mean the same from window to window.
    ///
    /// Quality is divided by its scale, money and energy by R scales (they are batch sums), completion by
    /// its scale; a backlog term `ω_T · B_d/(1 s) · (s_rd / k_d) / T_ref` joins the separable part, since a
    /// makespan alone does not see work queued behind a destination that is not the last to finish. Work queued
    /// behind other work of the same batch costs the same: see [`Objective::pair_price_per_s2`]. With time term
    /// `sum` the scale of time is R scales, as the term is a sum, and the backlog term is off.
    #[must_use]
    pub fn stationary(problem: &Problem, scales: &ObjectiveScales) -> Self {
        Self::build(problem, Bounds::stationary(problem, scales), true)
    }

    /// Mode `batch`: ideal point and payoff-table nadir of this batch.
    #[must_use]
    pub fn batch(problem: &Problem) -> Self {
        Self::build(problem, Bounds::of_batch(problem), false)
    }

    /// Bounds chosen by the caller, as in a problem file.
    #[must_use]
    pub fn with_bounds(problem: &Problem, bounds: Bounds) -> Self {
        Self::build(problem, bounds, false)
    }

    /// Bounds chosen by the caller, with the backlog term of mode `stationary`.
    #[must_use]
    pub fn with_bounds_and_backlog_term(problem: &Problem, bounds: Bounds) -> Self {
        Self::build(problem, bounds, true)
    }

    /// The objective of a configured mode.
    ///
    /// `population` bounds exist only inside `memetic_paper`, generation by generation; its answer is
    /// reported under the bounds of mode `batch`.
    #[must_use]
    pub fn for_mode(problem: &Problem, mode: ObjectiveMode, scales: &ObjectiveScales) -> Self {
        match mode {
            ObjectiveMode::Stationary => Self::stationary(problem, scales),
            ObjectiveMode::Batch | ObjectiveMode::Population => Self::batch(problem),
        }
    }

    /// The bounds in force.
    #[must_use]
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Whether the backlog term is part of J.
    #[must_use]
    pub fn has_backlog_term(&self) -> bool {
        self.has_backlog_term
    }

    /// Mean ω over the batch.
    #[must_use]
    pub fn mean_weights(&self) -> Weights {
        self.mean_weights
    }

    /// Table `a`, R × M, row-major; infinite where illegal.
    #[must_use]
    pub fn separable(&self) -> &[f64] {
        &self.separable
    }

    /// The time term `sum`; `None` where time is the makespan.
    #[must_use]
    pub fn sum(&self) -> Option<&SumTerm> {
        self.sum.as_ref()
    }

    /// `w`: J per second of batch completion time; 0 with time term `sum`.
    #[must_use]
    pub fn time_weight_per_s(&self) -> f64 {
        self.time_weight_per_s
    }

    /// J per second of one request's work and second of another's at the same destination; 0 without a backlog
    /// term, whose price for work behind work this is too. Without it a batch would pile up at whichever
    /// destination has the least backlog.
    #[must_use]
    pub fn pair_price_per_s2(&self) -> f64 {
        if self.has_backlog_term { self.time_weight_per_s } else { 0.0 }
    }

    /// `c0`: what the lower bounds take off J.
    #[must_use]
    pub fn constant(&self) -> f64 {
        self.constant
    }

    fn build(problem: &Problem, bounds: Bounds, has_backlog_term: bool) -> Self {
        let (n, m) = (problem.n_requests(), problem.n_destinations());
        let tables = problem.tables();
        let mean_weights = mean(&tables.weights);
        let sum = tables.sum.as_ref().map(|sum| (sum, SumTerm::new(sum, &tables.weights, &bounds)));
        let has_backlog_term = has_backlog_term && sum.is_none();
        let time_weight_per_s = if sum.is_none() { mean_weights.time * bounds.time.inverse() } else { 0.0 };
        let per_request =
            [bounds.quality.inverse() / n as f64, bounds.cost.inverse(), bounds.energy.inverse()];
        let priced = if has_backlog_term { tables.destinations.as_slice() } else { &[] };
        let backlog_price: Vec<f64> =
            priced.iter().map(|d| time_weight_per_s * d.backlog_s / d.batch_speedup).collect();
        let mut separable = Vec::with_capacity(n * m);
        for (r, weights) in tables.weights.iter().enumerate() {
            let row = r * m..(r + 1) * m;
            let scale = [
                weights.quality * per_request[0],
                weights.cost * per_request[1],
                weights.energy * per_request[2],
            ];
            let terms = tables.quality_loss[row.clone()].iter().zip(&tables.cost_usd[row.clone()]);
            let more = tables.energy_j[row.clone()].iter().zip(&tables.service_s[row.clone()]);
            let prices = backlog_price.iter().chain(std::iter::repeat(&0.0));
            let cells = terms.zip(more).zip(prices).zip(&tables.legal[row]);
            separable.extend(cells.map(|((((quality_loss, cost), (energy, service)), price), legal)| {
                let value = scale[0] * quality_loss + scale[1] * cost + scale[2] * energy + price * service;
                if *legal { value } else { f64::INFINITY }
            }));
            if let Some((sum, term)) = &sum {
                let row = separable[r * m..].iter_mut();
                row.zip((0..).map(DestinationOrd))
                    .for_each(|(a, d)| *a += term.separable(problem, sum, r, d));
            }
        }
        let constant = -(mean_weights.quality * bounds.quality.offset()
            + mean_weights.cost * bounds.cost.offset()
            + mean_weights.energy * bounds.energy.offset()
            + mean_weights.time * bounds.time.offset());
        let sum = sum.map(|(_, term)| term);
        Self { bounds, has_backlog_term, mean_weights, separable, time_weight_per_s, sum, constant }
    }
}

fn mean(weights: &[Weights]) -> Weights {
    let n = weights.len() as f64;
    let mean_of = |part: fn(&Weights) -> f64| weights.iter().map(part).sum::<f64>() / n;
    Weights {
        quality: mean_of(|w| w.quality),
        cost: mean_of(|w| w.cost),
        energy: mean_of(|w| w.energy),
        time: mean_of(|w| w.time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::testing::{context, random_tables};
    use crate::units::{Joules, Seconds, Usd};

    /// Two requests at two serial destinations without network; d0 has 1 s of backlog.
    fn tables() -> crate::routing::ProblemTables {
        let mut tables = random_tables(1, 2, 2, false);
        for (d, backlog_s) in tables.destinations.iter_mut().zip([1.0, 0.0]) {
            (d.backlog_s, d.batch_speedup, d.network_s) = (backlog_s, 1.0, 0.0);
        }
        tables.quality_loss = vec![0.1, 0.5, 0.2, 0.6];
        tables.cost_usd = vec![4.0, 1.0, 5.0, 2.0];
        tables.energy_j = vec![30.0, 10.0, 10.0, 20.0];
        tables.service_s = vec![1.0, 2.0, 1.0, 3.0];
        tables
    }

    fn close(range: TermRange, min: f64, max: f64) -> bool {
        (range.min - min).abs() < 1e-12 && (range.max - max).abs() < 1e-12
    }

    #[test]
    fn batch_bounds_are_ideal_and_payoff_nadir() {
        let problem = Problem::new(tables()).unwrap();
        let bounds = *Objective::batch(&problem).bounds();
        // Best for Q: (0, 0); for C: (1, 1); for E: (1, 0); for T: either end at 2 s: (0, ·) first.
        assert!(close(bounds.quality, 0.15, 0.55), "{bounds:?}");
        assert!(close(bounds.cost, 3.0, 9.0), "{bounds:?}");
        // E: (0, 0) 40, (1, 1) 30, (1, 0) 20; T's own assignment is (1, 0) too.
        assert!(close(bounds.energy, 20.0, 40.0), "{bounds:?}");
        // T: alone both end at 2 s; (0, 0) 3 s, (1, 1) 5 s.
        assert!(close(bounds.time, 2.0, 5.0), "{bounds:?}");
    }

    #[test]
    fn a_batch_of_one_uses_its_candidates() {
        let mut tables = tables();
        for table in [
            &mut tables.quality_loss,
            &mut tables.cost_usd,
            &mut tables.energy_j,
            &mut tables.service_s,
            &mut tables.transfer_s,
        ] {
            table.truncate(2);
        }
        tables.legal.truncate(2);
        tables.length_tokens.truncate(1);
        tables.weights.truncate(1);
        let bounds = *Objective::batch(&Problem::new(tables).unwrap()).bounds();
        assert!(close(bounds.quality, 0.1, 0.5) && close(bounds.cost, 1.0, 4.0), "{bounds:?}");
        assert!(close(bounds.energy, 10.0, 30.0) && close(bounds.time, 2.0, 2.0), "{bounds:?}");
    }

    #[test]
    fn stationary_scales_do_not_depend_on_the_batch() {
        let problem = Problem::new(tables()).unwrap();
        let scales =
            ObjectiveScales { quality: 0.5, cost: Usd(2.0), energy: Joules(10.0), time: Seconds(4.0) };
        let objective = Objective::stationary(&problem, &scales);
        // Row 0 at d0: .25·(.1/.5)/2 + .25·4/(2·2) + .25·30/(2·10) + (.25/4)·1·1.
        let want = 0.025 + 0.25 + 0.375 + 0.0625;
        assert!((objective.separable()[0] - want).abs() < 1e-12);
        assert!((objective.time_weight_per_s() - 0.0625).abs() < 1e-12);
        assert!(objective.constant().abs() < 1e-12);
        let same = Objective::for_mode(&problem, ObjectiveMode::Stationary, &scales);
        assert_eq!(same.separable(), objective.separable());
        let parity = Objective::for_mode(&problem, ObjectiveMode::Population, &context(Vec::new()).scales);
        assert_eq!(parity.bounds(), Objective::batch(&problem).bounds());
    }

    #[test]
    fn illegal_pairs_cost_everything() {
        let mut tables = tables();
        tables.legal[1] = false;
        let objective = Objective::batch(&Problem::new(tables).unwrap());
        assert!(objective.separable()[1].is_infinite() && objective.separable()[0].is_finite());
    }
}

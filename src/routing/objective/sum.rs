//! Time term `sum`: what users of interactive requests feel.
//!
//! `(1/R) Σ_r [ (ω_T/T_ref) · finish_r + ω_T′ · (price_d · work_rd + externality_rd / T_ref) ]`, ω_T of the request for
//! its own finish, ω_T′ of the others for what it costs them: those it delays where it runs, and, by the congestion
//! price, those who come after. A destination serves its requests in the order of the rows.

use crate::domain::{DestinationOrd, Weights, Work};
use crate::routing::completion::timeline::Timeline;
use crate::routing::objective::Bounds;
use crate::routing::problem::{Problem, SumTables};

/// J per second of the time term `sum`, over the batch.
#[derive(Debug, Clone)]
pub struct SumTerm {
    /// Of each request's own finish, R entries.
    finish_per_s: Vec<f64>,
    /// Of the delay of others.
    delay_per_s: f64,
    /// Of a second of saturated work at price 1.
    per_price: f64,
}

/// J that one request adds where it is served, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SumParts {
    /// Its own finish, the network included.
    pub finish: f64,
    /// The delay of those beside it.
    pub externality: f64,
    /// The congestion price.
    pub price: f64,
}

impl SumTerm {
    pub(super) fn new(sum: &SumTables, weights: &[Weights], bounds: &Bounds) -> Self {
        let (per_s, n) = (bounds.time.inverse(), weights.len() as f64);
        Self {
            finish_per_s: weights.iter().map(|weights| weights.time * per_s).collect(),
            delay_per_s: sum.others_time_weight * per_s,
            per_price: sum.others_time_weight / n,
        }
    }

    /// J of request `r` being served next on `timeline`, without what does not depend on the others.
    #[inline]
    #[must_use]
    pub fn added(&self, r: usize, work: Work, timeline: &Timeline) -> f64 {
        self.finish_per_s[r] * timeline.predict(work).finish.0
            + self.delay_per_s * timeline.externality(work).0
    }

    /// What does not depend on the others: the network and the price.
    pub(super) fn separable(&self, problem: &Problem, sum: &SumTables, r: usize, d: DestinationOrd) -> f64 {
        self.finish_per_s[r] * network_s(problem, sum, r, d) + self.price(sum, r, d)
    }

    /// All of J that request `r` adds by being served next at `d`, whose timeline is `timeline`.
    #[must_use]
    pub fn parts(
        &self,
        problem: &Problem,
        sum: &SumTables,
        (r, d): (usize, DestinationOrd),
        timeline: &Timeline,
    ) -> SumParts {
        let work = sum.work(r, d);
        let finish_s = network_s(problem, sum, r, d) + timeline.predict(work).finish.0;
        SumParts {
            finish: self.finish_per_s[r] * finish_s,
            externality: self.delay_per_s * timeline.externality(work).0,
            price: self.price(sum, r, d),
        }
    }

    fn price(&self, sum: &SumTables, r: usize, d: DestinationOrd) -> f64 {
        let price_per_s = sum.price_per_s[d.idx()];
        // Most of the time nothing is congested.
        if price_per_s > 0.0 { self.per_price * price_per_s * sum.saturated_work_s(r, d) } else { 0.0 }
    }
}

/// Round trip and the request's own transfer, seconds.
pub(in crate::routing) fn network_s(problem: &Problem, sum: &SumTables, r: usize, d: DestinationOrd) -> f64 {
    sum.rtt_s[d.idx()] + problem.transfer(r, d).0
}

//! What the books say: figures of each policy, their intervals over slices, and differences within rounds.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::SliceBooks;
use super::tally::{Latencies, Tally};
use crate::domain::ObjectiveScales;
use crate::planning::Alternation;
use crate::statistics::{mean, t_interval};
use crate::units::Seconds;

/// The books at one instant.
pub(super) struct Snapshot {
    pub(super) alternation: Alternation,
    pub(super) policies: Arc<[&'static str]>,
    pub(super) now: Seconds,
    /// All counted requests, by policy.
    pub(super) totals: Vec<(Tally, Latencies)>,
    /// In order.
    pub(super) slices: Vec<SliceBooks>,
}

/// The figures of policies that take turns, to be read as JSON. Counted are requests that arrived after the wash-out of
/// a slice; sums and means of J, energy, money, latency and quality are over those that were answered.
#[derive(Debug, Serialize)]
pub struct Report {
    slice_s: f64,
    washout_s: f64,
    now: NowReport,
    /// What one unit of each term of J is.
    scales: ScalesReport,
    policies: Vec<PolicyReport>,
    /// Every other policy less the first, within rounds.
    against_first: Vec<PairReport>,
    slices: Vec<SliceReport>,
}

#[derive(Debug, Serialize)]
struct NowReport {
    policy: &'static str,
    slice: u64,
    round: u64,
    is_counted: bool,
    ends_in_s: f64,
}

#[derive(Debug, Serialize)]
struct ScalesReport {
    quality: f64,
    usd: f64,
    joules: f64,
    seconds: f64,
}

/// A policy since the start.
#[derive(Debug, Serialize)]
pub(super) struct PolicyReport {
    pub(super) policy: &'static str,
    pub(super) answered: u64,
    pub(super) failed: u64,
    pub(super) client_gone: u64,
    /// Left for their destination by a plan of another policy.
    crossed: u64,
    /// Answers that clients gave a score; `feedback_score` is their mean.
    scored: u64,
    /// Within 2.5 %.
    pub(super) latency_p50_s: Option<f64>,
    pub(super) latency_p95_s: Option<f64>,
    joules: f64,
    usd: f64,
    pub(super) figures: BTreeMap<&'static str, FigureReport>,
}

/// A figure of a policy.
#[derive(Debug, Serialize)]
pub(super) struct FigureReport {
    /// Over all its requests.
    pub(super) mean: Option<f64>,
    /// Over the means of its complete slices, each counting the same.
    slice_mean: Option<f64>,
    /// 95 % interval of `slice_mean`, by Student's t.
    slice_ci95: Option<[f64; 2]>,
    n_slices: usize,
}

#[derive(Debug, Serialize)]
struct PairReport {
    policy: &'static str,
    reference: &'static str,
    figures: BTreeMap<&'static str, DifferenceReport>,
}

#[derive(Debug, Serialize)]
struct DifferenceReport {
    /// Mean over the rounds in which both have complete slices.
    difference: Option<f64>,
    /// Its 95 % interval, by Student's t.
    ci95: Option<[f64; 2]>,
    n_rounds: usize,
}

#[derive(Debug, Serialize)]
struct SliceReport {
    slice: u64,
    round: u64,
    policy: &'static str,
    begins_s: f64,
    counts_from_s: f64,
    ends_s: f64,
    /// Over, and none of its counted requests is under way.
    is_complete: bool,
    /// Requests of earlier slices under way when counting began: what the wash-out did not wash out.
    carried_over: Option<u64>,
    answered: u64,
    failed: u64,
    client_gone: u64,
    crossed: u64,
    scored: u64,
    figures: BTreeMap<&'static str, Option<f64>>,
}

/// The figures of a tally by name.
fn figures(tally: &Tally, scales: &ObjectiveScales) -> [(&'static str, Option<f64>); 7] {
    [
        ("objective", tally.objective(scales)),
        ("latency_s", tally.per_answered(tally.latency_s)),
        ("quality", tally.per_answered(tally.quality)),
        ("joules_per_request", tally.per_answered(tally.joules)),
        ("usd_per_request", tally.per_answered(tally.usd)),
        ("failed_share", tally.failed_share()),
        ("feedback_score", tally.mean_score()),
    ]
}

impl Snapshot {
    fn is_complete(&self, of: &SliceBooks) -> bool {
        of.slice.ends.0 <= self.now.0 && of.n_counted_under_way == 0
    }

    /// Figure number `nth` of each complete slice of `policy` that has it, by round.
    fn by_round(&self, policy: usize, nth: usize, scales: &ObjectiveScales) -> BTreeMap<u64, f64> {
        let own = self.slices.iter().filter(|of| of.slice.policy == policy && self.is_complete(of));
        own.filter_map(|of| Some((of.slice.round, figures(&of.tally, scales)[nth].1?))).collect()
    }

    /// Each policy since the start.
    pub(super) fn policies(&self, scales: &ObjectiveScales) -> Vec<PolicyReport> {
        let report = |(policy, (tally, latencies)): (usize, &(Tally, Latencies))| {
            let figure = |(nth, (name, mean_of_all)): (usize, (&'static str, Option<f64>))| {
                let slices: Vec<f64> = self.by_round(policy, nth, scales).into_values().collect();
                let figure = FigureReport {
                    mean: mean_of_all,
                    slice_mean: (!slices.is_empty()).then(|| mean(&slices)),
                    slice_ci95: t_interval(&slices),
                    n_slices: slices.len(),
                };
                (name, figure)
            };
            PolicyReport {
                policy: self.policies[policy],
                answered: tally.answered,
                failed: tally.failed,
                client_gone: tally.left,
                crossed: tally.crossed,
                scored: tally.scored,
                latency_p50_s: latencies.quantile(0.5).map(|s| s.0),
                latency_p95_s: latencies.quantile(0.95).map(|s| s.0),
                joules: tally.joules,
                usd: tally.usd,
                figures: figures(tally, scales).into_iter().enumerate().map(figure).collect(),
            }
        };
        self.totals.iter().enumerate().map(report).collect()
    }

    fn pair(&self, policy: usize, scales: &ObjectiveScales) -> PairReport {
        let figure = |(nth, (name, _)): (usize, (&'static str, Option<f64>))| {
            let reference = self.by_round(0, nth, scales);
            let own = self.by_round(policy, nth, scales);
            let within = |(round, own): (u64, f64)| reference.get(&round).map(|reference| own - reference);
            let differences: Vec<f64> = own.into_iter().filter_map(within).collect();
            let report = DifferenceReport {
                difference: (!differences.is_empty()).then(|| mean(&differences)),
                ci95: t_interval(&differences),
                n_rounds: differences.len(),
            };
            (name, report)
        };
        let names = figures(&Tally::default(), scales);
        PairReport {
            policy: self.policies[policy],
            reference: self.policies[0],
            figures: names.into_iter().enumerate().map(figure).collect(),
        }
    }

    fn slice(&self, of: &SliceBooks, scales: &ObjectiveScales) -> SliceReport {
        let SliceBooks { slice, carried_over, tally, .. } = of;
        SliceReport {
            slice: slice.number,
            round: slice.round,
            policy: self.policies[slice.policy],
            begins_s: slice.begins.0,
            counts_from_s: slice.counts_from.0,
            ends_s: slice.ends.0,
            is_complete: self.is_complete(of),
            carried_over: *carried_over,
            answered: tally.answered,
            failed: tally.failed,
            client_gone: tally.left,
            crossed: tally.crossed,
            scored: tally.scored,
            figures: figures(tally, scales).into(),
        }
    }
}

impl Report {
    pub(super) fn new(snapshot: &Snapshot, scales: ObjectiveScales) -> Self {
        let Alternation { slice, washout, .. } = snapshot.alternation;
        let current = snapshot.alternation.at(snapshot.now);
        Self {
            slice_s: slice.0,
            washout_s: slice.0 * washout,
            now: NowReport {
                policy: snapshot.policies[current.policy],
                slice: current.number,
                round: current.round,
                is_counted: snapshot.now.0 >= current.counts_from.0,
                ends_in_s: (current.ends - snapshot.now).0,
            },
            scales: ScalesReport {
                quality: scales.quality,
                usd: scales.cost.0,
                joules: scales.energy.0,
                seconds: scales.time.0,
            },
            policies: snapshot.policies(&scales),
            against_first: (1..snapshot.policies.len())
                .map(|policy| snapshot.pair(policy, &scales))
                .collect(),
            slices: snapshot.slices.iter().map(|of| snapshot.slice(of, &scales)).collect(),
        }
    }
}

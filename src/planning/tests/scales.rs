//! The moving average of the objective's scales.

use super::*;
use crate::domain::{ObjectiveScales, RoutingContext};
use crate::planning::ScalesAverage;
use crate::routing::{BatchItem, CompletionModel, CostModels, EnergyModel, Problem, TimeTerm, legal_set};

const COSTS: CostModels =
    CostModels { completion: CompletionModel::Fifo, time: TimeTerm::Makespan, energy: EnergyModel::Marginal };

/// One request on the fixture's fleet, the second destination twice as dear.
fn problem(quality: &[f64], tokens: f64) -> (Problem, ObjectiveScales, ScalesAverage) {
    let mut destinations = fleet(&[(2, 4), (2, 4)][..quality.len()]);
    for (n, destination) in destinations.iter_mut().enumerate() {
        destination.price.completion_usd_per_mtok *= (n + 1) as f64;
    }
    let average = ScalesAverage::from_fleet(&destinations);
    let context = RoutingContext {
        states: rig::ready(destinations.len()),
        destinations: destinations.into(),
        weights: crate::domain::Weights::EQUAL,
        scales: average.current(),
        finish_target: None,
    };
    let (request, prediction) = (request("r"), prediction(quality, tokens));
    let legal = legal_set(&request, Some(&prediction), &context, &[]).unwrap();
    let item = BatchItem { request: &request, prediction: &prediction, legal: &legal, waited: Seconds::ZERO };
    (Problem::build(&[item], &context, &COSTS).unwrap(), average.current(), average)
}

#[test]
fn priors_are_the_ranges_of_a_reference_request() {
    let (_, prior, _) = problem(&[0.5, 0.5], 1.0);
    assert!((prior.quality - 0.25).abs() < 1e-12, "{prior:?}");
    // 250 completion tokens at 1 and at 2 USD per million: a range of 250 µUSD.
    assert!((prior.cost.0 - 250e-6).abs() < 1e-12, "{prior:?}");
    // 60 W above idle for 2.5 s at a speed-up of 2 everywhere: no range, so a tenth of the mean.
    assert!((prior.energy.0 - 7.5).abs() < 1e-3, "{prior:?}");
    assert!((prior.time.0 - 2.5).abs() < 1e-3, "{prior:?}");
}

#[test]
fn a_fiftieth_of_each_batch_enters() {
    let (problem, prior, mut average) = problem(&[0.3, 0.8], 1000.0);
    average.observe(&problem);
    let scales = average.current();
    assert!((scales.quality - (0.25 + 0.02 * (0.5 - 0.25))).abs() < 1e-12, "{scales:?}");
    assert!((scales.cost.0 - (prior.cost.0 + 0.02 * (1000e-6 - prior.cost.0))).abs() < 1e-12);
    assert!((scales.time.0 - (prior.time.0 + 0.02 * (10.0 - prior.time.0))).abs() < 1e-6);
}

#[test]
fn batches_that_do_not_differ_never_pull_a_scale_to_zero() {
    let (problem, prior, mut average) = problem(&[0.5, 0.5], 100.0);
    for _ in 0..2_000 {
        average.observe(&problem);
    }
    let scales = average.current();
    assert!((scales.quality - 0.05 * prior.quality).abs() < 1e-12, "{scales:?}");
    assert!((scales.energy.0 - 0.05 * prior.energy.0).abs() < 1e-9, "{scales:?}");
    assert!((scales.time.0 - 1.0).abs() < 1e-3, "converged to the one second they all take: {scales:?}");
}

#[test]
fn a_batch_without_a_choice_teaches_nothing() {
    let (problem, prior, mut average) = problem(&[0.5], 100.0);
    average.observe(&problem);
    assert_eq!(average.current(), prior);
}

proptest! {
    #[test]
    fn scales_stay_positive_and_between_what_they_saw(
        batches in prop::collection::vec((0.0..1.0f64, 0.0..1.0f64, 1.0..5_000.0f64), 1..60),
    ) {
        let (_, prior, mut average) = problem(&[0.5, 0.5], 1.0);
        for (a, b, tokens) in batches {
            average.observe(&problem(&[a, b], tokens).0);
            let scales = average.current();
            prop_assert!(scales.quality >= 0.05 * prior.quality && scales.quality <= 1.0);
            prop_assert!(scales.time.0 >= 0.05 * prior.time.0 && scales.time.0 <= 50.01);
            prop_assert!(scales.cost.0 >= 0.05 * prior.cost.0 && scales.energy.0 >= 0.05 * prior.energy.0);
        }
    }
}

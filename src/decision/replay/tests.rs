//! Plans decided again by hand-made changes.

use super::*;
use crate::decision::testing::{PARAMS, fleet, job, solved};
use crate::units::{Quality, Watts};

fn records(kind: PolicyKind) -> Vec<PlanRecord> {
    [3, 8, 14].map(|n| PlanRecord::new(&solved(job(n), kind, 60), true)).into()
}

fn replayed(change: Change, kind: PolicyKind) -> Report {
    let mut replay = Replay::new(change);
    records(kind).iter().for_each(|record| replay.plan(record).unwrap());
    replay.report()
}

fn same() -> Change {
    Change {
        weights: Some(Weights::EQUAL),
        params: Some(PARAMS),
        completion: Some(CompletionModel::Slots),
        finish_target: Some(None),
        fleet: Some(fleet().into()),
        policy: Some(PolicyKind::Memetic),
    }
}

#[test]
fn the_same_configuration_reproduces_every_plan() {
    let report = replayed(same(), PolicyKind::Memetic);
    assert_eq!((report.n_plans, report.n_reproduced, report.n_moved), (3, 3, 0));
    assert_eq!(report.logged.requests, 14, "a request that was planned again counts once");
    for (name, _, was, is) in report.figures() {
        assert!((was - is).abs() < 1e-12, "{name}: {was} and {is}");
    }
    let table = report.to_table();
    assert!(
        table.contains("3 plans decided again, 3 exactly as logged") && table.contains(CAVEAT_START),
        "{table}"
    );
}

const CAVEAT_START: &str =
    "Quality, USD, joules and seconds of `logged` and `replayed` are the router's predictions";

#[test]
fn with_energy_first_less_energy_is_drawn_and_the_price_shows() {
    let weights = Weights { quality: 0.1, cost: 0.1, energy: 0.7, time: 0.1 };
    let report = replayed(Change { weights: Some(weights), ..same() }, PolicyKind::Memetic);
    assert!(report.replayed.joules < report.logged.joules, "{report:?}");
    assert!(report.n_moved > 0 && report.n_reproduced < 3);
    assert!(report.replayed.quality < report.logged.quality, "{report:?}");
    // The new objective prefers what it chose.
    assert!(report.replayed.objective <= report.logged.objective, "{report:?}");
}

#[test]
fn another_policy_decides_on_the_same_situations() {
    let report = replayed(Change { policy: Some(PolicyKind::RoundRobin), ..same() }, PolicyKind::Memetic);
    assert!(report.replayed.by_destination.len() >= 3, "{report:?}");
    let back = replayed(same(), PolicyKind::RoundRobin);
    assert!(back.replayed.objective <= back.logged.objective, "{back:?}");
}

#[test]
fn a_fleet_without_a_destination_sends_nothing_there() {
    let mut fleet = fleet();
    fleet.remove(0);
    let report = replayed(Change { fleet: Some(fleet.into()), ..same() }, PolicyKind::Memetic);
    assert!(!report.replayed.by_destination.contains_key("node-0/model-0"), "{report:?}");
    assert_eq!(report.n_impossible + report.replayed.requests, 14);
    // r4 failed at destination 1 before, which is another column now.
    let mut replay =
        Replay::new(Change { fleet: Some(crate::decision::testing::fleet()[1..].to_vec().into()), ..same() });
    let record = PlanRecord::new(&solved(job(5), PolicyKind::Greedy, 0), true);
    let again = replay.decide(&record, record.job().unwrap()).unwrap();
    let r4 = again.plan.planned.iter().find(|planned| &*planned.request_id == "r4");
    assert!(r4.is_none_or(|planned| planned.destination != DestinationOrd(0)), "{r4:?}");
    replay.plan(&record).unwrap();
}

#[test]
fn a_new_destination_is_idle_and_predicts_by_its_prior() {
    let mut fleet = fleet();
    let mut new = fleet[2].clone();
    new.id = crate::domain::DestinationId::from_text("new/free");
    (new.model, new.quality_prior) = ("free".into(), Quality(0.99));
    new.power.board = Watts(1.0);
    fleet.insert(0, new);
    let report = replayed(Change { fleet: Some(fleet.into()), ..same() }, PolicyKind::Memetic);
    assert!(report.replayed.by_destination["new/free"] > 0, "{report:?}");
    assert!(report.replayed.quality > report.logged.quality);
}

#[test]
fn prices_that_are_configured_now_count() {
    let mut dear = fleet();
    dear.iter_mut().for_each(|d| d.price.completion_usd_per_mtok *= 10.0);
    let report = replayed(Change { fleet: Some(dear.into()), ..same() }, PolicyKind::Memetic);
    assert!(report.replayed.usd > report.logged.usd, "{report:?}");
}

#[test]
fn what_answered_requests_came_to_is_summed() {
    let mut replay = Replay::new(same());
    replay.plan(&records(PolicyKind::Memetic)[0]).unwrap();
    replay.finished("r0", (0.5, 10.0, 2.0));
    replay.finished("r2", (0.25, 20.0, 4.0));
    replay.finished("nobody", (1e9, 1e9, 1e9));
    let actual = replay.report().actual;
    assert_eq!(actual.requests, 2);
    assert!((actual.usd - 0.75).abs() < 1e-12 && (actual.mean_s - 3.0).abs() < 1e-12);
}

//! The rolling scheduler: late binding, the order of taking slots, prices, and what keeps it bounded.

use super::*;
use crate::domain::TimeTerm;
use crate::planning::{PlanParams, PriceParams};
use crate::routing::{CompletionModel, CostModels};
use crate::units::Tokens;

/// Plans the sum of completion times on slot timelines with the greedy policy, prices on.
fn rolling(places: &[(u32, u32)]) -> Rig {
    let mut rig = Rig::new(fleet(places), |p| p.prices = Some(PriceParams::default()));
    let costs = CostModels { completion: CompletionModel::Slots, time: TimeTerm::Sum, ..rig.plan.costs };
    rig.plan = PlanParams { costs, ..rig.plan };
    rig.policy = for_kind(PolicyKind::Greedy, &PolicyParams::default());
    rig
}

#[test]
fn what_waits_is_bound_late() {
    let mut rig = rolling(&[(1, 2), (1, 2)]);
    for ticket in 1..=2 {
        rig.arrive_with(0.0, ticket, &[0.5, 0.5], ONE_SECOND);
    }
    rig.turn(0.002);
    // It would go where it thinks a slot is free first; the other one is.
    rig.arrive_with(0.1, 3, &[0.5, 0.5], ONE_SECOND);
    rig.turn(0.102);
    let first = rig.sent()[0].0;
    let second = rig.sent()[1].0;
    rig.finish(0.5, second);
    rig.turn(0.5);
    let freed = rig.sent()[1].1;
    assert_eq!(rig.sent()[2], (3, freed), "{first} still runs");
    assert!(rig.n_rebinds() <= 1);
}

#[test]
fn the_shortest_goes_first_unless_it_came_much_later() {
    let mut rig = rolling(&[(1, 2)]);
    rig.arrive_with(0.0, 1, &[0.5], ONE_SECOND);
    rig.turn(0.002);
    rig.arrive_with(0.1, 2, &[0.5], 4.0 * ONE_SECOND);
    rig.arrive_with(0.1, 3, &[0.5], ONE_SECOND);
    rig.turn(0.102);
    rig.finish(0.5, 1);
    rig.turn(0.5);
    assert_eq!(rig.sent(), [(1, D0), (3, D0)]);
    // Three seconds of service are ten of waiting: 11 s later one second is as good as four.
    rig.arrive_with(11.2, 4, &[0.5], ONE_SECOND);
    rig.finish(11.3, 3);
    rig.turn(11.3);
    assert_eq!(rig.sent()[2], (2, D0));
}

#[test]
fn whoever_was_overtaken_too_often_goes_first() {
    let mut rig = rolling(&[(1, 1)]);
    rig.planner = {
        let mut params = rig::planner_params();
        params.window.max_overtakes = 2;
        crate::planning::Planner::new(params, fleet(&[(1, 1)]).into(), Seconds::ZERO)
    };
    rig.arrive_with(0.0, 1, &[0.5], ONE_SECOND);
    rig.turn(0.002);
    rig.arrive_with(0.01, 2, &[0.5], 100.0 * ONE_SECOND);
    rig.turn(0.012);
    for ticket in 3..=6 {
        rig.arrive_with(0.02, ticket, &[0.5], ONE_SECOND);
    }
    rig.turn(0.022);
    for (ticket, done) in (1..=4).zip([1, 3, 4, 2]) {
        rig.finish(f64::from(ticket) * 0.1, done);
        rig.turn(f64::from(ticket) * 0.1);
    }
    let order: Vec<u64> = rig.sent().iter().map(|(ticket, _)| *ticket).collect();
    assert_eq!(order, [1, 3, 4, 2, 5]);
}

#[test]
fn time_terms_are_planned_apart() {
    let mut rig = rolling(&[(8, 8)]);
    for ticket in 1..=4 {
        rig.arrive_request(0.0, ticket, |r| r.time = (ticket % 2 == 0).then_some(TimeTerm::Makespan));
    }
    let job = rig.take_job(0.002);
    assert_eq!((job.waiting.len(), job.time), (2, None));
    rig.commit(0.002, job);
    let job = rig.take_job(0.002);
    assert_eq!((job.waiting.len(), job.time), (2, Some(TimeTerm::Makespan)));
    rig.commit(0.002, job);
    rig.turn(0.003);
    assert_eq!(rig.sent().len(), 4);
}

#[test]
fn a_prompt_that_would_wait_to_be_read_is_held_though_a_slot_is_free() {
    let mut destinations = fleet(&[(4, 8)]);
    destinations[0].throughput.prefill = crate::units::TokensPerSec(1_000.0);
    let mut rig = Rig::new(destinations, |_| {});
    rig.arrive_request(0.0, 1, |r| r.prompt_tokens = Tokens(500.0));
    rig.turn(0.002);
    rig.arrive_request(0.05, 2, |r| r.prompt_tokens = Tokens(500.0));
    rig.turn(0.052);
    assert_eq!(rig.sent().len(), 1, "0.45 s to go before its prompt is read");
    rig.planner.answering(Seconds(0.4), crate::planning::Ticket(1));
    rig.arrive(0.41, 3);
    rig.turn(0.412);
    assert!(rig.sent().contains(&(3, D0)) || rig.sent().contains(&(2, D0)), "{:?}", rig.sent());
    rig.turn(1.05);
    assert_eq!(rig.sent().len(), 3, "at the latest when any slot will do");
}

#[test]
fn a_price_rises_where_slots_are_short_and_sends_work_elsewhere() {
    let mut rig = rolling(&[(1, 8), (1, 8)]);
    // The first is a little better for all of them, the second idle.
    let quality = [0.6, 0.5];
    let mut now = 0.0;
    let mut ticket = 0;
    let mut at_first = 0;
    for round in 0..120 {
        ticket += 1;
        rig.arrive_with(now, ticket, &quality, ONE_SECOND);
        rig.turn(now + 0.002);
        let (sent, d) = *rig.sent().last().unwrap();
        assert_eq!(sent, ticket, "both are never full");
        at_first += u64::from(d == D0 && round >= 100);
        now += 0.95;
        rig.finish(now, sent);
        rig.turn(now);
    }
    assert_eq!(at_first, 20, "used 95 % of the time is not full");
    assert!(rig.price_per_s(now, D0) < 1.0);
    // Two at a time where one fits.
    for _ in 0..60 {
        for _ in 0..2 {
            ticket += 1;
            rig.arrive_with(now, ticket, &[0.9, 0.5], ONE_SECOND);
        }
        rig.turn(now + 0.002);
        now += 1.0;
        for finished in [ticket - 1, ticket] {
            rig.finish(now, finished);
        }
        rig.turn(now);
    }
    let (first, second) = (rig.price_per_s(now, D0), rig.price_per_s(now, D1));
    assert!(first > 0.0 || second > 0.0, "{first} {second}");
    // Nothing comes for a while.
    assert!(rig.price_per_s(now + 600.0, D0).abs() < 1e-12);
}

#[test]
fn a_large_waiting_set_does_not_make_plans_larger() {
    let mut rig = Rig::new(fleet(&[(1, 1)]), |p| p.window.max_requests = 16);
    for ticket in 0..10_000 {
        rig.arrive(0.0, ticket);
    }
    rig.turn_through(0.002, 700);
    assert_eq!((rig.sent().len(), rig.n_held()), (1, 9_999));
    for round in 1..=20 {
        let now = f64::from(round) * 0.01;
        let done = rig.sent().last().unwrap().0;
        rig.finish(now, done);
        let job = rig.take_job(now);
        assert_eq!(job.waiting.len(), 16);
        rig.commit(now, job);
        assert_eq!(rig.turn(now), Some(1.0), "one plan a place");
    }
    assert_eq!(rig.sent().len(), 21);
}

//! Who leaves, who is held and for how long.

use super::*;

#[test]
fn adaptive_holds_what_cannot_start_and_plans_it_again_when_something_finishes() {
    let mut rig = Rig::new(fleet(&[(1, 2)]), |_| {});
    rig.arrive(0.0, 1);
    rig.arrive(0.0, 2);
    assert_eq!(rig.turn(0.002), Some(1.0), "held, at the latest until max_ms");
    assert_eq!(rig.sent(), [(1, D0)]);
    rig.finish(0.5, 1);
    rig.turn(0.5);
    assert_eq!(rig.sent(), [(1, D0), (2, D0)]);
    assert_eq!(rig.waited(2), Seconds(0.5));
}

#[test]
fn adaptive_sends_to_the_engines_queue_after_max_hold_and_no_further_than_max_inflight() {
    let mut rig = Rig::new(fleet(&[(1, 2)]), |p| p.window.max_hold = Some(Seconds(1.0)));
    for ticket in 1..=3 {
        rig.arrive(0.0, ticket);
    }
    rig.turn(0.002);
    assert_eq!(rig.sent().len(), 1);
    rig.turn(1.0);
    assert_eq!(rig.sent().len(), 2, "one more waits at the engine");
    assert_eq!(rig.inflight(1.0, D0), 2);
    rig.finish(3.0, 1);
    rig.turn(3.0);
    assert_eq!(rig.sent().len(), 3);
}

#[test]
fn what_finds_no_room_expires() {
    let mut rig = Rig::new(fleet(&[(1, 1)]), |_| {});
    rig.arrive(0.0, 1);
    rig.turn(0.002);
    rig.arrive_until(0.5, 2, 10.0);
    let rejected = rig.run_until(20.0);
    assert_eq!(rig.sent(), [(1, D0)]);
    assert_eq!(rejected, [(2, Rejection::Expired { waited: Seconds(9.5) })]);
    assert_eq!(rig.n_held(), 0);
}

#[test]
fn expiry_does_not_wait_for_a_slow_plan() {
    let mut rig = Rig::new(fleet(&[(1, 1)]), |_| {});
    rig.arrive(0.0, 1);
    let job = rig.take_job(0.002);
    rig.arrive_until(0.1, 2, 0.2);
    assert_eq!(rig.turn(0.1), Some(0.2));
    rig.turn(0.2);
    assert_eq!(rig.rejected(), [(2, Rejection::Expired { waited: Seconds(0.2 - 0.1) })]);
    rig.commit(0.3, job);
    assert_eq!(rig.sent(), [(1, D0)]);
}

#[test]
fn failing_over_goes_at_once_and_not_back() {
    let mut rig = Rig::new(fleet(&[(4, 8), (4, 8)]), |p| p.window.close = WindowClose::Fixed);
    rig.arrive_with(0.0, 1, &[0.9, 0.1], ONE_SECOND);
    rig.turn(1.0);
    assert_eq!(rig.sent(), [(1, D0)]);
    rig.arrive(1.5, 2);
    rig.fail_over(1.6, 1, &[D0]);
    assert_eq!(rig.turn(1.6), Some(2.5), "the open window stays open");
    assert_eq!(rig.sent(), [(1, D0), (1, D1)]);
    assert_eq!(rig.inflight(1.6, D0), 0, "its place is free again");
    rig.fail_over(1.7, 1, &[D0, D1]);
    rig.turn(1.7);
    let all_tried = Rejection::Impossible(NoDestination::AllTried { tried: 2 });
    assert_eq!(rig.rejected(), [(1, all_tried)]);
}

#[test]
fn failing_over_takes_a_place_with_room_when_the_better_one_is_full() {
    let mut rig = Rig::new(fleet(&[(1, 1), (1, 1), (1, 1)]), |_| {});
    rig.arrive_with(0.0, 1, &[0.9, 0.1, 0.1], ONE_SECOND);
    rig.arrive_with(0.0, 2, &[0.1, 0.9, 0.1], ONE_SECOND);
    rig.turn(0.002);
    rig.fail_over(0.1, 1, &[D0]);
    rig.predict(0.1, 1, &[0.0, 0.9, 0.1]);
    rig.turn(0.1);
    assert_eq!(rig.sent(), [(1, D0), (2, D1), (1, DestinationOrd(2))]);
}

#[test]
fn who_leaves_is_forgotten_also_while_a_plan_is_made() {
    let mut rig = Rig::new(fleet(&[(4, 8)]), |_| {});
    rig.arrive(0.0, 1);
    rig.finish(0.001, 1);
    assert_eq!(rig.turn(0.002), None);
    rig.arrive(0.01, 2);
    rig.arrive(0.01, 3);
    let job = rig.take_job(0.012);
    rig.finish(0.013, 2);
    rig.arrive(0.013, 4);
    rig.commit(0.014, job);
    rig.turn(0.015);
    assert_eq!(rig.sent(), [(3, D0), (4, D0)]);
    assert_eq!(rig.n_held(), 0);
}

#[test]
fn health_changes_plan_held_requests_again() {
    let mut rig = Rig::new(fleet(&[(1, 2), (1, 2)]), |_| {});
    rig.arrive_with(0.0, 1, &[0.9, 0.1], ONE_SECOND);
    rig.arrive_with(0.0, 2, &[0.9, 0.1], ONE_SECOND);
    rig.turn(0.002);
    assert_eq!(rig.sent(), [(1, D0)]);
    rig.health(&[Availability::Down, Availability::Ready]);
    rig.turn(0.1);
    assert_eq!(rig.sent(), [(1, D0), (2, D1)]);
    rig.health(&[Availability::Down, Availability::Draining]);
    rig.arrive(0.2, 3);
    rig.turn(0.203);
    let none = NoDestination::Unavailable { down: 1, loading: 0, draining: 1, returning: vec![] };
    assert_eq!(rig.rejected(), [(3, Rejection::Impossible(none))]);
}

#[test]
fn a_destination_that_went_down_while_a_plan_was_made_is_not_used() {
    let mut rig = Rig::new(fleet(&[(4, 8), (4, 8)]), |p| p.window.close = WindowClose::Fixed);
    rig.arrive_with(0.0, 1, &[0.9, 0.1], ONE_SECOND);
    let job = rig.take_job(1.0);
    rig.health(&[Availability::Down, Availability::Ready]);
    rig.commit(1.002, job);
    rig.turn(1.002);
    assert_eq!(rig.sent(), [(1, D1)]);
}

#[test]
fn a_place_that_frees_while_a_plan_is_made_is_used_at_once() {
    let mut rig = Rig::new(fleet(&[(1, 1)]), |_| {});
    rig.arrive(0.0, 1);
    rig.turn(0.002);
    rig.arrive(0.1, 2);
    let job = rig.take_job(0.103);
    rig.arrive(0.1035, 3);
    rig.finish(0.104, 1);
    rig.commit(0.106, job);
    assert_eq!(rig.sent(), [(1, D0), (2, D0)], "decided on the state at the commit");
    rig.finish(0.2, 2);
    rig.turn(0.2);
    assert_eq!(rig.sent(), [(1, D0), (2, D0), (3, D0)]);
}

#[test]
fn a_full_destination_keeps_nobody_else_waiting() {
    let mut rig = Rig::new(fleet(&[(1, 1), (4, 8)]), |p| p.window.max_requests = 2);
    rig.arrive_with(0.0, 1, &[0.9, 0.1], ONE_SECOND);
    rig.turn(0.002);
    for ticket in 2..=4 {
        rig.arrive_named(0.1, ticket, "model-0");
    }
    rig.turn(0.103);
    assert_eq!(rig.sent().len(), 1, "the three may go nowhere else, and there are more than one plan takes");
    rig.arrive_with(0.2, 5, &[0.1, 0.9], ONE_SECOND);
    rig.turn(0.203);
    assert_eq!(rig.sent(), [(1, D0), (5, D1)]);
    rig.finish(0.3, 1);
    rig.turn(0.3);
    assert_eq!(rig.sent().len(), 3);
}

#[test]
fn a_free_slot_anywhere_will_do_when_it_is_said_and_else_at_the_end_of_holding() {
    for (any_slot_after, from_s) in [(Some(Seconds(1.0)), 1.1), (None, 5.1), (Some(Seconds(60.0)), 5.1)] {
        let mut rig = Rig::new(fleet(&[(1, 1), (1, 1)]), |p| {
            (p.window.max_hold, p.window.any_slot_after) = (Some(Seconds(5.0)), any_slot_after);
        });
        rig.arrive_with(0.0, 1, &[0.9, 0.1], ONE_SECOND);
        rig.turn(0.002);
        rig.arrive_with(0.1, 2, &[0.9, 0.1], ONE_SECOND);
        rig.arrive_with(0.1, 3, &[0.9, 0.1], ONE_SECOND);
        rig.run_until(from_s - 0.05);
        assert_eq!(rig.sent(), [(1, D0)], "held for the better place");
        rig.run_until(from_s + 0.1);
        assert_eq!(rig.sent(), [(1, D0), (2, D1)]);
    }
}

#[test]
fn who_was_held_long_goes_to_any_queue_with_room() {
    let mut rig = Rig::new(fleet(&[(1, 1), (1, 2)]), |p| p.window.max_hold = Some(Seconds(5.0)));
    rig.arrive_with(0.0, 1, &[0.9, 0.1], ONE_SECOND);
    rig.arrive_with(0.0, 2, &[0.1, 0.9], ONE_SECOND);
    rig.turn(0.002);
    rig.arrive_with(0.1, 3, &[0.9, 0.1], ONE_SECOND);
    rig.run_until(5.0);
    assert_eq!(rig.sent(), [(1, D0), (2, D1)], "held for the better place");
    rig.run_until(5.2);
    assert_eq!(rig.sent(), [(1, D0), (2, D1), (3, D1)]);
}

#[test]
fn the_automatic_hold_follows_the_fleets_speed() {
    // 250 tokens of the reference request at 100 tokens a second: T_ref = 2.5 s, so 5 s of holding.
    let mut rig = Rig::new(fleet(&[(1, 1), (1, 2)]), |_| {});
    rig.arrive_with(0.0, 1, &[0.9, 0.1], 2.5 * ONE_SECOND);
    rig.arrive_with(0.0, 2, &[0.1, 0.9], 2.5 * ONE_SECOND);
    rig.turn(0.002);
    rig.arrive_with(0.0, 3, &[0.9, 0.1], 2.5 * ONE_SECOND);
    rig.run_until(4.9);
    assert_eq!(rig.sent(), [(1, D0), (2, D1)]);
    rig.run_until(5.1);
    assert_eq!(rig.sent(), [(1, D0), (2, D1), (3, D1)]);
}

#[test]
fn shortest_first_with_ageing_or_first_come_first_served() {
    for (order, expected) in [(WindowOrder::Shortest, [3, 2]), (WindowOrder::Fifo, [2, 3])] {
        let mut rig = Rig::new(fleet(&[(1, 1)]), |p| p.window.order = order);
        rig.arrive(0.0, 1);
        rig.turn(0.002);
        rig.arrive_with(0.1, 2, &[0.9], 4.0 * ONE_SECOND);
        rig.arrive_with(0.2, 3, &[0.9], ONE_SECOND);
        rig.finish(0.9, 1);
        rig.turn(0.9);
        rig.finish(1.0, expected[0]);
        rig.turn(1.0);
        assert_eq!(rig.sent(), [(1, D0), (expected[0], D0), (expected[1], D0)], "{order}");
    }
    // Twelve seconds of waiting outweigh three seconds of service: 0.3 × 12 > 3.
    let mut rig = Rig::new(fleet(&[(1, 1)]), |_| {});
    rig.arrive(0.0, 1);
    rig.turn(0.002);
    rig.arrive_with(0.1, 2, &[0.9], 4.0 * ONE_SECOND);
    rig.run_until(12.1);
    rig.arrive_with(12.1, 3, &[0.9], ONE_SECOND);
    rig.finish(12.1, 1);
    rig.turn(12.103);
    assert_eq!(rig.sent(), [(1, D0), (2, D0)]);
}

#[test]
fn deadlines_go_first() {
    let mut rig = Rig::new(fleet(&[(1, 1)]), |_| {});
    rig.arrive(0.0, 1);
    rig.turn(0.002);
    rig.arrive_with(0.1, 2, &[0.9], 0.1 * ONE_SECOND);
    for (ticket, deadline) in [(3, 60.0), (4, 30.0)] {
        let constraints = Constraints { deadline: Some(Seconds(deadline)), ..Constraints::default() };
        rig.arrive_request(0.1, ticket, |r| r.constraints = constraints);
    }
    for (at, over) in [(0.5, 1), (0.6, 4), (0.7, 3)] {
        rig.finish(at, over);
        rig.turn(at);
    }
    assert_eq!(rig.sent(), [(1, D0), (4, D0), (3, D0), (2, D0)]);
}

#[test]
fn a_request_the_policy_cannot_decide_does_not_take_the_others_along() {
    let mut rig = Rig::new(fleet(&[(4, 8)]), |p| p.window.close = WindowClose::Fixed);
    rig.policy = Box::new(Refusing { length_tokens: 10.0 + 777.0 });
    rig.arrive(0.0, 1);
    rig.arrive_with(0.0, 2, &[0.9], 777.0);
    rig.arrive(0.0, 3);
    rig.turn(1.0);
    assert_eq!(rig.sent(), [(1, D0), (3, D0)]);
    let rejected = rig.rejected();
    assert!(matches!(&rejected[..], [(2, Rejection::Undecided(_))]), "{rejected:?}");
    assert_eq!(rig.n_held(), 0);
}

#[test]
fn a_request_for_no_destination_is_answered_and_the_batch_goes_on() {
    let mut rig = Rig::new(fleet(&[(4, 8)]), |_| {});
    rig.arrive(0.0, 1);
    rig.arrive_named(0.0, 2, "model-9");
    rig.turn(0.002);
    assert_eq!(rig.sent(), [(1, D0)]);
    let unknown = NoDestination::UnknownModel { model: "model-9".into() };
    assert_eq!(rig.rejected(), [(2, Rejection::Impossible(unknown))]);
}

#[test]
fn a_policy_that_has_only_full_destinations_to_choose_from_holds() {
    let mut destinations = fleet(&[(1, 1), (1, 1)]);
    destinations[0].class = NodeClass::Cloud;
    let mut rig = Rig::new(destinations, |p| p.gather = false);
    rig.policy = for_kind(PolicyKind::CloudOnly, &PolicyParams::default());
    rig.arrive(0.0, 1);
    rig.turn(0.0);
    rig.arrive(0.1, 2);
    rig.run_until(3.0);
    assert_eq!((rig.sent(), rig.rejected().len()), (vec![(1, D0)], 0), "the edge is no choice, and no error");
    rig.finish(3.0, 1);
    rig.turn(3.0);
    assert_eq!(rig.sent(), [(1, D0), (2, D0)]);
}

#[test]
fn a_policy_per_request_queues_where_it_chooses_though_another_has_a_free_slot() {
    let mut rig = Rig::new(fleet(&[(1, 4), (1, 4)]), |p| p.gather = false);
    for ticket in 1..=3 {
        rig.arrive(0.0, ticket);
    }
    rig.turn(0.0);
    rig.arrive(0.5, 4);
    rig.turn(0.5);
    assert_eq!(rig.sent(), [(1, D0), (2, D0), (3, D0), (4, D0)]);
}

#[test]
fn gathering_and_holding_are_told_apart() {
    let mut rig = Rig::new(fleet(&[(1, 2)]), |_| {});
    for ticket in [1, 3] {
        rig.arrive(0.0, ticket);
    }
    rig.turn(0.002);
    rig.finish(0.75, 1);
    rig.turn(0.75);
    assert_eq!(rig.clocks(3), (Some(Seconds(0.002)), Seconds(0.75 - 0.002)));
    assert_eq!(rig.clocks(1), (Some(Seconds(0.002)), Seconds::ZERO));
}

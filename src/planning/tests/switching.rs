//! Another policy takes over while requests wait.

use super::*;

#[test]
fn a_policy_that_does_not_hold_sends_on_who_was_held() {
    let mut rig = Rig::new(fleet(&[(1, 3)]), |_| {});
    for ticket in 1..=4 {
        rig.arrive(0.0, ticket);
    }
    rig.turn(0.002);
    assert_eq!((rig.sent(), rig.n_held()), (vec![(1, D0)], 3));
    rig.planner.follow(Seconds(0.5), false, false);
    assert_eq!(rig.turn(0.5), Some(600.0), "the last one waits until something is over, or its time");
    assert_eq!(rig.sent(), [(1, D0), (2, D0), (3, D0)], "into the queue of the engine, in their order");
    assert_eq!(rig.n_held(), 1);
    rig.finish(0.6, 1);
    rig.turn(0.6);
    assert_eq!(rig.sent().last(), Some(&(4, D0)));
}

#[test]
fn a_policy_that_holds_keeps_who_waited_for_a_queue_and_wakes_for_it() {
    let mut rig = Rig::new(fleet(&[(1, 2)]), |p| {
        (p.gather, p.window.max_hold) = (false, Some(Seconds(5.0)));
    });
    for ticket in 1..=3 {
        rig.arrive(0.0, ticket);
    }
    assert_eq!(rig.turn(0.0), Some(600.0), "the third one waits until something is over, or its time");
    rig.planner.follow(Seconds(0.5), true, true);
    assert_eq!(rig.turn(0.5), Some(1.0), "from when on any slot will do");
    rig.finish(0.7, 1);
    rig.turn(0.7);
    assert_eq!(rig.sent(), [(1, D0), (2, D0)], "the slot is the second one's");
    rig.run_until(5.1);
    assert_eq!(rig.sent(), [(1, D0), (2, D0), (3, D0)], "its time in the router is over");
}

#[test]
fn a_plan_under_way_is_taken_in_and_who_gathers_is_planned_by_the_next() {
    let mut rig = Rig::new(fleet(&[(4, 8)]), |_| {});
    rig.arrive(0.0, 1);
    let job = rig.take_job(0.002);
    rig.arrive(0.003, 2);
    rig.planner.follow(Seconds(0.004), false, false);
    rig.commit(0.006, job);
    rig.turn(0.006);
    assert_eq!(rig.sent(), [(1, D0), (2, D0)]);
}

#[test]
fn prices_are_kept_while_nobody_pays_them() {
    let mut rig = Rig::new(fleet(&[(1, 1)]), |p| p.prices = Some(PriceParams::default()));
    rig.arrive(0.0, 1);
    rig.arrive(0.0, 2);
    rig.turn(0.002);
    let before = rig.price_per_s(60.0, D0);
    assert!(before > 0.0);
    rig.planner.follow(Seconds(60.0), true, false);
    assert_eq!(rig.price_per_s(60.0, D0).to_bits(), 0.0_f64.to_bits());
    rig.planner.follow(Seconds(60.0), true, true);
    assert_eq!(rig.price_per_s(60.0, D0).to_bits(), before.to_bits());
}

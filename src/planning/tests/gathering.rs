//! When windows close and who is planned together.

use super::*;

#[test]
fn a_fixed_window_closes_by_time() {
    let mut rig = Rig::new(fleet(&[(4, 8)]), |p| p.window.close = WindowClose::Fixed);
    rig.arrive(0.0, 1);
    assert_eq!(rig.turn(0.0), Some(1.0));
    rig.arrive(0.5, 2);
    assert_eq!(rig.turn(0.5), Some(1.0), "the second does not move the close");
    assert_eq!(rig.sent(), []);
    rig.turn(1.0);
    assert_eq!(rig.sent(), [(1, D0), (2, D0)]);
    assert_eq!((rig.batch_size(1), rig.waited(1), rig.waited(2)), (2, Seconds(1.0), Seconds(0.5)));
    rig.arrive(1.25, 3);
    assert_eq!(rig.turn(1.25), Some(2.25), "the next window counts from its own first request");
}

#[test]
fn a_fixed_window_closes_by_count() {
    let mut rig = Rig::new(fleet(&[(32, 64)]), |p| {
        p.window.close = WindowClose::Fixed;
        p.window.max_requests = 3;
    });
    for ticket in 1..=7 {
        rig.arrive(0.0, ticket);
    }
    assert_eq!(rig.turn(0.0), Some(1.0));
    assert_eq!(rig.sent().len(), 6, "two full windows at once");
    assert_eq!((rig.batch_size(3), rig.batch_size(4)), (3, 3));
    rig.turn(1.0);
    assert_eq!(rig.batch_size(7), 1, "the seventh closes by time");
}

#[test]
fn a_full_fixed_window_still_waits_for_predictions_until_its_time() {
    let mut rig = Rig::new(fleet(&[(32, 64), (32, 64)]), |p| {
        p.window.close = WindowClose::Fixed;
        p.window.max_requests = 2;
    });
    rig.arrive_awaiting(0.0, 1, 1.0);
    rig.arrive_awaiting(0.0, 2, 1.0);
    assert_eq!(rig.turn(0.0), Some(1.0));
    rig.predict(0.1, 1, &[0.1, 0.9]);
    assert_eq!(rig.turn(0.1), Some(1.0));
    rig.predict(0.2, 2, &[0.1, 0.9]);
    rig.turn(0.2);
    assert_eq!(rig.sent(), [(1, D1), (2, D1)]);
}

#[test]
fn a_window_that_could_not_close_in_time_takes_no_more_in() {
    let mut rig = Rig::new(fleet(&[(4, 8)]), |p| p.window.close = WindowClose::Fixed);
    rig.arrive(0.0, 1);
    let job = rig.take_job(1.0);
    rig.arrive(1.5, 2);
    rig.commit(1.5, job);
    assert_eq!(rig.turn(1.5), Some(2.5));
    assert_eq!(rig.sent(), [(1, D0)]);
}

#[test]
fn adaptive_plans_at_once_and_gathers_who_comes_right_after() {
    let mut rig = Rig::new(fleet(&[(8, 8)]), |_| {});
    rig.arrive(1.0, 1);
    assert_eq!((rig.turn(1.0), rig.waited(1)), (None, Seconds::ZERO), "an idle planner waits for nobody");
    rig.arrive(1.0005, 2);
    assert_eq!(rig.turn(1.0005), Some(1.002));
    rig.arrive(1.001, 3);
    assert_eq!(rig.turn(1.001), Some(1.002));
    rig.turn(1.002);
    assert_eq!((rig.batch_size(1), rig.batch_size(2), rig.batch_size(3)), (1, 2, 2));
    rig.arrive(1.5, 4);
    rig.turn(1.5);
    assert_eq!(rig.waited(4), Seconds::ZERO);
    // One after the other: there is no company to wait for.
    for ticket in 1..=4 {
        rig.finish(1.5001, ticket);
    }
    rig.arrive(1.5002, 5);
    rig.turn(1.5002);
    assert_eq!(rig.waited(5), Seconds::ZERO);
}

#[test]
fn adaptive_plans_a_full_batch_without_gathering_longer() {
    let mut rig = Rig::new(fleet(&[(4, 8)]), |p| p.window.max_requests = 2);
    let n_sent_after = [1, 2, 3].map(|ticket| {
        rig.arrive(0.0, ticket);
        rig.turn(0.0);
        rig.sent().len()
    });
    assert_eq!(n_sent_after, [1, 1, 3], "the second waits for company, which the third is");
}

#[test]
fn a_rounded_sum_does_not_lose_the_wakeup() {
    // (1.6 + 0.4) − 1.6 < 0.4 in binary.
    let mut rig = Rig::new(fleet(&[(1, 2)]), |p| {
        (p.window.max_wait, p.window.max_hold) = (Seconds(0.4), Some(Seconds(0.4)));
    });
    rig.arrive(1.6, 1);
    rig.arrive(1.6, 2);
    let until = rig.turn(1.603).unwrap();
    assert!((until - 1.6) < 0.4, "the case is the one meant");
    rig.turn(until);
    assert_eq!(rig.sent().len(), 2);
}

#[test]
fn zero_max_ms_and_policies_per_request_do_not_gather() {
    for zero in [true, false] {
        let mut rig = Rig::new(fleet(&[(1, 3)]), |p| {
            if zero {
                p.window.max_wait = Seconds::ZERO;
            } else {
                p.gather = false;
            }
        });
        rig.arrive(0.0, 1);
        rig.turn(0.0);
        rig.arrive(0.0, 2);
        rig.turn(0.0);
        assert_eq!(rig.sent(), [(1, D0), (2, D0)], "the engine's queue takes the second");
        assert_eq!((rig.batch_size(1), rig.batch_size(2), rig.waited(2)), (1, 1, Seconds::ZERO));
    }
}

#[test]
fn each_at_once_means_any_place_with_room() {
    let mut rig = Rig::new(fleet(&[(1, 2), (1, 2)]), |p| p.gather = false);
    for ticket in 1..=5 {
        rig.arrive_with(0.0, ticket, &[0.9, 0.1], ONE_SECOND);
    }
    rig.turn(0.0);
    let sent = rig.sent();
    assert_eq!(sent.len(), 4, "{sent:?}");
    assert_eq!((rig.inflight(0.0, D0), rig.inflight(0.0, D1)), (2, 2));
}

#[test]
fn a_prediction_is_awaited_until_its_deadline_only() {
    let mut rig = Rig::new(fleet(&[(4, 8), (4, 8)]), |_| {});
    rig.arrive_awaiting(0.0, 1, 0.05);
    rig.arrive_awaiting(0.0, 2, 0.05);
    assert_eq!(rig.turn(0.0), Some(0.05));
    rig.predict(0.03, 1, &[0.1, 0.9]);
    assert_eq!(rig.turn(0.03), Some(0.05));
    assert_eq!(rig.sent(), [(1, D1)], "leaves with its prediction, which the other still waits for");
    rig.turn(0.05);
    assert_eq!(rig.sent(), [(1, D1), (2, D0)], "the prior prefers the first destination");
    rig.predict(0.06, 2, &[0.1, 0.9]);
    rig.predict(0.06, 99, &[0.1, 0.9]);
    assert_eq!(rig.turn(0.06), None, "a prediction for what has left changes nothing");
}

#[test]
fn a_count_is_right_while_held_requests_are_planned_again() {
    let mut rig = Rig::new(fleet(&[(1, 1)]), |p| p.window.max_requests = 4);
    for ticket in 1..=3 {
        rig.arrive(0.0, ticket);
    }
    rig.turn(0.002);
    rig.finish(0.1, 1);
    let job = rig.take_job(0.1);
    rig.arrive(0.1, 4);
    rig.commit(0.1, job);
    assert_eq!(rig.turn(0.1), Some(0.1 + 0.002), "one newcomer is no full batch");
}

#[test]
fn the_next_window_sees_what_the_last_one_planned() {
    let mut rig = Rig::new(fleet(&[(2, 4), (2, 4)]), |p| p.window.close = WindowClose::Fixed);
    rig.arrive_with(0.0, 1, &[0.9, 0.1], 3.0 * ONE_SECOND);
    rig.arrive_with(0.0, 2, &[0.9, 0.1], ONE_SECOND);
    rig.turn(1.0);
    rig.arrive(1.0, 3);
    let job = rig.take_job(2.0);
    // Each has run for a second: 2 s are left of the first, and a fifth is still owed of the second; both run at once.
    let states = &job.context.states;
    assert!((states[0].backlog.0 - 2.0).abs() < 1e-6, "{states:?}");
    assert_eq!((states[0].inflight, states[1].inflight, states[1].backlog), (2, 0, Seconds::ZERO));
    assert_eq!((job.number, job.first_request_number), (2, 2));
}

#[test]
fn more_waiting_than_one_plan_takes_are_planned_one_after_the_other() {
    let mut rig = Rig::new(fleet(&[(32, 64)]), |p| p.window.max_requests = 4);
    for ticket in 1..=10 {
        rig.arrive_awaiting(0.0, ticket, 0.05);
    }
    rig.turn(0.05);
    assert_eq!(rig.sent().len(), 10, "all in the same turn");
    assert_eq!((rig.batch_size(4), rig.batch_size(8), rig.batch_size(10)), (4, 4, 2));
}

#[test]
fn nobody_waiting_means_no_wakeup() {
    let mut rig = Rig::new(fleet(&[(1, 1)]), |_| {});
    assert_eq!(rig.turn(0.0), None);
    rig.arrive(0.0, 1);
    rig.turn(0.002);
    assert_eq!(rig.turn(0.002), None);
    rig.finish(0.5, 1);
    assert_eq!(rig.turn(0.5), None);
    assert_eq!(rig.planner.context(Seconds(0.5)).states[0].backlog, Seconds::ZERO);
}

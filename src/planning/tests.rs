//! The planner's rules one by one, and its laws over random histories ([`laws`]).

mod laws;
mod rig;

use proptest::prelude::*;

use self::rig::{Refusing, Rig, fleet};
use super::{Rejection, WindowClose, WindowOrder};
use crate::domain::fixture::{prediction, request};
use crate::domain::{Availability, Constraints, DestinationOrd};
use crate::routing::NoDestination;
use crate::units::Seconds;

const D0: DestinationOrd = DestinationOrd(0);
const D1: DestinationOrd = DestinationOrd(1);

/// A completion of 100 tokens: one second at every destination of the fixture.
const ONE_SECOND: f64 = 100.0;

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
fn adaptive_coalesces_arrivals_of_the_same_instant() {
    let mut rig = Rig::new(fleet(&[(4, 8)]), |_| {});
    rig.arrive(0.0, 1);
    assert_eq!(rig.turn(0.0), Some(0.002));
    rig.arrive(0.001, 2);
    assert_eq!(rig.turn(0.001), Some(0.002));
    rig.turn(0.002);
    assert_eq!((rig.batch_size(1), rig.batch_size(2)), (2, 2));
}

#[test]
fn adaptive_plans_a_full_batch_without_coalescing() {
    let mut rig = Rig::new(fleet(&[(4, 8)]), |p| p.window.max_requests = 2);
    rig.arrive(0.0, 1);
    rig.arrive(0.0, 2);
    rig.turn(0.0);
    assert_eq!(rig.sent().len(), 2);
}

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
fn adaptive_sends_to_the_engines_queue_after_max_ms_and_no_further_than_max_inflight() {
    let mut rig = Rig::new(fleet(&[(1, 2)]), |_| {});
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
fn a_rounded_sum_does_not_lose_the_wakeup() {
    // (1.6 + 0.4) − 1.6 < 0.4 in binary.
    let mut rig = Rig::new(fleet(&[(1, 2)]), |p| p.window.max_wait = Seconds(0.4));
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
    // max(3, (3 + 1) / 2) seconds at 1.0, one second ago.
    let states = &job.context.states;
    assert!((states[0].backlog.0 - 2.0).abs() < 1e-6, "{states:?}");
    assert_eq!((states[0].inflight, states[1].inflight, states[1].backlog), (2, 0, Seconds::ZERO));
    assert_eq!((job.number, job.first_request_number), (2, 2));
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
    let none = NoDestination::Unavailable { down: 1, loading: 0, draining: 1 };
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
fn after_max_ms_a_free_slot_anywhere_will_do() {
    let mut rig = Rig::new(fleet(&[(1, 1), (1, 1)]), |p| p.window.max_hold = Some(Seconds(5.0)));
    rig.arrive_with(0.0, 1, &[0.9, 0.1], ONE_SECOND);
    rig.turn(0.002);
    rig.arrive_with(0.1, 2, &[0.9, 0.1], ONE_SECOND);
    rig.arrive_with(0.1, 3, &[0.9, 0.1], ONE_SECOND);
    rig.run_until(1.05);
    assert_eq!(rig.sent(), [(1, D0)], "held for the better place");
    rig.run_until(1.2);
    assert_eq!(rig.sent(), [(1, D0), (2, D1)]);
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

mod scales {
    use super::*;
    use crate::domain::{ObjectiveScales, RoutingContext};
    use crate::planning::ScalesAverage;
    use crate::routing::{BatchItem, CompletionModel, CostModels, EnergyModel, Problem, TimeTerm, legal_set};

    const COSTS: CostModels = CostModels {
        completion: CompletionModel::Fifo,
        time: TimeTerm::Makespan,
        energy: EnergyModel::Marginal,
    };

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
        };
        let (request, prediction) = (request("r"), prediction(quality, tokens));
        let legal = legal_set(&request, Some(&prediction), &context, &[]).unwrap();
        let item =
            BatchItem { request: &request, prediction: &prediction, legal: &legal, waited: Seconds::ZERO };
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
}

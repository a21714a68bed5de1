//! Deadlines that nothing can meet.

use super::*;

fn within(seconds: f64) -> impl FnOnce(&mut crate::domain::RoutingRequest) {
    move |request| request.constraints.deadline = Some(Seconds(seconds))
}

/// A fleet of these places whose planner refuses what cannot be done in time; a request takes a second.
fn refusing(places: &[(u32, u32)]) -> Rig {
    Rig::new(fleet(places), |p| p.refuses_infeasible = true)
}

/// Deadline, earliest completion and whether there is no hope of each request refused so.
fn refused(rig: &Rig) -> Vec<(u64, f64, f64, bool)> {
    let of = |(ticket, reason): (u64, Rejection)| match reason {
        Rejection::Impossible(NoDestination::Deadline { deadline, earliest, is_hopeless }) => {
            (ticket, deadline.0, earliest.0, is_hopeless)
        }
        other => panic!("{other:?}"),
    };
    rig.rejected().into_iter().map(of).collect()
}

#[test]
fn what_nothing_can_do_in_time_is_served_all_the_same_unless_it_is_to_be_refused() {
    let mut rig = Rig::new(fleet(&[(1, 2)]), |_| {});
    rig.arrive_request(0.0, 1, within(0.5));
    rig.turn(0.002);
    assert_eq!((rig.sent(), rig.rejected()), (vec![(1, D0)], vec![]));

    let mut rig = refusing(&[(1, 2)]);
    rig.arrive_request(0.0, 1, within(0.5));
    rig.arrive_request(0.0, 2, within(1.5));
    assert_eq!(rig.turn(0.002), None);
    assert_eq!(rig.sent(), [(2, D0)], "the others of its plan go on");
    let [(1, deadline, earliest, true)] = refused(&rig)[..] else { panic!("{:?}", rig.rejected()) };
    assert!((deadline - 0.5).abs() < 1e-12 && (earliest - 1.002).abs() < 1e-6, "{earliest}");
}

#[test]
fn a_backlog_that_leaves_no_time_refuses_with_hope() {
    let mut rig = refusing(&[(1, 2)]);
    rig.arrive(0.0, 1);
    rig.turn(0.002);
    // Two seconds from the first one's departure on, of which 0.101 have passed.
    rig.arrive_request(0.1, 2, within(1.89));
    rig.arrive_request(0.1, 3, within(1.91));
    rig.turn(0.103);
    let [(2, _, earliest, false)] = refused(&rig)[..] else { panic!("{:?}", rig.rejected()) };
    assert!((earliest - 1.902).abs() < 1e-6, "{earliest}");
    assert_eq!(rig.n_held(), 1);
}

#[test]
fn another_destination_that_meets_it_is_where_it_goes() {
    let mut rig = refusing(&[(1, 2), (1, 2)]);
    rig.arrive_with(0.0, 1, &[0.9, 0.1], ONE_SECOND);
    rig.turn(0.002);
    rig.arrive_request(0.1, 2, within(1.1));
    rig.turn(0.103);
    assert_eq!((rig.sent(), rig.rejected()), (vec![(1, D0), (2, D1)], vec![]));
    rig.arrive_request(0.2, 3, within(1.1));
    rig.turn(0.203);
    assert_eq!(refused(&rig).len(), 1, "both are taken now");
}

#[test]
fn who_is_held_is_refused_when_its_time_has_become_too_short_not_when_it_is_up() {
    let mut rig = refusing(&[(1, 1)]);
    rig.arrive(0.0, 1);
    rig.turn(0.002);
    // Done at 2.002, if the first one keeps to its second; which it does not, and nothing else happens.
    rig.arrive_request(0.1, 2, within(2.5));
    let look_at = rig.turn(0.103).unwrap();
    assert!(
        (look_at - (0.103 + 2.6 - 2.002)).abs() < 1e-6,
        "when the time to spare would be used up: {look_at}"
    );
    rig.run_until(60.0);
    let [(2, _, earliest, false)] = refused(&rig)[..] else { panic!("{:?}", rig.rejected()) };
    // From 1.002 on the first one owes what is left of it and at least something: at 1.6 nothing can be done any more.
    assert!((2.5..2.75).contains(&earliest), "{earliest}");
    assert_eq!((rig.sent(), rig.n_held()), (vec![(1, D0)], 0));
}

#[test]
fn a_destination_that_goes_takes_the_time_of_who_waits_for_it() {
    let mut rig = refusing(&[(1, 1), (1, 1)]);
    rig.arrive_with(0.0, 1, &[0.9, 0.1], 10.0 * ONE_SECOND);
    rig.arrive_with(0.0, 2, &[0.1, 0.9], ONE_SECOND);
    rig.turn(0.002);
    rig.arrive_request(0.1, 3, within(3.0));
    rig.turn(0.103);
    assert_eq!((rig.n_held(), rig.rejected()), (1, vec![]), "the second destination is free in a second");
    rig.health(&[Availability::Ready, Availability::Down]);
    rig.turn(0.2);
    let [(3, _, earliest, false)] = refused(&rig)[..] else { panic!("{:?}", rig.rejected()) };
    assert!((earliest - (10.0 + 1.002 - 0.1)).abs() < 1e-6, "{earliest}");
}

#[test]
fn whoever_fails_over_is_refused_where_nothing_else_is_in_time() {
    let mut rig = refusing(&[(1, 1), (1, 1)]);
    rig.arrive_with(0.0, 1, &[0.1, 0.9], 10.0 * ONE_SECOND);
    rig.arrive_request(0.0, 2, within(3.0));
    rig.turn(0.002);
    assert_eq!(rig.sent(), [(2, D0), (1, D1)]);
    rig.fail_over(0.5, 2, &[D0]);
    rig.turn(0.5);
    assert_eq!(refused(&rig).len(), 1, "{:?}", rig.rejected());
}

#[test]
fn a_constraint_that_leaves_nothing_is_named_before_the_deadline() {
    let mut rig = refusing(&[(1, 1)]);
    rig.health(&[Availability::Down]);
    rig.arrive_request(0.0, 1, within(0.5));
    rig.turn(0.002);
    let reason = NoDestination::Unavailable { down: 1, loading: 0, draining: 0, returning: vec![] };
    assert_eq!(rig.rejected(), [(1, Rejection::Impossible(reason))]);
}

#[test]
fn a_look_while_a_plan_is_made_and_no_destination_is_left_comes_to_an_end() {
    let mut rig = refusing(&[(1, 1)]);
    rig.arrive(0.0, 1);
    rig.turn(0.002);
    rig.arrive_request(0.1, 2, within(8.0));
    rig.turn(0.103);
    rig.arrive(0.2, 3);
    let job = rig.take_job(0.203);
    rig.health(&[Availability::Down]);
    assert_eq!(rig.turn(1.2), Some(600.1), "nothing to do but to wait for the plan");
    rig.commit(1.3, job);
    rig.turn(1.3);
    let reason = NoDestination::Unavailable { down: 1, loading: 0, draining: 0, returning: vec![] };
    let rejected: Vec<_> = rig.rejected().into_iter().map(|(_, reason)| reason).collect();
    assert_eq!(rejected, vec![Rejection::Impossible(reason); 2]);
}

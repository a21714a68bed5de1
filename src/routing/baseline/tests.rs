//! Golden values of the baselines, worked by hand.

use crate::domain::{DestinationOrd, NodeClass};
use crate::routing::testing::random_tables;
use crate::routing::{
    Clusters, Objective, PolicyError, PolicyKind, PolicyParams, Problem, ProblemTables, RoutingDecision,
    for_kind, rng_for,
};

fn route(kind: PolicyKind, tables: &ProblemTables) -> Result<RoutingDecision, PolicyError> {
    let problem = Problem::new(tables.clone()).unwrap();
    let objective = Objective::batch(&problem);
    for_kind(kind, &PolicyParams::default()).route(&problem, &objective, &mut rng_for(1, 0), &mut || false)
}

fn chosen(kind: PolicyKind, tables: &ProblemTables) -> Vec<u32> {
    route(kind, tables).unwrap().assignment.iter().map(|d| d.0).collect()
}

/// Four requests at three idle, serial destinations (cloud, edge, cloud), one second each.
fn tables() -> ProblemTables {
    let mut tables = random_tables(1, 4, 3, false);
    for d in &mut tables.destinations {
        (d.backlog_s, d.batch_speedup, d.inflight, d.network_s) = (0.0, 1.0, 0, 0.0);
    }
    tables.service_s.fill(1.0);
    tables.first_request_number = 0;
    tables
}

#[test]
fn round_robin_goes_on_where_the_last_batch_ended_and_skips_the_illegal() {
    let mut tables = tables();
    assert_eq!(chosen(PolicyKind::RoundRobin, &tables), [0, 1, 2, 0]);
    tables.first_request_number = 4;
    assert_eq!(chosen(PolicyKind::RoundRobin, &tables), [1, 2, 0, 1]);
    tables.legal[0..3].copy_from_slice(&[true, false, true]);
    assert_eq!(chosen(PolicyKind::RoundRobin, &tables), [2, 2, 0, 1]);
}

#[test]
fn least_loaded_counts_backlog_and_what_the_batch_has_sent() {
    let mut tables = tables();
    tables.destinations[0].backlog_s = 1.5;
    // 1.5/0/0 → 1; 1.5/1/0 → 2; 1.5/1/1 → 1; 1.5/2/1 → 2.
    assert_eq!(chosen(PolicyKind::LeastLoaded, &tables), [1, 2, 1, 2]);
    tables.destinations[1].inflight = 5;
    assert_eq!(chosen(PolicyKind::LeastLoaded, &tables)[0], 2, "ties go to the fewest outstanding");
}

#[test]
fn placement_policies_stay_in_their_class_or_say_what_is_absent() {
    let mut tables = tables();
    assert_eq!(chosen(PolicyKind::CloudOnly, &tables), [0, 2, 0, 2]);
    assert_eq!(chosen(PolicyKind::EdgeOnly, &tables), [1, 1, 1, 1]);
    tables.legal[3..6].copy_from_slice(&[true, false, true]);
    let absent =
        PolicyError::NoDestinationOfClass { policy: "edge_only", request: 1, class: NodeClass::Edge };
    assert_eq!(route(PolicyKind::EdgeOnly, &tables), Err(absent));
    tables.destinations[2].class = None;
    let unknown = PolicyError::NoClass { policy: "cloud_only", destination: "d2".into() };
    assert_eq!(route(PolicyKind::CloudOnly, &tables), Err(unknown));
}

#[test]
fn uniroute_weighs_cluster_error_and_money_only() {
    let mut tables = tables();
    assert_eq!(route(PolicyKind::Uniroute, &tables), Err(PolicyError::NoClusters));
    tables.cost_usd = [0.0, 0.5, 1.0].repeat(4);
    let error = vec![0.30, 0.28, 0.20, 0.30, 0.20, 0.19];
    tables.clusters = Some(Clusters { of_request: vec![0, 1, 1, 0], error });
    // Cluster 0: .30, .28 + .025, .20 + .05; cluster 1: .30, .20 + .025, .19 + .05.
    assert_eq!(chosen(PolicyKind::Uniroute, &tables), [2, 1, 1, 2]);
}

#[test]
fn greedy_sees_the_load_it_has_made() {
    let mut tables = tables();
    tables.quality_loss = [0.1, 0.2, 0.9].repeat(4);
    (tables.cost_usd, tables.energy_j) = (vec![1.0; 12], vec![1.0; 12]);
    // Loss ranges over .3 within the batch bounds and time over 3 s: queueing outweighs the step to d1.
    let decision = route(PolicyKind::Greedy, &tables).unwrap();
    assert_eq!(decision.assignment[0], DestinationOrd(0));
    assert!(decision.assignment.contains(&DestinationOrd(1)));
    assert_eq!(decision.assignment, route(PolicyKind::GreedyPlain, &tables).unwrap().assignment);
}

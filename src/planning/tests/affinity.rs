//! Conversations stay where their prompt is cached unless moving pays.

use std::sync::Arc;

use super::*;
use crate::domain::{CachedPrefix, Destination, ModelTarget, RoutingRequest, Weights};
use crate::planning::{PlanParams, Planned, Ticket};
use crate::routing::{CompletionModel, CostModels, TimeTerm};
use crate::units::{Tokens, TokensPerSec};

const MODELS: [(CompletionModel, TimeTerm); 3] = [
    (CompletionModel::Slots, TimeTerm::Sum),
    (CompletionModel::Fifo, TimeTerm::Sum),
    (CompletionModel::Fifo, TimeTerm::Makespan),
];

/// Two alike, a thousand tokens of prompt a second.
fn pair(slots: u32) -> Vec<Destination> {
    let mut destinations = fleet(&[(slots, 8), (slots, 8)]);
    for destination in &mut destinations {
        destination.throughput.prefill = TokensPerSec(1_000.0);
    }
    destinations
}

fn rig(slots: u32, policy: PolicyKind, (completion, time): (CompletionModel, TimeTerm)) -> Rig {
    let mut rig = Rig::new(pair(slots), |p| {
        p.completion = completion;
        // Energy would stay for longer.
        p.weights = Weights { quality: 0.0, cost: 0.0, energy: 0.0, time: 1.0 };
    });
    rig.plan = PlanParams { costs: CostModels { completion, time, ..rig.plan.costs }, ..rig.plan };
    rig.policy = for_kind(policy, &PolicyParams::default());
    rig
}

/// The second turn of a conversation: 2000 tokens, of which the second destination has 1500.
fn second_turn(request: &mut RoutingRequest) {
    request.prompt_tokens = Tokens(2_000.0);
    request.cached = CachedPrefix::new(vec![Tokens::ZERO, Tokens(1_500.0)]);
}

impl Rig {
    /// As good everywhere, one second of completion.
    fn arrive_alike(&mut self, now: f64, ticket: u64, change: impl FnOnce(&mut RoutingRequest)) {
        self.arrive_request(now, ticket, change);
        self.predict(now, ticket, &[0.5, 0.5]);
    }

    fn predict_length(&mut self, now: f64, ticket: u64, tokens: f64) {
        self.planner.predicted(Seconds(now), Ticket(ticket), Arc::new(prediction(&[0.5, 0.5], tokens)));
    }

    /// What is planned of the second turn if the second destination is busy for so many seconds.
    fn second_turn_behind(&mut self, busy_s: f64) -> Planned {
        if busy_s > 0.0 {
            self.arrive_request(0.0, 1, |r| r.target = ModelTarget::Named("model-1".into()));
            self.predict_length(0.0, 1, busy_s * ONE_SECOND);
            self.turn(0.002);
            assert_eq!(self.sent(), [(1, D1)]);
        }
        self.arrive_alike(0.002, 2, second_turn);
        let job = self.take_job(0.004);
        job.solve(self.policy.as_ref(), &self.plan, &mut || false).unwrap().planned[0].clone()
    }
}

#[test]
fn the_second_turn_stays_while_loads_are_equal() {
    for models in MODELS {
        for policy in [PolicyKind::Greedy, PolicyKind::Memetic] {
            let planned = rig(4, policy, models).second_turn_behind(0.0);
            assert_eq!(planned.destination, D1, "{policy:?} {models:?}");
        }
    }
}

#[test]
fn it_moves_where_the_queue_takes_longer_than_reading_again() {
    // One slot. Reading what is cached takes a second and a half.
    for models in MODELS {
        // The makespan has a price on backlog besides.
        let short_s = if models.1 == TimeTerm::Makespan { 0.2 } else { 1.0 };
        for policy in [PolicyKind::Greedy, PolicyKind::Memetic] {
            for (busy_s, goes_to) in [(short_s, D1), (4.0, D0)] {
                let planned = rig(1, policy, models).second_turn_behind(busy_s);
                assert_eq!(planned.destination, goes_to, "{policy:?} {models:?} {busy_s} s");
            }
        }
    }
}

#[test]
fn every_prediction_has_the_same_prompt_to_read() {
    for models in MODELS {
        let mut rig = rig(4, PolicyKind::Greedy, models);
        rig.arrive_alike(0.0, 1, second_turn);
        let plan = rig.take_job(0.002).solve(rig.policy.as_ref(), &rig.plan, &mut || false).unwrap();
        let Planned { destination, cached, work, estimate, first_content, .. } = &plan.planned[0];
        assert_eq!((*destination, *cached), (D1, Tokens(1_500.0)));
        // (2000 − 1500) / 1000 of prompt, and one second of completion.
        assert!((work.prefill.0 - 0.5).abs() < 1e-9 && (work.decode.0 - 1.0).abs() < 1e-9, "{work:?}");
        assert!((estimate.service.0 - 1.5).abs() < 1e-9, "{estimate:?}");
        assert!((estimate.completion.0 - 1.5).abs() < 1e-3, "{estimate:?}");
        assert!(first_content.0 < 1.5 + 1e-3, "{first_content:?}");
    }
}

#[test]
fn a_deadline_that_only_the_cache_can_meet_goes_there() {
    for models in MODELS {
        let mut rig = rig(4, PolicyKind::RoundRobin, models);
        // Round robin begins with the first destination; 3 s there, 1.5 s at the other.
        rig.arrive_alike(0.0, 1, |request| {
            second_turn(request);
            request.constraints.deadline = Some(Seconds(2.0));
        });
        rig.turn(0.002);
        assert_eq!(rig.sent(), [(1, D1)], "{models:?}");
    }
}

#[test]
fn what_is_cached_makes_a_request_short_in_the_order_of_taking_slots() {
    let mut rig = rig(1, PolicyKind::Greedy, MODELS[0]);
    for ticket in [1, 2] {
        rig.arrive_alike(0.0, ticket, |_| {});
    }
    rig.turn(0.002);
    assert_eq!(rig.sent().len(), 2, "both slots are taken");
    let cached = |tokens| CachedPrefix::new(vec![Tokens(tokens), Tokens(tokens)]);
    rig.arrive_alike(0.1, 3, |request| request.prompt_tokens = Tokens(1_000.0));
    rig.arrive_alike(0.1, 4, |request| {
        request.prompt_tokens = Tokens(2_000.0);
        request.cached = cached(1_900.0);
    });
    rig.turn(0.102);
    rig.finish(1.0, 1);
    rig.turn(1.0);
    assert_eq!(rig.sent()[2].0, 4);
}

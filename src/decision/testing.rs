//! A plan to be written down, for the tests of this module.

use std::sync::Arc;

use super::{Effort, SolvedPlan};
use crate::domain::fixture::{destination, prediction, request};
use crate::domain::{
    Availability, CompletionModel, Constraints, Destination, DestinationOrd, DestinationState, NodeClass,
    ObjectiveScales, Price, RoutingContext, RoutingRequest, SlotLoad, TimeTerm, Weights, Work,
};
use crate::planning::{PlanJob, PlanParams, Ticket, Waiting};
use crate::routing::{CostModels, EnergyModel, ObjectiveMode, PolicyKind, PolicyParams, for_kind};
use crate::units::{Joules, Quality, Seconds, Tokens, TokensPerSec, Usd, Watts};

/// The usual models, seed 7.
pub(super) const PARAMS: PlanParams = PlanParams {
    costs: CostModels {
        completion: CompletionModel::Slots,
        time: TimeTerm::Sum,
        energy: EnergyModel::Marginal,
    },
    objective: ObjectiveMode::Stationary,
    seed: 7,
};

/// Four destinations: fast, dear and hungry (0) to slow, free and frugal (2), and one that is down (3).
pub(super) fn fleet() -> Vec<Destination> {
    let of = |n: u32| {
        let k = f64::from(n);
        let mut d = destination(n, 4, 8);
        d.class = if n == 0 { NodeClass::Cloud } else { NodeClass::Edge };
        d.throughput.decode = TokensPerSec(120.0 / (1.0 + k));
        d.throughput.prefill = TokensPerSec(3e3 / (1.0 + k));
        d.throughput.batch_speedup = 2.5;
        d.price = Price { completion_usd_per_mtok: 3.0 - k, ..Price::default() };
        d.power.board = Watts(400.0 / (1.0 + 3.0 * k));
        d
    };
    (0..4).map(of).collect()
}

/// `n` requests of different sizes and needs, under some load.
pub(crate) fn job(n: u32) -> PlanJob {
    let mut states = vec![DestinationState::idle(); 4];
    states[0].load = SlotLoad {
        running: 3,
        prefill: Seconds(0.3),
        decode: Seconds(6.0),
        soonest: Seconds(0.7),
        queued: 0,
        queued_work: Work::default(),
    };
    (states[0].inflight, states[0].backlog, states[0].price_per_s) = (3, Seconds(2.4), 0.013);
    states[1].pace = 0.83;
    states[3].availability = Availability::Down;
    let waiting = |i: u32| {
        let k = f64::from(i);
        let mut r = RoutingRequest { prompt_tokens: Tokens(40.0 + 31.7 * k), ..request(&format!("r{i}")) };
        if i % 3 == 1 {
            r.constraints = Constraints { min_quality: Some(Quality(0.5)), ..Constraints::default() };
        }
        if i % 5 == 2 {
            r.weights = Some(Weights { quality: 0.7, cost: 0.1, energy: 0.1, time: 0.1 });
        }
        let quality = [0.9 - 0.013 * k, 0.7, 0.35 + 0.011 * k, 0.8];
        Waiting {
            ticket: Ticket(u64::from(i)),
            request: Arc::new(r),
            prediction: Arc::new(prediction(&quality, 60.0 + 17.3 * k)),
            excluded: if i == 4 { vec![DestinationOrd(1)] } else { Vec::new() },
            waited: Seconds(0.01 * k),
            takes_any_slot: false,
            takes_any_room: false,
        }
    };
    PlanJob {
        number: 42,
        taken_at: Seconds(123.456),
        first_request_number: 7,
        waiting: (0..n).map(waiting).collect(),
        context: RoutingContext {
            destinations: fleet().into(),
            states,
            weights: Weights::EQUAL,
            scales: ObjectiveScales {
                quality: 0.25,
                cost: Usd(2e-4),
                energy: Joules(150.0),
                time: Seconds(2.2),
            },
            finish_target: None,
        },
        completion: CompletionModel::Slots,
        time: None,
    }
}

/// The plan of `job` by a policy that is stopped after `polls` polls.
pub(crate) fn solved(job: PlanJob, kind: PolicyKind, polls: u64) -> SolvedPlan {
    let policy = for_kind(kind, &PolicyParams::default());
    let mut params = PARAMS;
    params.costs = kind.models(params.costs);
    SolvedPlan::solve(Box::new(job), policy.as_ref(), params, &mut Effort { polls }.again()).unwrap()
}

//! The policies, how they are driven, and when which of them has its turn.

use crate::config::{Config, RoutingConfig, SwitchbackConfig};
use crate::planning::{Alternation, PlanParams, PlannerParams, PriceParams};
use crate::routing::{CostModels, PolicyKind, PolicyParams, for_kind};
use crate::scheduler::SchedulerParams;
use crate::scheduler::arms::PolicyArm;
use crate::units::Seconds;

/// The policies that plans are made by, with whose turn it is where there are several, and what they are driven by.
///
/// The books of what is outstanding are kept by one model of completion whoever has its turn: that of the policy where
/// there is one, the configured one where there are several.
pub(super) fn scheduling(config: &Config) -> ((Vec<PolicyArm>, Option<Alternation>), SchedulerParams) {
    let routing = &config.routing;
    let kinds = config.switchback.as_ref().map_or(vec![routing.policy], |of| of.policies.clone());
    let completion = match config.switchback {
        Some(_) => routing.completion,
        None => models(routing, routing.policy).completion,
    };
    let pays_prices = kinds.iter().any(|kind| kind.pays_prices());
    let params = SchedulerParams {
        planner: PlannerParams {
            window: config.window,
            gather: kinds.first().is_some_and(|kind| gathers(*kind)),
            weights: routing.weights,
            completion,
            prices: pays_prices.then(PriceParams::default),
            refuses_infeasible: routing.refuse_infeasible_deadlines,
        },
        plan: plan_params(routing, routing.policy),
        budget: routing.budget,
        embed_wait: config.quality.embed_wait,
        max_queued: config.limits.max_queued_requests,
        request_deadline: Seconds(config.limits.request_deadline.as_secs_f64()),
    };
    let arm = |kind: &PolicyKind| PolicyArm {
        policy: for_kind(*kind, &PolicyParams::default()),
        plan: plan_params(routing, *kind),
        gather: gathers(*kind),
        pays_prices: kind.pays_prices(),
    };
    let arms: Vec<_> = kinds.iter().map(arm).collect();
    let alternation = config.switchback.as_ref().map(|SwitchbackConfig { slice, washout, .. }| Alternation {
        slice: *slice,
        washout: *washout,
        n_policies: arms.len(),
        seed: routing.seed,
    });
    ((arms, alternation), params)
}

/// The policy that plans first: what answers say unless theirs was another's.
pub(super) fn usual_policy(config: &Config) -> &'static str {
    let first = config.switchback.as_ref().and_then(|of| of.policies.first());
    first.unwrap_or(&config.routing.policy).as_str()
}

fn gathers(kind: PolicyKind) -> bool {
    matches!(kind, PolicyKind::Memetic | PolicyKind::MemeticPaper)
}

/// What plans of a policy are made by.
pub(crate) fn plan_params(routing: &RoutingConfig, kind: PolicyKind) -> PlanParams {
    PlanParams { costs: models(routing, kind), objective: routing.objective, seed: routing.seed }
}

fn models(routing: &RoutingConfig, kind: PolicyKind) -> CostModels {
    kind.models(CostModels {
        completion: routing.completion,
        time: routing.time,
        energy: routing.energy_model,
    })
}

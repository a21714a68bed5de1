//! The policies that plans are made by: one, or several that take turns.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tracing::info;

use super::live_planner::LivePlanner;
use super::solver::{Deciding, Solver};
use crate::planning::{Alternation, PlanJob, PlanParams, Planner, Slice};
use crate::routing::RoutingPolicy;
use crate::units::Seconds;

/// A policy with how it is driven.
pub struct PolicyArm {
    /// The policy.
    pub policy: Box<dyn RoutingPolicy + Send + Sync>,
    /// Models and seed of its plans.
    pub plan: PlanParams,
    /// Whether it gains from company: it gathers in an adaptive window, and its plans are made on a thread of their own.
    pub gather: bool,
    /// Whether its plans pay congestion prices, where there are any.
    pub pays_prices: bool,
}

/// A policy at work.
pub(super) struct Arm {
    pub(super) name: &'static str,
    pub(super) gather: bool,
    pub(super) pays_prices: bool,
    pub(super) solver: Solver,
}

/// A policy whose plans are made on a thread that has not been started.
pub(super) struct Threaded {
    deciding: Deciding,
    inbox: Receiver<Box<PlanJob>>,
}

impl Threaded {
    /// Starts the thread; it ends with the scheduler.
    pub(super) fn start(self, planner: Weak<LivePlanner>) -> std::io::Result<()> {
        self.deciding.start(self.inbox, planner)
    }
}

impl Arm {
    /// The arm of a policy, and what is still to be started of it.
    pub(super) fn new(arm: PolicyArm, budget: Duration) -> (Self, Option<Threaded>) {
        let PolicyArm { policy, plan: params, gather, pays_prices } = arm;
        let name = policy.name();
        let deciding = Deciding { policy, params, budget };
        if !gather {
            return (Self { name, gather, pays_prices, solver: Solver::InPlace(deciding) }, None);
        }
        let (solver, inbox) = Solver::on_thread();
        (Self { name, gather, pays_prices, solver }, Some(Threaded { deciding, inbox }))
    }
}

/// The policies and whose turn it is.
pub(super) struct Arms {
    arms: Vec<Arm>,
    /// `None` = the first one's, always.
    alternation: Option<Alternation>,
    slice: Option<Slice>,
}

impl Arms {
    /// At least one; more where they take turns.
    pub(super) const fn new(arms: Vec<Arm>, alternation: Option<Alternation>) -> Self {
        Self { arms, alternation, slice: None }
    }

    pub(super) fn names(&self) -> Arc<[&'static str]> {
        self.arms.iter().map(|arm| arm.name).collect()
    }

    pub(super) const fn alternation(&self) -> Option<Alternation> {
        self.alternation
    }

    /// Whoever has its turn.
    pub(super) fn current(&self) -> &Arm {
        &self.arms[self.slice.map_or(0, |slice| slice.policy)]
    }

    /// Hands over to whoever has its turn at `now`. When the next one has, `None` = never.
    pub(super) fn take_turns(&mut self, now: Seconds, planner: &mut Planner) -> Option<Seconds> {
        let alternation = self.alternation.as_ref()?;
        if let Some(slice) = self.slice.filter(|slice| now.0 < slice.ends.0) {
            return Some(slice.ends);
        }
        let next = alternation.at(now);
        let is_other = self.slice.is_none_or(|slice| slice.policy != next.policy);
        self.slice = Some(next);
        if is_other {
            let &Arm { name, gather, pays_prices, .. } = self.current();
            info!(policy = name, slice = next.number, "a policy has its turn");
            planner.follow(now, gather, pays_prices);
        }
        Some(next.ends)
    }
}

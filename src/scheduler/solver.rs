//! Where plans are solved: a policy that searches has a thread of its own, since its CPU work must never run on
//! the async threads; one that does not takes microseconds and decides in place.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::live_planner::LivePlanner;
use crate::cpu_time::thread_cpu_time;
use crate::decision::SolvedPlan;
use crate::planning::{PlanJob, PlanParams, SolveError};
use crate::routing::RoutingPolicy;

/// Wall time a plan may take per unit of its budget: on a crowded machine the thread may not be running.
const WALL_PER_BUDGET: u32 = 3;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoPlan {
    /// The policy said so.
    #[error(transparent)]
    Undecided(#[from] SolveError),
    /// A defect.
    #[error("the routing policy panicked")]
    Panicked,
    /// The solver's thread is gone.
    #[error("the solver's thread is gone")]
    Gone,
}

pub(super) type SolveOutcome = Result<Arc<SolvedPlan>, NoPlan>;

/// A policy and what it is driven by.
pub(super) struct Deciding {
    pub(super) policy: Box<dyn RoutingPolicy + Send + Sync>,
    pub(super) params: PlanParams,
    pub(super) budget: Duration,
}

/// Solves plans, one at a time.
pub(super) enum Solver {
    /// At once.
    InPlace(Deciding),
    /// On the thread at the other end, which hands the plan to [`LivePlanner::solved`].
    Thread(SyncSender<Box<PlanJob>>),
}

impl Solver {
    /// A solver with a thread, and the end its thread reads from.
    pub(super) fn on_thread() -> (Self, Receiver<Box<PlanJob>>) {
        let (jobs, inbox) = sync_channel(1);
        (Self::Thread(jobs), inbox)
    }

    /// Solves a job, or has it solved: `None`.
    pub(super) fn solve(&self, job: Box<PlanJob>) -> Option<SolveOutcome> {
        match self {
            // It does not ask when to stop.
            Self::InPlace(deciding) => Some(deciding.solve(job, &mut || false)),
            // The planner has one job under way at most: there is room.
            Self::Thread(jobs) => jobs.try_send(job).is_err().then_some(Err(NoPlan::Gone)),
        }
    }
}

impl Deciding {
    /// Starts the thread that solves what comes through `inbox`; it ends with the scheduler.
    pub(super) fn start(
        self,
        inbox: Receiver<Box<PlanJob>>,
        planner: Weak<LivePlanner>,
    ) -> std::io::Result<()> {
        std::thread::Builder::new().name("cema-solver".to_owned()).spawn(move || {
            for job in inbox {
                let outcome = self.solve_within_budget(job);
                let Some(planner) = planner.upgrade() else { return };
                planner.solved(outcome);
            }
        })?;
        Ok(())
    }

    fn solve_within_budget(&self, job: Box<PlanJob>) -> SolveOutcome {
        let (began, began_cpu) = (Instant::now(), thread_cpu_time());
        let is_spent = || (thread_cpu_time() - began_cpu).0 >= self.budget.as_secs_f64();
        self.solve(job, &mut || is_spent() || began.elapsed() >= self.budget * WALL_PER_BUDGET)
    }

    fn solve(&self, job: Box<PlanJob>, stop: &mut dyn FnMut() -> bool) -> SolveOutcome {
        let began = Instant::now();
        let deciding = catch_unwind(AssertUnwindSafe(|| {
            SolvedPlan::solve(job, self.policy.as_ref(), self.params, stop)
        }));
        let solved = deciding.map_err(|_| NoPlan::Panicked)??;
        Ok(Arc::new(SolvedPlan { took: began.elapsed(), ..solved }))
    }
}

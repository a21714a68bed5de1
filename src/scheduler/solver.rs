//! The solver's thread: plans are CPU work and never run on the async threads.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::cpu_time::thread_cpu_time;
use crate::planning::{Plan, PlanJob, PlanParams, SolveError};
use crate::routing::RoutingPolicy;

/// Wall time a plan may take per unit of its budget: on a crowded machine the thread may not be running.
const WALL_PER_BUDGET: u32 = 3;

/// A plan and how long it took to make, tables included.
#[derive(Debug, Clone)]
pub struct SolvedPlan {
    /// The plan.
    pub plan: Plan,
    /// Wall time of solving.
    pub took: Duration,
}

pub(super) type SolveOutcome = Result<SolvedPlan, SolveError>;

struct Order {
    job: PlanJob,
    reply: oneshot::Sender<SolveOutcome>,
}

/// Handle of the thread; it ends when the handle is dropped.
#[derive(Debug)]
pub(super) struct SolverThread {
    orders: SyncSender<Order>,
}

impl SolverThread {
    /// Starts the thread.
    pub(super) fn start(
        policy: Box<dyn RoutingPolicy + Send + Sync>,
        params: PlanParams,
        budget: Duration,
    ) -> std::io::Result<Self> {
        let (orders, inbox) = sync_channel::<Order>(1);
        std::thread::Builder::new().name("cema-solver".to_owned()).spawn(move || {
            for order in inbox {
                let outcome = solve(order.job, policy.as_ref(), &params, budget);
                // The scheduler may be gone.
                let _ = order.reply.send(outcome);
            }
        })?;
        Ok(Self { orders })
    }

    /// Gives the thread a job. The planner has one job under way at most, so this never blocks.
    pub(super) fn submit(&self, job: PlanJob) -> oneshot::Receiver<SolveOutcome> {
        let (reply, outcome) = oneshot::channel();
        // A thread that is gone drops the reply, which the receiver notices.
        let _ = self.orders.try_send(Order { job, reply });
        outcome
    }
}

fn solve(job: PlanJob, policy: &dyn RoutingPolicy, params: &PlanParams, budget: Duration) -> SolveOutcome {
    let began = Instant::now();
    let began_cpu = thread_cpu_time();
    let is_spent = || (thread_cpu_time() - began_cpu).0 >= budget.as_secs_f64();
    let mut stop = || is_spent() || began.elapsed() >= budget * WALL_PER_BUDGET;
    let plan = job.solve(policy, params, &mut stop)?;
    Ok(SolvedPlan { plan, took: began.elapsed() })
}

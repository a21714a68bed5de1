//! Metrics of the scheduler.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, IntGauge, IntGaugeVec, Opts, Registry, exponential_buckets,
};

use crate::domain::{Destination, RoutingContext};
use crate::planning::Plan;
use crate::units::Seconds;

#[derive(Debug)]
pub(super) struct SchedulerMetrics {
    window_size: Histogram,
    window_wait: Histogram,
    hold: Histogram,
    solve_duration: Histogram,
    solver_gap: Histogram,
    held: IntGauge,
    objective: GaugeVec,
    objective_total: Gauge,
    backlog: Vec<Gauge>,
    inflight: Vec<IntGauge>,
}

impl SchedulerMetrics {
    pub(super) fn register(
        registry: &Registry,
        policy: &'static str,
        destinations: &Arc<[Destination]>,
    ) -> prometheus::Result<Self> {
        let histogram = |name: &str, help: &str, buckets: Vec<f64>| -> prometheus::Result<Histogram> {
            let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))?;
            registry.register(Box::new(histogram.clone()))?;
            Ok(histogram)
        };
        let solve_opts =
            HistogramOpts::new("cema_solve_duration_seconds", "Time to solve one plan, tables included.")
                .const_label("policy", policy)
                .buckets(exponential_buckets(50e-6, 2.0, 16)?);
        let solve_duration = Histogram::with_opts(solve_opts)?;
        registry.register(Box::new(solve_duration.clone()))?;
        let held = IntGauge::new("cema_held_requests", "Requests waiting in the router for a destination.")?;
        registry.register(Box::new(held.clone()))?;
        let objective = GaugeVec::new(
            Opts::new(
                "cema_objective",
                "Weighted terms of the objective J of the last plan (Eq. 5), and their sum.",
            ),
            &["term"],
        )?;
        registry.register(Box::new(objective.clone()))?;
        let backlog = GaugeVec::new(
            Opts::new("cema_backlog_seconds", "Predicted work dispatched and not finished (B_d)."),
            &["destination"],
        )?;
        registry.register(Box::new(backlog.clone()))?;
        let inflight = IntGaugeVec::new(
            Opts::new("cema_inflight", "Requests of this router outstanding at the destination."),
            &["destination"],
        )?;
        registry.register(Box::new(inflight.clone()))?;
        let ids = || destinations.iter().map(|d| d.id.as_str());
        Ok(Self {
            window_size: histogram(
                "cema_window_size",
                "Requests planned together.",
                vec![1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0],
            )?,
            window_wait: histogram(
                "cema_window_wait_seconds",
                "Time from a request's arrival until its first plan could let it go: gathering and planning.",
                exponential_buckets(0.0005, 2.0, 16)?,
            )?,
            hold: histogram(
                "cema_hold_seconds",
                "Further time a request was held because the places it was planned to were taken.",
                exponential_buckets(0.0005, 2.0, 20)?,
            )?,
            solver_gap: histogram(
                "cema_solver_gap_ratio",
                "Certified gap between a plan's objective and its lower bound.",
                vec![0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0],
            )?,
            objective_total: objective.with_label_values(&["total"]),
            solve_duration,
            held,
            objective,
            backlog: ids().map(|id| backlog.with_label_values(&[id])).collect(),
            inflight: ids().map(|id| inflight.with_label_values(&[id])).collect(),
        })
    }

    /// A plan was made.
    pub(super) fn plan(&self, plan: &Plan, took: Duration) {
        self.solve_duration.observe(took.as_secs_f64());
        self.window_size.observe(plan.planned.len() as f64);
        let Some(solved) = &plan.solved else { return };
        if let Some(gap) = solved.decision.certified_gap {
            self.solver_gap.observe(gap);
        }
        self.objective_total.set(solved.decision.objective);
        for (term, value) in solved.decision.terms.named() {
            self.objective.with_label_values(&[term]).set(value);
        }
    }

    /// A request left for its destination.
    pub(super) fn sent(&self, gathered: Option<Seconds>, held: Seconds) {
        if let Some(gathered) = gathered {
            self.window_wait.observe(gathered.0);
        }
        self.hold.observe(held.0);
    }

    /// The fleet as it is now.
    pub(super) fn fleet(&self, context: &RoutingContext, n_held: usize) {
        self.held.set(i64::try_from(n_held).unwrap_or(i64::MAX));
        for ((state, backlog), inflight) in context.states.iter().zip(&self.backlog).zip(&self.inflight) {
            backlog.set(state.backlog.0);
            inflight.set(i64::from(state.inflight));
        }
    }
}

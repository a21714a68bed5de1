//! Metrics of the scheduler.

use std::sync::{Arc, Weak};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntGauge, IntGaugeVec, Opts,
    Registry, exponential_buckets,
};

use super::live_planner::LivePlanner;
use crate::decision::SolvedPlan;
use crate::domain::Destination;
use crate::routing::ObjectiveTerms;
use crate::units::Seconds;

#[derive(Debug)]
pub(super) struct SchedulerMetrics {
    window_size: Histogram,
    window_wait: Histogram,
    hold: Histogram,
    solve_duration: HistogramVec,
    solver_gap: Histogram,
    joint_gain: Histogram,
    /// The weighted terms of J, in the order of [`ObjectiveTerms::named`](crate::routing::ObjectiveTerms::named), and their sum.
    objective: Vec<Gauge>,
    objective_total: Gauge,
}

/// The fleet as the planner sees it, worked out when it is asked for.
pub(super) struct FleetGauges {
    planner: Weak<LivePlanner>,
    held: IntGauge,
    backlog: GaugeVec,
    inflight: IntGaugeVec,
    price: GaugeVec,
    rebinds: IntCounter,
    per_destination: Vec<DestinationGauges>,
}

struct DestinationGauges {
    backlog: Gauge,
    inflight: IntGauge,
    price: Gauge,
}

impl SchedulerMetrics {
    pub(super) fn register(registry: &Registry, policies: &[&'static str]) -> prometheus::Result<Self> {
        let histogram = |name: &str, help: &str, buckets: Vec<f64>| -> prometheus::Result<Histogram> {
            let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))?;
            registry.register(Box::new(histogram.clone()))?;
            Ok(histogram)
        };
        let solve_opts =
            HistogramOpts::new("cema_solve_duration_seconds", "Time to solve one plan, tables included.")
                .buckets(exponential_buckets(50e-6, 2.0, 16)?);
        let solve_duration = HistogramVec::new(solve_opts, &["policy"])?;
        for policy in policies {
            solve_duration.with_label_values(&[*policy]);
        }
        registry.register(Box::new(solve_duration.clone()))?;
        let objective = GaugeVec::new(
            Opts::new(
                "cema_objective",
                "Weighted terms of the objective J of the last plan (Eq. 5), and their sum.",
            ),
            &["term"],
        )?;
        registry.register(Box::new(objective.clone()))?;
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
            joint_gain: histogram(
                "cema_joint_gain_ratio",
                "By how much a joint plan's objective is below that of a greedy choice request by request in the \
                 same plan. What is gained by planning anew at every event does not show here.",
                vec![0.0, 0.0001, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5],
            )?,
            objective_total: objective.with_label_values(&["total"]),
            objective: ObjectiveTerms::default()
                .named()
                .iter()
                .map(|(term, _)| objective.with_label_values(&[term]))
                .collect(),
            solve_duration,
        })
    }

    /// A plan was made.
    pub(super) fn plan(&self, SolvedPlan { plan, policy, took, .. }: &SolvedPlan) {
        self.solve_duration.with_label_values(&[*policy]).observe(took.as_secs_f64());
        self.window_size.observe(plan.planned.len() as f64);
        let Some(solved) = &plan.solved else { return };
        if let Some(gap) = solved.decision.certified_gap {
            self.solver_gap.observe(gap);
        }
        if let Some(greedy) = solved.decision.greedy_objective.filter(|greedy| greedy.abs() > 0.0) {
            self.joint_gain.observe((greedy - solved.decision.objective) / greedy.abs());
        }
        self.objective_total.set(solved.decision.objective);
        for (gauge, (_, value)) in self.objective.iter().zip(solved.decision.terms.named()) {
            gauge.set(value);
        }
    }

    /// A request left for its destination.
    pub(super) fn sent(&self, gathered: Option<Seconds>, held: Seconds) {
        if let Some(gathered) = gathered {
            self.window_wait.observe(gathered.0);
        }
        self.hold.observe(held.0);
    }
}

impl FleetGauges {
    pub(super) fn new(
        planner: &Arc<LivePlanner>,
        destinations: &Arc<[Destination]>,
    ) -> prometheus::Result<Self> {
        let held = IntGauge::new("cema_held_requests", "Requests waiting in the router for a destination.")?;
        let backlog = GaugeVec::new(
            Opts::new("cema_backlog_seconds", "Predicted work dispatched and not finished (B_d)."),
            &["destination"],
        )?;
        let inflight = IntGaugeVec::new(
            Opts::new("cema_inflight", "Requests of this router outstanding at the destination."),
            &["destination"],
        )?;
        let price = GaugeVec::new(
            Opts::new(
                "cema_destination_price",
                "Congestion price: objective per second of the destination's time, where time is all that counts. \
                 The destination with the highest one is what the fleet lacks most.",
            ),
            &["destination"],
        )?;
        let rebinds = IntCounter::new(
            "cema_rebinds_total",
            "Times that a waiting request was planned to another destination than before.",
        )?;
        let of = |d: &Destination| DestinationGauges {
            backlog: backlog.with_label_values(&[d.id.as_str()]),
            inflight: inflight.with_label_values(&[d.id.as_str()]),
            price: price.with_label_values(&[d.id.as_str()]),
        };
        let per_destination = destinations.iter().map(of).collect();
        Ok(Self {
            planner: Arc::downgrade(planner),
            held,
            backlog,
            inflight,
            price,
            rebinds,
            per_destination,
        })
    }
}

impl Collector for FleetGauges {
    fn desc(&self) -> Vec<&Desc> {
        let own = [self.held.desc(), self.backlog.desc(), self.inflight.desc()];
        [own.concat(), self.price.desc(), self.rebinds.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        if let Some(planner) = self.planner.upgrade() {
            planner.look(|context, waiting| {
                self.held.set(i64::try_from(waiting.n_held).unwrap_or(i64::MAX));
                self.rebinds.inc_by(waiting.n_rebinds.saturating_sub(self.rebinds.get()));
                for (state, gauges) in context.states.iter().zip(&self.per_destination) {
                    gauges.backlog.set(state.backlog.0);
                    gauges.inflight.set(i64::from(state.inflight));
                    gauges.price.set(state.price_per_s);
                }
            });
        }
        let own = [self.held.collect(), self.backlog.collect(), self.inflight.collect()];
        [own.concat(), self.price.collect(), self.rebinds.collect()].concat()
    }
}

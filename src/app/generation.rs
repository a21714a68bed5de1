//! What a configuration is made into: the fleet with everything that is known of it, the scheduler, the API.
//!
//! A configuration with another fleet makes a *generation* of its own; what only sets other policies, weights, windows or
//! limits goes on with the generation that is there ([`Generation::reconfigure`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use prometheus::Registry;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::edge::Keys;
use super::profilers::{Before, Profilers};
use super::quality::Quality;
use super::{endpoint_spec, energy_log, feedback, node_power, scheduling, timeouts, virtual_models};
use crate::config::{Config, ResponseModel};
use crate::domain::{Availability, Destination};
use crate::endpoint::EndpointPool;
use crate::profiler::power::PowerProfiler;
use crate::profiler::quality::feedback::Feedback;
use crate::profiler::view::Viewer;
use crate::proxy::admin::{AdminAccess, AdminParts, Drained};
use crate::proxy::readiness::Readiness;
use crate::proxy::{Api, ApiParams, BodyRoom};
use crate::request_manager::admission::ModelDirectory;
use crate::request_manager::{RequestManager, ServeLimits};
use crate::scheduler::{Fleet, Scheduler};
use crate::telemetry::json_log::JsonLog;
use crate::telemetry::metrics_book::{Entry, MetricsBook};

/// Time between two looks whether the last request of a generation is over.
const RETIRE_LOOK: Duration = Duration::from_millis(100);

/// What lives as long as the process, whatever its configuration.
pub(super) struct Site {
    pub(super) book: MetricsBook,
    pub(super) keys: Keys,
    pub(super) quality: Quality,
    pub(super) decisions: JsonLog,
    pub(super) with_situations: bool,
    pub(super) drained: Drained,
    /// Set once the router is going away.
    pub(super) stop: CancellationToken,
    /// Nothing is waited for any longer.
    pub(super) give_up: CancellationToken,
    pub(super) force: CancellationToken,
    /// Whether the admin listener is reachable from this machine only.
    pub(super) admin_is_on_loopback: bool,
    /// Generations on their way out.
    pub(super) n_retiring: Arc<AtomicUsize>,
    pub(super) tasks: TaskTracker,
}

/// One fleet at work.
pub(super) struct Generation {
    manager: RequestManager,
    feedback: Feedback,
    profilers: Profilers,
    pool: Arc<EndpointPool>,
    viewer: Viewer,
    pub(super) power: PowerProfiler,
    scheduler: Scheduler,
    entry: Entry,
    end: CancellationToken,
    tasks: TaskTracker,
}

/// What listeners answer by.
pub(super) struct Answering {
    pub(super) api: Api,
    pub(super) parts: Arc<AdminParts>,
}

impl Generation {
    /// Builds every part and looks at every endpoint once; nothing is served yet. What was learnt of speeds `before` is
    /// known still, where a destination is as it was.
    pub(super) async fn start(
        config: &Config,
        site: &mut Site,
        before: Option<&Self>,
    ) -> anyhow::Result<Self> {
        let registry = Registry::new();
        let destinations: Arc<[Destination]> = config.fleet.destinations.clone().into();
        let specs = config.fleet.endpoints.iter().map(endpoint_spec).collect::<anyhow::Result<Vec<_>>>()?;
        let pool = Arc::new(EndpointPool::new(specs, timeouts(config)).context("cannot set up TLS")?);
        let before = before.map(|before| Before {
            speeds: before.profilers.speeds.clone(),
            destinations: Arc::clone(before.scheduler.destinations()),
        });
        let profilers = Profilers::new(config, &pool, &destinations, (&registry, before.as_ref()))?;
        let viewer = profilers.viewer(config, &destinations);
        let quality = site.quality.of(config, &destinations, &site.book).await?;
        let feedback = feedback::start(config, (quality.clone(), &destinations), &registry)?;
        let (policies, params) = scheduling::scheduling(config);
        let fleet = Fleet {
            log: site.decisions.clone(),
            with_situations: site.with_situations,
            destinations: Arc::clone(&destinations),
            health: profilers.health.subscribe(),
            view: viewer.subscribe(),
            quality,
        };
        let (scheduler, clock) = Scheduler::alternating(params, policies, fleet, &registry)?;
        let (power, meters) = PowerProfiler::new(node_power(config), &destinations, &registry)?;
        let world = profilers.world(&pool, &power, &feedback);
        let manager = RequestManager::new(scheduler.clone(), world, serve_limits(config, site), &registry)?;
        let (end, tasks) = (site.force.child_token(), TaskTracker::new());
        feedback::spawn_readers((&tasks, &end), &feedback, site.decisions.clone(), &manager);
        spawn_energy_readers((&tasks, &end), &power, &site.decisions, &scheduler);
        tasks.spawn(stop_aware(site.give_up.clone(), stop_aware(end.clone(), clock)));
        tasks.spawn(stop_aware(end.clone(), viewer.clone().run()));
        for (endpoint, spec) in pool.iter() {
            profilers.health.set_draining(endpoint, site.drained.contains(&spec.name));
        }
        profilers.health.probe_all().await;
        warn_of_absent(&pool, &profilers.health.states());
        for meter in meters {
            tasks.spawn(stop_aware(end.clone(), meter.run()));
        }
        spawn_watches(&profilers, &pool, &tasks, &end);
        let entry = site.book.add(registry);
        Ok(Self { manager, feedback, profilers, pool, viewer, power, scheduler, entry, end, tasks })
    }

    /// Goes on with another configuration of the same fleet.
    pub(super) fn reconfigure(&mut self, config: &Config, site: &Site) -> anyhow::Result<()> {
        let ((policies, _), params) = scheduling::scheduling(config);
        self.scheduler = self.scheduler.reconfigured(params, policies)?;
        self.manager = self.manager.reconfigured(self.scheduler.clone(), serve_limits(config, site));
        Ok(())
    }

    /// What answers requests by `config`.
    pub(super) fn answering(&self, config: &Config, site: &mut Site) -> Answering {
        let readiness = Readiness { health: self.profilers.health.clone(), draining: site.stop.clone() };
        let policy = scheduling::usual_policy(config);
        let api = Api::new(ApiParams {
            manager: self.manager.clone(),
            directory: ModelDirectory::new(self.scheduler.destinations(), virtual_models(config)),
            auth: site.keys.auth(config),
            readiness: readiness.clone(),
            feedback: self.feedback.clone(),
            body_bytes_max: config.limits.max_body_bytes,
            body_room: BodyRoom::of(config.limits.max_body_bytes_total),
            body_total: config.limits.request_deadline,
            policy,
            echo_model: config.response_model == ResponseModel::Echo,
        });
        let parts = AdminParts {
            scheduler: self.scheduler.clone(),
            readiness,
            viewer: self.viewer.clone(),
            feedback: self.feedback.clone(),
            pool: Arc::clone(&self.pool),
            access: AdminAccess {
                key: config.admin_key.as_ref().map(|key| *key.as_bytes()),
                is_on_loopback: site.admin_is_on_loopback,
            },
        };
        Answering { api, parts: Arc::new(parts) }
    }

    /// Lets the requests under way run on, in a task of its own, and ends once the last of them is over.
    pub(super) fn retire(self, site: &Site) {
        let Self { manager, power, scheduler, entry, end, tasks, .. } = self;
        let (book, n_retiring) = (site.book.clone(), Arc::clone(&site.n_retiring));
        book.leaves(&entry);
        n_retiring.fetch_add(1, Ordering::Relaxed);
        let pulse = manager.pulse();
        drop((manager, scheduler));
        site.tasks.spawn(async move {
            while !pulse.is_over() && !end.is_cancelled() {
                tokio::time::sleep(RETIRE_LOOK).await;
            }
            power.settle_all();
            end.cancel();
            tasks.close();
            tasks.wait().await;
            book.close(entry);
            n_retiring.fetch_sub(1, Ordering::Relaxed);
            info!("an earlier configuration has no requests under way any more");
        });
    }

    /// Ends at once.
    pub(super) async fn end(self) {
        self.end.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

fn serve_limits(config: &Config, site: &Site) -> ServeLimits {
    ServeLimits { max_attempts: config.limits.max_attempts, give_up: site.give_up.clone() }
}

/// Tells whoever wants to know what requests drew, until `end`.
fn spawn_energy_readers(
    (tasks, end): (&TaskTracker, &CancellationToken),
    power: &PowerProfiler,
    log: &JsonLog,
    scheduler: &Scheduler,
) {
    if log.is_on() {
        let writing = energy_log::write(log.clone(), power, scheduler.destinations());
        tasks.spawn(stop_aware(end.clone(), writing));
    }
    if let Some(switchback) = scheduler.switchback() {
        tasks.spawn(stop_aware(end.clone(), switchback.clone().follow(power.settled())));
    }
}

/// Watches endpoints, what they lose when they go, and the paths to nodes until `end`.
fn spawn_watches(profilers: &Profilers, pool: &EndpointPool, tasks: &TaskTracker, end: &CancellationToken) {
    for (endpoint, _) in pool.iter() {
        tasks.spawn(stop_aware(end.clone(), profilers.clone().watch_endpoint(endpoint)));
    }
    let health = profilers.health.subscribe();
    tasks.spawn(stop_aware(end.clone(), profilers.prefixes.clone().follow(health)));
    tasks.spawn(stop_aware(end.clone(), profilers.clone().watch_paths()));
}

fn warn_of_absent(pool: &EndpointPool, states: &[Availability]) {
    for ((_, spec), state) in pool.iter().zip(states) {
        if !state.takes_work() {
            warn!(
                endpoint = spec.name,
                state = state.as_str(),
                "not ready yet: is its server running at its url?"
            );
        }
    }
}

/// Runs `task` until `stop`.
pub(super) async fn stop_aware(stop: CancellationToken, task: impl Future<Output = ()>) {
    tokio::select! {
        () = task => {}
        () = stop.cancelled() => {}
    }
}

//! The composition root: a configuration becomes a running router, and ends in order.

pub mod agent;
mod edge;
mod energy_log;
mod feedback;
mod profilers;
mod scheduling;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use http::HeaderValue;
use prometheus::{IntGaugeVec, Opts, Registry};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::config::{Config, EndpointConfig, NodeConfig, ResponseModel};
use crate::domain::{Availability, Destination};
use crate::endpoint::{EndpointPool, EndpointSpec, Timeouts};
use crate::profiler::power::{NodePower, PowerProfiler};
use crate::profiler::quality::{
    DestinationPrior, EmbedderParams, FleetPriors, QualityParams, QualityService,
};
use crate::proxy::admin::Admin;
use crate::proxy::readiness::Readiness;
use crate::proxy::server::{Listener, Shutdown};
use crate::proxy::stack::Guarded;
use crate::proxy::{Api, ApiParams, server};
use crate::request_manager::admission::{ModelDirectory, VirtualModel};
use crate::request_manager::{RequestManager, ServeLimits};
use crate::routing::PolicyKind;
use crate::scheduler::{Fleet, Scheduler};
use crate::telemetry::decision_log::{DecisionLog, LogWriter};
use crate::units::Tokens;

use profilers::Profilers;

/// Once the drain limit is over, clients have this long to be told so.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Assumed length of a completion where nothing is known of the destination.
const COMPLETION_PRIOR: Tokens = Tokens(250.0);

/// A router that listens and is ready to run.
pub struct App {
    log_writer: Option<LogWriter>,
    listener: Listener,
    admin_listener: Listener,
    api: Api,
    admin: Admin,
    power: PowerProfiler,
    tasks: TaskTracker,
    drain_limit: Duration,
    stop: CancellationToken,
    give_up: CancellationToken,
    force: CancellationToken,
}

impl App {
    /// Binds the listeners and builds every part; nothing is served yet.
    ///
    /// # Errors
    /// An address in use, a certificate store that cannot be read, a thread that cannot be started.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        let registry = Registry::new();
        let listener = edge::api_listener(&config, &registry).await?;
        let admin_listener = edge::admin_listener(&config, &registry).await?;
        register_build_info(&registry)?;
        let destinations: Arc<[Destination]> = config.fleet.destinations.clone().into();
        let specs = config.fleet.endpoints.iter().map(endpoint_spec).collect::<anyhow::Result<Vec<_>>>()?;
        let pool = Arc::new(EndpointPool::new(specs, timeouts(&config)).context("cannot set up TLS")?);
        let profilers = Profilers::new(&config, &pool, &destinations, &registry)?;
        let health = profilers.health.clone();
        let quality = start_quality(&config, &destinations, &registry)?;
        let feedback = feedback::start(&config, (quality.clone(), &destinations), &registry)?;
        let viewer = profilers.viewer(&config, &destinations);
        let (policies, params) = scheduling::scheduling(&config);
        let policy_name = policies.0.first().map_or("", |arm| arm.policy.name());
        let (log, log_writer) = edge::decision_log(&config, &registry)?;
        let fleet = Fleet {
            log: log.clone(),
            destinations: Arc::clone(&destinations),
            health: health.subscribe(),
            view: viewer.subscribe(),
            quality,
        };
        let (scheduler, scheduler_task) = Scheduler::alternating(params, policies, fleet, &registry)?;
        let (power, meters) = PowerProfiler::new(node_power(&config), &destinations, &registry)?;
        let world = profilers.world(&pool, &power, &feedback);
        let (stop, force) = (CancellationToken::new(), CancellationToken::new());
        let give_up = force.child_token();
        let limits = ServeLimits { max_attempts: config.limits.max_attempts, give_up: give_up.clone() };
        let manager = RequestManager::new(scheduler.clone(), world, limits, &registry)?;

        let tasks = TaskTracker::new();
        feedback::spawn_readers((&tasks, &force), &feedback, log.clone(), &manager);
        spawn_energy_readers((&tasks, &force), &power, log, &scheduler);
        tasks.spawn(stop_aware(give_up.clone(), scheduler_task));
        tasks.spawn(stop_aware(force.clone(), viewer.clone().run()));
        health.probe_all().await;
        warn_of_absent(&pool, &health.states());
        for meter in meters {
            tasks.spawn(stop_aware(force.clone(), meter.run()));
        }
        spawn_watches(profilers, &pool, &tasks, &force);
        let readiness = Readiness { health, draining: stop.clone() };
        let api = Api::new(ApiParams {
            manager,
            directory: ModelDirectory::new(&destinations, virtual_models(&config)),
            auth: edge::auth(&config, &registry)?,
            readiness: readiness.clone(),
            feedback: feedback.clone(),
            body_bytes_max: config.limits.max_body_bytes,
            body_total: config.limits.request_deadline,
            policy: policy_name,
            echo_model: config.response_model == ResponseModel::Echo,
        });
        let admin = Admin::new(registry, (scheduler, viewer.clone()), readiness, feedback);
        edge::announce((&listener, &admin_listener), destinations.len(), policy_name)?;
        let drain_limit = config.limits.drain;
        Ok(Self {
            log_writer,
            listener,
            admin_listener,
            api,
            admin,
            power,
            tasks,
            drain_limit,
            stop,
            give_up,
            force,
        })
    }

    /// Addresses of the API and of the admin listener.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn addresses(&self) -> std::io::Result<(SocketAddr, SocketAddr)> {
        Ok((self.listener.socket.local_addr()?, self.admin_listener.socket.local_addr()?))
    }

    /// A handle that ends the router from elsewhere.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper { drain: self.stop.clone(), force: self.force.clone() }
    }

    /// Serves until SIGTERM or SIGINT, then drains; a second signal ends at once.
    ///
    /// # Errors
    /// When signals cannot be listened for.
    pub async fn run(self) -> anyhow::Result<()> {
        let stopper = self.stopper();
        let mut signals = Signals::new()?;
        let mut served = std::pin::pin!(self.serve());
        loop {
            tokio::select! {
                outcome = &mut served => return outcome,
                signal = signals.next() => {
                    info!(signal, "asked to stop");
                    stopper.stop();
                }
            }
        }
    }

    /// Serves until its [`Stopper`] is used, then drains.
    ///
    /// # Errors
    /// When the admin listener's task failed.
    pub async fn serve(self) -> anyhow::Result<()> {
        let Self {
            log_writer,
            listener,
            admin_listener,
            api,
            admin,
            power,
            tasks,
            drain_limit,
            stop,
            give_up,
            force,
        } = self;
        let admin_stop = CancellationToken::new();
        let ends_with = |stop: &CancellationToken| Shutdown { stop: stop.clone(), force: force.clone() };
        let main = server::serve(listener, Guarded(api), ends_with(&stop));
        let side = tasks.spawn(server::serve(admin_listener, Guarded(admin), ends_with(&admin_stop)));
        let mut main = std::pin::pin!(main);
        let limit = std::pin::pin!(async {
            stop.cancelled().await;
            info!(limit_s = drain_limit.as_secs_f64(), "draining: requests under way may finish");
            tokio::time::sleep(drain_limit).await;
            warn!("drain limit reached: refusing what has no answer yet and ending streams");
            give_up.cancel();
            tokio::time::sleep(LAST_WORDS).await;
        });
        tokio::select! {
            () = &mut main => info!("drained"),
            () = limit => {
                force.cancel();
                main.await;
            }
            () = force.cancelled() => {
                warn!("asked again: ending at once");
                main.await;
            }
        }
        power.settle_all();
        force.cancel();
        admin_stop.cancel();
        side.await?;
        tasks.close();
        tasks.wait().await;
        if let Some(writer) = log_writer {
            tokio::task::spawn_blocking(|| writer.close()).await?;
        }
        Ok(())
    }
}

/// Ends a running [`App`]. Clones act on the same one.
#[derive(Debug, Clone)]
pub struct Stopper {
    drain: CancellationToken,
    force: CancellationToken,
}

impl Stopper {
    /// Takes no further connections and lets requests under way finish, for `limits.drain_ms` at most. Asked
    /// again, ends at once.
    pub fn stop(&self) {
        if self.drain.is_cancelled() {
            self.force.cancel();
        }
        self.drain.cancel();
    }
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv() => {
                    warn!("SIGHUP ignored: this version does not reload; restart it for a new configuration");
                }
            }
        }
    }
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

/// Tells whoever wants to know what requests drew, until `force`.
fn spawn_energy_readers(
    (tasks, force): (&TaskTracker, &CancellationToken),
    power: &PowerProfiler,
    log: DecisionLog,
    scheduler: &Scheduler,
) {
    if log.is_on() {
        let writing = energy_log::write(log, power, scheduler.destinations());
        tasks.spawn(stop_aware(force.clone(), writing));
    }
    if let Some(switchback) = scheduler.switchback() {
        tasks.spawn(stop_aware(force.clone(), switchback.clone().follow(power.settled())));
    }
}

/// Watches endpoints, what they lose when they go, and the paths to nodes until `force`.
fn spawn_watches(profilers: Profilers, pool: &EndpointPool, tasks: &TaskTracker, force: &CancellationToken) {
    for (endpoint, _) in pool.iter() {
        tasks.spawn(stop_aware(force.clone(), profilers.clone().watch_endpoint(endpoint)));
    }
    let health = profilers.health.subscribe();
    tasks.spawn(stop_aware(force.clone(), profilers.prefixes.clone().follow(health)));
    tasks.spawn(stop_aware(force.clone(), profilers.watch_paths()));
}

async fn stop_aware(stop: CancellationToken, task: impl Future<Output = ()>) {
    tokio::select! {
        () = task => {}
        () = stop.cancelled() => {}
    }
}

fn register_build_info(registry: &Registry) -> prometheus::Result<()> {
    let info = IntGaugeVec::new(Opts::new("cema_build_info", "Version of the router."), &["version"])?;
    info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    registry.register(Box::new(info))
}

/// What the pool is told of an endpoint.
///
/// # Errors
/// A key that cannot be sent in a header.
pub fn endpoint_spec(endpoint: &EndpointConfig) -> anyhow::Result<EndpointSpec> {
    let name = match &endpoint.name {
        Some(name) => format!("{}/{name}", endpoint.node),
        None => endpoint.node.to_string(),
    };
    let api_key = endpoint.api_key.as_ref().map(|key| {
        let mut value = HeaderValue::try_from(format!("Bearer {}", key.expose()))
            .map_err(|_| anyhow!("the API key of endpoint {name} cannot be sent in a header"))?;
        value.set_sensitive(true);
        anyhow::Ok(value)
    });
    Ok(EndpointSpec {
        kind: endpoint.kind,
        scheme: endpoint.url.scheme.clone(),
        authority: endpoint.url.authority.clone(),
        base_path: endpoint.url.base_path.clone(),
        inject_usage: endpoint.inject_usage,
        api_key: api_key.transpose()?,
        name,
    })
}

/// The clocks of an attempt at an endpoint.
#[must_use]
pub fn timeouts(config: &Config) -> Timeouts {
    let t = &config.timeouts;
    Timeouts {
        connect: t.connect,
        first_byte: t.first_byte,
        first_token: t.first_token,
        idle: t.idle,
        commit_after: t.commit_after,
        load: t.load,
    }
}

fn node_power(config: &Config) -> Vec<NodePower> {
    let convert = |node: &NodeConfig| NodePower {
        name: Arc::clone(&node.name),
        sources: node.power_sources.clone(),
        configured: node.power,
    };
    config.fleet.nodes.iter().map(convert).collect()
}

fn start_quality(
    config: &Config,
    destinations: &[Destination],
    registry: &Registry,
) -> prometheus::Result<QualityService> {
    let embedder = EmbedderParams {
        library: config.embedder.library.clone(),
        model: config.embedder.model.clone(),
        ..EmbedderParams::of_environment()
    };
    let priors = FleetPriors {
        destinations: destinations
            .iter()
            .map(|d| DestinationPrior {
                model: Arc::clone(&d.model),
                quality: d.quality_prior,
                completion_tokens: COMPLETION_PRIOR,
            })
            .collect(),
    };
    let mut policies = config.switchback.iter().flat_map(|of| &of.policies).chain([&config.routing.policy]);
    let predicts_clusters = policies.any(|policy| *policy == PolicyKind::Uniroute);
    let params = QualityParams { predicts_clusters, ..config.quality.params() };
    QualityService::start(&params, &embedder, priors, registry)
}

fn virtual_models(config: &Config) -> Vec<VirtualModel> {
    let convert = |v: &crate::config::VirtualModel| VirtualModel {
        name: Arc::clone(&v.name),
        constraints: v.constraints,
        weights: v.weights,
        time: v.time,
    };
    config.virtual_models.iter().map(convert).collect()
}

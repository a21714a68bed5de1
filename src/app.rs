//! The composition root: a configuration becomes a running router, and ends in order.

pub mod agent;
mod edge;
mod energy_log;
mod feedback;
mod generation;
mod profilers;
mod quality;
mod reload;
pub(crate) mod scheduling;
mod service_manager;
mod traces;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::HeaderValue;
use prometheus::{IntGaugeVec, Opts, Registry};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::config::{Config, EndpointConfig, NodeConfig};
use crate::domain::Destination;
use crate::endpoint::{EndpointSpec, Timeouts};
use crate::profiler::power::NodePower;
use crate::profiler::quality::{
    DestinationPrior, EmbedderParams, FleetPriors, QualityParams, QualityService,
};
use crate::proxy::access::Logged;
use crate::proxy::admin::{Admin, Control, Drained, ReloadRequest};
use crate::proxy::compressed::Compressed;
use crate::proxy::live::Live;
use crate::proxy::server::{Listener, Shutdown};
use crate::proxy::stack::Guarded;
use crate::proxy::{Api, server};
use crate::request_manager::admission::VirtualModel;
use crate::routing::PolicyKind;
use crate::telemetry::json_log::{JsonLog, LogWriter};
use crate::telemetry::metrics_book::MetricsBook;
use crate::units::Tokens;

use generation::{Answering, Generation, Site};
use quality::Quality;
use reload::{ReloadMetrics, Reloader};
use service_manager::ServiceManager;

/// Once the drain limit is over, clients have this long to be told so.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Assumed length of a completion where nothing is known of the destination.
const COMPLETION_PRIOR: Tokens = Tokens(250.0);

/// A router that listens and is ready to run.
pub struct App {
    log_writers: Vec<LogWriter>,
    access_log: JsonLog,
    listener: Listener,
    admin_listener: Listener,
    api: Live<Api>,
    admin: Admin,
    control: Control,
    reloader: Reloader,
    reloads: mpsc::Receiver<ReloadRequest>,
    /// Who started the program; `run` asks, so that an `App` inside another program keeps to itself.
    manager: ServiceManager,
    tasks: TaskTracker,
    drain_limit: Duration,
    stop: CancellationToken,
    give_up: CancellationToken,
    force: CancellationToken,
}

impl App {
    /// Binds the listeners and builds every part; nothing is served yet. There is no file to read again.
    ///
    /// # Errors
    /// An address in use, a certificate store that cannot be read, a thread that cannot be started.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        Self::start_with(config, None).await
    }

    /// The same with the configuration in a file, which is read again at every reload.
    ///
    /// # Errors
    /// A file that cannot be read or has faults, and those of [`App::start`].
    pub async fn start_from(path: &Path) -> anyhow::Result<Self> {
        Self::start_with(Config::load(path)?, Some(path.to_owned())).await
    }

    async fn start_with(config: Config, path: Option<PathBuf>) -> anyhow::Result<Self> {
        let registry = Registry::new();
        let tls = watch::Sender::new(edge::acceptor(&config));
        let listener = edge::api_listener(&config, tls.subscribe(), &registry).await?;
        let admin_listener = edge::admin_listener(&config, &registry).await?;
        register_build_info(&registry)?;
        let logs = edge::Logs::start(&config, &registry)?;
        let (tracer, exporter) = traces::start(config.tracing.as_ref(), &registry)?;
        let metrics = ReloadMetrics::register(&registry)?;
        let (stop, force) = (CancellationToken::new(), CancellationToken::new());
        let give_up = force.child_token();
        let (book, drained, tasks) = (MetricsBook::default(), Drained::default(), TaskTracker::new());
        if let Some(exporter) = exporter {
            tasks.spawn(exporter.run(force.clone()));
        }
        let mut site = Site {
            tracer,
            keys: edge::Keys::register(&registry)?,
            quality: Quality::default(),
            decisions: logs.decisions,
            with_situations: config.decision_log.as_ref().is_some_and(|of| of.situations),
            drained: drained.clone(),
            stop: stop.clone(),
            give_up: give_up.clone(),
            force: force.clone(),
            admin_is_on_loopback: config.admin_listen.ip().is_loopback(),
            n_retiring: Arc::default(),
            tasks: tasks.clone(),
            book: book.clone(),
        };
        let _for_good = book.add(registry);
        let generation = Generation::start(&config, &mut site, None).await?;
        let Answering { api, parts } = generation.answering(&config, &mut site);
        let (control, reloads) = Control::new();
        let (api, parts) = (Live::new(api), Live::new(parts));
        let admin = Admin::new(book, parts.clone(), control.clone(), drained);
        edge::announce((&listener, &admin_listener), &config)?;
        let drain_limit = config.limits.drain;
        let started = config.clone();
        let reloader =
            Reloader { config, started, path, generation, site, api: api.clone(), parts, tls, metrics };
        Ok(Self {
            log_writers: logs.writers,
            access_log: logs.access,
            listener,
            admin_listener,
            api,
            admin,
            control,
            reloader,
            reloads,
            manager: ServiceManager::default(),
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

    /// The way to have it reload.
    #[must_use]
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Serves until SIGTERM or SIGINT, then drains; a second signal ends at once. SIGHUP has it reload. A service manager
    /// that the environment names is told how it goes.
    ///
    /// # Errors
    /// When signals cannot be listened for.
    pub async fn run(mut self) -> anyhow::Result<()> {
        let (stopper, control) = (self.stopper(), self.control());
        let mut signals = Signals::new()?;
        let manager = ServiceManager::of_environment();
        self.manager = manager.clone();
        let stop_limit = self.drain_limit + LAST_WORDS;
        let mut served = std::pin::pin!(self.serve());
        let mut reloads = FuturesUnordered::new();
        loop {
            tokio::select! {
                outcome = &mut served => return outcome,
                signal = signals.next() => match signal {
                    Signal::Reload => reloads.push(control.reload()),
                    Signal::Stop(signal) => {
                        info!(signal, "asked to stop");
                        manager.stopping(stop_limit);
                        stopper.stop();
                    }
                },
                // What came of it is in the log.
                Some(_) = reloads.next() => {}
            }
        }
    }

    /// Serves until its [`Stopper`] is used, then drains.
    ///
    /// # Errors
    /// When a task of it failed.
    pub async fn serve(self) -> anyhow::Result<()> {
        let Self {
            log_writers,
            access_log,
            listener,
            admin_listener,
            api,
            admin,
            control: _,
            reloader,
            reloads,
            manager,
            tasks,
            drain_limit,
            stop,
            give_up,
            force,
        } = self;
        let admin_stop = CancellationToken::new();
        let ends_with = |stop: &CancellationToken| Shutdown { stop: stop.clone(), force: force.clone() };
        let logged = Guarded(Logged::new(api, access_log));
        let main = server::serve(listener, logged, ends_with(&stop));
        let side =
            tasks.spawn(server::serve(admin_listener, Guarded(Compressed(admin)), ends_with(&admin_stop)));
        let end_of_generation = CancellationToken::new();
        manager.ready("serving");
        tasks.spawn(manager.clone().keep_telling(admin_stop.clone()));
        let reloading = tasks.spawn(reloader.run(reloads, manager.clone(), end_of_generation.clone()));
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
        end_of_generation.cancel();
        reloading.await?;
        force.cancel();
        admin_stop.cancel();
        side.await?;
        tasks.close();
        tasks.wait().await;
        for writer in log_writers {
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

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Signal::Stop("SIGINT"),
            _ = self.hangup.recv() => Signal::Reload,
        }
    }
}

/// What a signal asks for.
enum Signal {
    /// To end; its name.
    Stop(&'static str),
    /// To read the configuration again.
    Reload,
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
    let params = QualityParams { predicts_clusters: predicts_clusters(config), ..config.quality.params() };
    QualityService::start(&params, &embedder, priors, registry)
}

/// Whether a policy asks for the error rates of prompt clusters.
fn predicts_clusters(config: &Config) -> bool {
    let mut policies = config.switchback.iter().flat_map(|of| &of.policies).chain([&config.routing.policy]);
    policies.any(|policy| *policy == PolicyKind::Uniroute)
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

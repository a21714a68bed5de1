//! Another configuration in the place of the one in force: read and checked first, exchanged at once, and with nothing
//! done to requests under way.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::{Gauge, IntCounterVec, IntGauge, Opts, Registry};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::edge::acceptor;
use super::generation::{Answering, Generation, Site};
use super::predicts_clusters;
use super::scheduling::scheduling;
use super::service_manager::ServiceManager;
use crate::config::{Config, ConfigError};
use crate::proxy::Api;
use crate::proxy::admin::{AdminParts, ReloadError, ReloadRequest, Reloaded};
use crate::proxy::live::Live;

/// Generations that may be on their way out at once.
const RETIRING_MAX: usize = 8;

/// The configuration in force, and what exchanges it.
pub(super) struct Reloader {
    pub(super) config: Config,
    /// That of the start, which some keys stay with.
    pub(super) started: Config,
    /// Where it came from; `None` = there is nothing to read again.
    pub(super) path: Option<PathBuf>,
    pub(super) generation: Generation,
    pub(super) site: Site,
    pub(super) api: Live<Api>,
    pub(super) parts: Live<Arc<AdminParts>>,
    pub(super) tls: watch::Sender<Option<TlsAcceptor>>,
    pub(super) metrics: ReloadMetrics,
}

/// What became of reloads.
pub(super) struct ReloadMetrics {
    success: IntGauge,
    at: Gauge,
    reloads: IntCounterVec,
}

impl ReloadMetrics {
    /// The configuration of the start counts as a success.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let success = IntGauge::new(
            "cema_config_reload_success",
            "Whether the last configuration that was read is in force (1) or was refused (0).",
        )?;
        let at = Gauge::new(
            "cema_config_reload_success_timestamp_seconds",
            "When the configuration in force was put there, seconds since 1970.",
        )?;
        let reloads = IntCounterVec::new(
            Opts::new("cema_config_reloads_total", "Reloads by what became of them."),
            &["outcome"],
        )?;
        registry.register(Box::new(success.clone()))?;
        registry.register(Box::new(at.clone()))?;
        registry.register(Box::new(reloads.clone()))?;
        for outcome in ["success", "failure"] {
            reloads.with_label_values(&[outcome]);
        }
        let metrics = Self { success, at, reloads };
        metrics.in_force();
        Ok(metrics)
    }

    fn in_force(&self) {
        self.success.set(1);
        self.at.set(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()));
    }

    fn count(&self, outcome: &Result<Reloaded, ReloadError>) {
        if outcome.is_ok() {
            self.in_force();
        } else {
            self.success.set(0);
        }
        let label = if outcome.is_ok() { "success" } else { "failure" };
        self.reloads.with_label_values(&[label]).inc();
    }
}

impl Reloader {
    /// Reloads when asked to, one at a time, until `end`: then the fleet is left in order.
    pub(super) async fn run(
        mut self,
        mut requests: mpsc::Receiver<ReloadRequest>,
        manager: ServiceManager,
        end: CancellationToken,
    ) {
        loop {
            tokio::select! {
                () = end.cancelled() => break,
                request = requests.recv() => match request {
                    Some(ReloadRequest { reply }) => {
                        manager.reloading();
                        let outcome = self.reload().await;
                        self.metrics.count(&outcome);
                        match &outcome {
                            Ok(reloaded) => info!(
                                exchanged = reloaded.exchanged,
                                needs_restart = reloaded.needs_restart.join(", "),
                                "configuration reloaded"
                            ),
                            Err(error) => error!(%error, "configuration not reloaded: the one before stays in force"),
                        }
                        manager.ready(match &outcome {
                            Ok(_) => "serving",
                            Err(_) => "serving; the last configuration was refused, see the log",
                        });
                        // Whoever asked may have left.
                        let _ = reply.send(outcome);
                    }
                    None => {
                        end.cancelled().await;
                        break;
                    }
                },
            }
        }
        self.generation.power.settle_all();
        self.generation.end().await;
    }

    async fn reload(&mut self) -> Result<Reloaded, ReloadError> {
        let path = self.path.clone().ok_or(ReloadError::NoFile)?;
        let reading = tokio::task::spawn_blocking(move || Config::load(&path));
        let next = reading.await.map_err(|_| ReloadError::Unavailable)?;
        let next = next.map_err(|error| ReloadError::Configuration(in_full(&error)))?;
        let set_up = |error: anyhow::Error| ReloadError::SetUp(format!("{error:#}"));
        let needs_restart = needs_restart(&self.started, &next);
        if !needs_restart.is_empty() {
            warn!(keys = needs_restart.join(", "), "these take effect with the next start");
        }
        let exchanged = if next == self.config {
            "nothing"
        } else if is_same_fleet(&self.config, &next) {
            self.generation.reconfigure(&next, &self.site).map_err(set_up)?;
            "settings"
        } else {
            let n_retiring = self.site.n_retiring.load(Ordering::Relaxed);
            if n_retiring >= RETIRING_MAX {
                return Err(ReloadError::Busy(n_retiring));
            }
            let generation =
                Generation::start(&next, &mut self.site, Some(&self.generation)).await.map_err(set_up)?;
            std::mem::replace(&mut self.generation, generation).retire(&self.site);
            "fleet"
        };
        let Answering { api, parts } = self.generation.answering(&next, &mut self.site);
        self.api.set(api);
        self.parts.set(parts);
        self.tls.send_replace(acceptor(&next));
        self.config = next;
        Ok(Reloaded { exchanged, needs_restart })
    }
}

fn in_full(error: &ConfigError) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

/// Keys that only a start reads.
fn needs_restart(was: &Config, next: &Config) -> Vec<&'static str> {
    let (t, u) = (&was.timeouts, &next.timeouts);
    let same = [
        ("listen", was.listen == next.listen),
        ("admin_listen", was.admin_listen == next.admin_listen),
        ("limits.max_connections", was.limits.max_connections == next.limits.max_connections),
        ("limits.drain_ms", was.limits.drain == next.limits.drain),
        ("timeouts.keep_alive_ms", t.keep_alive == u.keep_alive),
        ("timeouts.head_ms", t.head == u.head),
        ("timeouts.write_idle_ms", t.write_idle == u.write_idle),
        ("decision_log", was.decision_log == next.decision_log),
        ("access_log", was.access_log == next.access_log),
        ("tracing", was.tracing == next.tracing),
    ];
    same.into_iter().filter(|(_, is_same)| !is_same).map(|(key, _)| key).collect()
}

/// Whether what is known of the fleet, and the books of what is outstanding, can be gone on with.
fn is_same_fleet(was: &Config, next: &Config) -> bool {
    let completion = |config: &Config| scheduling(config).1.planner.completion;
    was.fleet == next.fleet
        && was.timeouts == next.timeouts
        && was.breaker == next.breaker
        && was.cooling == next.cooling
        && was.quality == next.quality
        && was.embedder == next.embedder
        && was.routing.prefix_cache == next.routing.prefix_cache
        && was.routing.seed == next.routing.seed
        && was.switchback.is_none()
        && next.switchback.is_none()
        && completion(was) == completion(next)
        && predicts_clusters(was) == predicts_clusters(next)
}

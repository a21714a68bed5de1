//! What stands at the edge of the router: listeners, the bound on connections, API keys, the decision log.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use prometheus::Registry;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

use super::scheduling::usual_policy;
use crate::config::{ApiKeyConfig, Config, Limits};
use crate::proxy::server::{ConnectionClocks, ConnectionMetrics, Listener, in_clear};
use crate::proxy::{ApiKey, Auth};
use crate::request_manager::key_budget::{KeyBudget, KeyLimits, KeyMetrics};
use crate::telemetry::json_log::{JsonLog, JsonLogError, JsonLogParams, LogName, LogWriter};

/// Open files that are no connection of a client nor the one to an endpoint that serves it: listeners, store,
/// idle connections to endpoints, the admin listener's own.
const DESCRIPTORS_RESERVED: u64 = 192;
/// Connections to the admin listener; whatever the API's clients do, metrics can be read.
const ADMIN_CONNECTIONS_MAX: usize = 64;

/// Binds the API's listener.
pub(super) async fn api_listener(
    config: &Config,
    tls: watch::Receiver<Option<TlsAcceptor>>,
    registry: &Registry,
) -> anyhow::Result<Listener> {
    let wanted = config.limits.max_connections;
    let descriptors = raise_descriptor_limit();
    let connections_max = connections_max(wanted, descriptors);
    // Nobody asked for the default, so falling short of it is no cause for alarm.
    if connections_max < wanted && wanted != Limits::MAX_CONNECTIONS_DEFAULT as usize {
        warn!(
            max_connections = connections_max,
            configured = wanted,
            open_files = descriptors,
            "fewer connections than configured: the limit on open files is too low (ulimit -n, LimitNOFILE)"
        );
    } else {
        info!(max_connections = connections_max, open_files = descriptors, "bounds on connections");
    }
    Ok(Listener {
        socket: bind(config.listen, "listen").await?,
        tls,
        clocks: clocks(config),
        connections_max,
        metrics: ConnectionMetrics::register(registry, "api")?,
    })
}

/// Binds the admin listener, which is always in clear.
pub(super) async fn admin_listener(config: &Config, registry: &Registry) -> anyhow::Result<Listener> {
    Ok(Listener {
        socket: bind(config.admin_listen, "admin_listen").await?,
        tls: in_clear(),
        clocks: clocks(config),
        connections_max: ADMIN_CONNECTIONS_MAX,
        metrics: ConnectionMetrics::register(registry, "admin")?,
    })
}

/// The keys of clients and what each has left; a key with the limits it had before a reload keeps that.
pub(super) struct Keys {
    metrics: KeyMetrics,
    budgets: BTreeMap<Arc<str>, (KeyLimits, Arc<KeyBudget>)>,
}

impl Keys {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self { metrics: KeyMetrics::register(registry)?, budgets: BTreeMap::new() })
    }

    /// The keys of `config`.
    pub(super) fn auth(&mut self, config: &Config) -> Auth {
        let mut budgets = BTreeMap::new();
        let convert = |key: &ApiKeyConfig| {
            let limits = KeyLimits {
                requests_per_minute: key.requests_per_minute,
                max_concurrency: key.max_concurrency,
                per_day: key.per_day,
            };
            let before = self.budgets.get(&key.name).filter(|(had, _)| *had == limits);
            let new = || Arc::new(KeyBudget::new(&key.name, limits, &self.metrics));
            let budget = before.map_or_else(new, |(_, budget)| Arc::clone(budget));
            budgets.insert(Arc::clone(&key.name), (limits, Arc::clone(&budget)));
            ApiKey {
                name: Arc::clone(&key.name),
                digest: *key.digest.as_bytes(),
                models: key.models.clone(),
                allow_weights: key.allow_weights,
                budget,
            }
        };
        let keys = config.auth.keys.iter().map(convert).collect();
        self.budgets = budgets;
        Auth::new(keys)
    }
}

/// What ends TLS at the API's listener, where the configuration has a certificate.
pub(super) fn acceptor(config: &Config) -> Option<TlsAcceptor> {
    config.tls.as_ref().map(|tls| TlsAcceptor::from(Arc::clone(&tls.server)))
}

fn clocks(config: &Config) -> ConnectionClocks {
    let t = &config.timeouts;
    ConnectionClocks { keep_alive: t.keep_alive, head: t.head, write_idle: t.write_idle }
}

async fn bind(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} (configuration key `{key}`): is it in use?"))
}

/// Raises the soft limit on open files to the hard one and returns what holds now; `None` = no limit.
fn raise_descriptor_limit() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    let soft = limit.current;
    limit.current = limit.maximum;
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => limit.maximum,
        Err(error) => {
            warn!(%error, "cannot raise the limit on open files");
            soft
        }
    }
}

/// The connections of clients there are descriptors for, each with one to an endpoint.
fn connections_max(wanted: usize, descriptors: Option<u64>) -> usize {
    let room = descriptors.map_or(u64::MAX, |limit| limit.saturating_sub(DESCRIPTORS_RESERVED) / 2);
    wanted.min(usize::try_from(room).unwrap_or(usize::MAX)).max(1)
}

/// The logs of JSON lines; those that are off keep nothing.
#[derive(Default)]
pub(super) struct Logs {
    pub(super) decisions: JsonLog,
    pub(super) access: JsonLog,
    pub(super) writers: Vec<LogWriter>,
}

impl Logs {
    /// Starts those that there are to be.
    pub(super) fn start(config: &Config, registry: &Registry) -> Result<Self, JsonLogError> {
        let mut writers = Vec::new();
        let mut log = |name, params: Option<&JsonLogParams>| {
            let Some(params) = params.cloned() else { return Ok(JsonLog::default()) };
            let (log, writer) = JsonLog::start(name, params, registry)?;
            writers.push(writer);
            Ok::<_, JsonLogError>(log)
        };
        let decisions = log(LogName::DECISIONS, config.decision_log.as_ref().map(|of| &of.log))?;
        let access = log(LogName::ACCESS, config.access_log.as_ref())?;
        Ok(Self { decisions, access, writers })
    }
}

/// Says where the router listens.
pub(super) fn announce((listener, admin): (&Listener, &Listener), config: &Config) -> std::io::Result<()> {
    let admin_address = admin.socket.local_addr()?;
    info!(
        listen = %listener.socket.local_addr()?,
        tls = config.tls.is_some(),
        admin = %admin_address,
        n_destinations = config.fleet.destinations.len(),
        policy = usual_policy(config),
        "listening"
    );
    if !admin_address.ip().is_loopback() && config.admin_key.is_none() {
        warn!(
            admin = %admin_address,
            "the admin API is reachable beyond this machine and refuses requests: set `admin_auth` (metrics and health pages need no key)"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_endpoints() {
        assert_eq!(connections_max(10_000, None), 10_000);
        assert_eq!(connections_max(10_000, Some(1 << 20)), 10_000);
        assert_eq!(connections_max(10_000, Some(1_024)), 416);
        assert_eq!(connections_max(10_000, Some(100)), 1);
    }
}

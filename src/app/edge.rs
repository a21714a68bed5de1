//! What stands at the edge of the router: listeners, the bound on connections, API keys, the decision log.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use prometheus::Registry;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

use crate::config::Config;
use crate::config::Limits;
use crate::proxy::server::{ConnectionClocks, ConnectionMetrics, Listener};
use crate::proxy::{ApiKey, Auth};
use crate::request_manager::key_budget::{KeyBudget, KeyLimits, KeyMetrics};
use crate::telemetry::decision_log::{DecisionLog, DecisionLogError, LogWriter};

/// Open files that are no connection of a client nor the one to an endpoint that serves it: listeners, store,
/// idle connections to endpoints, the admin listener's own.
const DESCRIPTORS_RESERVED: u64 = 192;
/// Connections to the admin listener; whatever the API's clients do, metrics can be read.
const ADMIN_CONNECTIONS_MAX: usize = 64;

/// Binds the API's listener.
pub(super) async fn api_listener(config: &Config, registry: &Registry) -> anyhow::Result<Listener> {
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
        tls: config.tls.as_ref().map(|tls| TlsAcceptor::from(Arc::clone(&tls.server))),
        clocks: clocks(config),
        connections_max,
        metrics: ConnectionMetrics::register(registry, "api")?,
    })
}

/// Binds the admin listener, which is always in clear.
pub(super) async fn admin_listener(config: &Config, registry: &Registry) -> anyhow::Result<Listener> {
    Ok(Listener {
        socket: bind(config.admin_listen, "admin_listen").await?,
        tls: None,
        clocks: clocks(config),
        connections_max: ADMIN_CONNECTIONS_MAX,
        metrics: ConnectionMetrics::register(registry, "admin")?,
    })
}

/// The keys of a configuration, each with its whole budget.
pub(super) fn auth(config: &Config, registry: &Registry) -> prometheus::Result<Auth> {
    let metrics = KeyMetrics::register(registry)?;
    let convert = |key: &crate::config::ApiKeyConfig| {
        let limits = KeyLimits {
            requests_per_minute: key.requests_per_minute,
            max_concurrency: key.max_concurrency,
            per_day: key.per_day,
        };
        ApiKey {
            name: Arc::clone(&key.name),
            digest: *key.digest.as_bytes(),
            models: key.models.clone(),
            allow_weights: key.allow_weights,
            budget: Arc::new(KeyBudget::new(&key.name, limits, &metrics)),
        }
    };
    Ok(Auth::new(config.auth.keys.iter().map(convert).collect()))
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

/// Starts the decision log, where there is to be one.
pub(super) fn decision_log(
    config: &Config,
    registry: &Registry,
) -> Result<(DecisionLog, Option<LogWriter>), DecisionLogError> {
    let Some(params) = config.decision_log.clone() else { return Ok((DecisionLog::default(), None)) };
    let (log, writer) = DecisionLog::start(params, registry)?;
    Ok((log, Some(writer)))
}

/// Says where the router listens.
pub(super) fn announce(
    (listener, admin): (&Listener, &Listener),
    n_destinations: usize,
    policy: &'static str,
) -> std::io::Result<()> {
    info!(
        listen = %listener.socket.local_addr()?,
        tls = listener.tls.is_some(),
        admin = %admin.socket.local_addr()?,
        n_destinations,
        policy,
        "listening"
    );
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

//! `cema-router agent` as a whole: meters, a listener, and an end in order.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use prometheus::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{Signal, Signals, register_build_info};
use crate::profiler::power::agent::{AgentMeters, AgentParams};
use crate::proxy::agent_page::AgentPage;
use crate::proxy::compressed::Compressed;
use crate::proxy::server;
use crate::proxy::server::{ConnectionClocks, ConnectionMetrics, Listener, Shutdown};
use crate::proxy::stack::Guarded;

/// A page is small: nobody needs longer.
const CLOCKS: ConnectionClocks = ConnectionClocks {
    keep_alive: Duration::from_secs(90),
    head: Duration::from_secs(10),
    write_idle: Duration::from_secs(30),
};
/// Open connections.
const CONNECTIONS_MAX: usize = 64;
/// Pages under way have this long once the agent is asked to stop.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// An agent that listens and reads its meters.
pub struct Agent {
    listener: Listener,
    registry: Registry,
    _meters: AgentMeters,
}

impl Agent {
    /// Binds `listen` and starts to read.
    ///
    /// # Errors
    /// An address in use, a thread that cannot be started.
    pub async fn start(listen: SocketAddr, params: &AgentParams) -> anyhow::Result<Self> {
        let registry = Registry::new();
        register_build_info(&registry)?;
        let socket = TcpListener::bind(listen)
            .await
            .with_context(|| format!("cannot listen on {listen} (`--listen`): is it in use?"))?;
        let metrics = ConnectionMetrics::register(&registry, "agent")?;
        let listener = Listener {
            socket,
            tls: server::in_clear(),
            clocks: CLOCKS,
            connections_max: CONNECTIONS_MAX,
            metrics,
        };
        let meters = AgentMeters::start(params, &registry)?;
        info!(listen = %listener.socket.local_addr()?, "agent listening");
        Ok(Self { listener, registry, _meters: meters })
    }

    /// Serves until SIGTERM or SIGINT; a second signal ends at once.
    ///
    /// # Errors
    /// When signals cannot be listened for.
    pub async fn run(self) -> anyhow::Result<()> {
        let (stop, force) = (CancellationToken::new(), CancellationToken::new());
        let shutdown = Shutdown { stop: stop.clone(), force: force.clone() };
        let mut signals = Signals::new()?;
        let page = Guarded(Compressed(AgentPage::new(self.registry)));
        let mut served = std::pin::pin!(server::serve(self.listener, page, shutdown));
        let mut limit = std::pin::pin!(async {
            stop.cancelled().await;
            tokio::time::sleep(DRAIN_LIMIT).await;
        });
        loop {
            tokio::select! {
                () = &mut served => return Ok(()),
                () = &mut limit, if !force.is_cancelled() => force.cancel(),
                signal = signals.next() => match signal {
                    Signal::Stop(signal) => {
                        info!(signal, "asked to stop");
                        if stop.is_cancelled() {
                            force.cancel();
                        }
                        stop.cancel();
                    }
                    Signal::Reload => info!("SIGHUP ignored: an agent has no configuration"),
                }
            }
        }
    }
}

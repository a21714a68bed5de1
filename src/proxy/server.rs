//! Accepting connections, and draining them at the end.

use std::convert::Infallible;
use std::os::fd::AsFd as _;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::connection::{ClientIo, ClientStream, HeadTimer, Watch};
use super::connection_metrics::CutReason;
use super::gate::Gate;
use super::respond::ResponseBody;

pub use super::connection::ConnectionClocks;
pub use super::connection_metrics::ConnectionMetrics;

/// Bytes of a request head, and of the read buffer.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// How long after the word to stop connections are accepted still. Those that came before are read from by then: hyper
/// closes what it has not read from.
const LINGER: Duration = Duration::from_millis(100);
/// Pause after a failed accept (out of file descriptors, say), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A TLS handshake has this long.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// That the bound on connections is reached is logged this often at most.
const FULL_LOGGED_EVERY: Duration = Duration::from_secs(60);
/// A client that vanished without a word is asked after this much silence, then this often, and given up
/// after so many questions: two minutes in all.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(15);
const PROBES: u32 = 4;

/// A listening socket and what holds of the connections to it.
pub struct Listener {
    /// The socket.
    pub socket: TcpListener,
    /// Ends TLS of connections that come from now on; `None` = they come in clear.
    pub tls: watch::Receiver<Option<TlsAcceptor>>,
    /// How long clients may take.
    pub clocks: ConnectionClocks,
    /// Open connections; further ones wait in the system's backlog until one is closed.
    pub connections_max: usize,
    /// Where they are counted.
    pub metrics: ConnectionMetrics,
}

/// Connections come in clear, always.
#[must_use]
pub fn in_clear() -> watch::Receiver<Option<TlsAcceptor>> {
    watch::Sender::new(None).subscribe()
}

/// How a listener is ended.
#[derive(Debug, Clone)]
pub struct Shutdown {
    /// No further connections after a moment; requests under way are finished.
    pub stop: CancellationToken,
    /// Everything ends at once.
    pub force: CancellationToken,
}

/// Serves `listener` until `stop`, then lets requests under way finish until `force`.
pub async fn serve<S>(listener: Listener, service: S, shutdown: Shutdown)
where
    S: Service<Request<Incoming>, Response = Response<ResponseBody>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let Shutdown { stop, force } = shutdown;
    let Listener { socket, tls, clocks, connections_max, metrics } = listener;
    if let Err(error) = probe_silent_clients(&socket) {
        debug!(%error, "cannot have silent clients probed");
    }
    let graceful = GracefulShutdown::new();
    let connections = TaskTracker::new();
    let mut bound = ConnectionBound::new(connections_max);
    let mut closing = pin!(lingering(&stop, &force));
    loop {
        let (stream, permit) = tokio::select! {
            accepted = accept(&socket, &mut bound) => accepted,
            () = &mut closing => break,
        };
        let connection = Connection {
            stream,
            tls: tls.borrow().clone(),
            watch: Arc::new(Watch::new(clocks, metrics.clone())),
            watcher: graceful.watcher(),
        };
        let (service, stop, open) = (service.clone(), stop.clone(), metrics.opened());
        // A token of its own: connections do not meet at its lock, which every poll takes.
        let force = force.child_token();
        connections.spawn(async move {
            tokio::select! {
                () = connection.serve(service, stop) => {}
                () = force.cancelled() => {}
            }
            drop((permit, open));
        });
    }
    drop(socket);
    connections.close();
    tokio::select! {
        () = graceful.shutdown() => {}
        () = force.cancelled() => {}
    }
    connections.wait().await;
}

/// Ends a moment after `stop`: whoever connected before is not turned away.
async fn lingering(stop: &CancellationToken, force: &CancellationToken) {
    stop.cancelled().await;
    tokio::select! {
        () = tokio::time::sleep(LINGER) => {}
        () = force.cancelled() => {}
    }
}

/// The next connection there is room for.
async fn accept(socket: &TcpListener, bound: &mut ConnectionBound) -> (TcpStream, OwnedSemaphorePermit) {
    loop {
        let permit = bound.room().await;
        match socket.accept().await {
            Ok((stream, _)) => return (stream, permit),
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Accepted sockets take these settings over from their listener, so that a connection costs no calls for them.
fn probe_silent_clients(socket: &TcpListener) -> rustix::io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(socket, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(socket, PROBES)
}

/// The bound on open connections.
#[derive(Debug)]
struct ConnectionBound {
    free: Arc<Semaphore>,
    connections_max: usize,
    logged: Option<Instant>,
}

impl ConnectionBound {
    fn new(connections_max: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(connections_max)), connections_max, logged: None }
    }

    /// Waits until another connection may be open.
    async fn room(&mut self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
                return permit;
            }
            if self.logged.is_none_or(|at| at.elapsed() >= FULL_LOGGED_EVERY) {
                self.logged = Some(Instant::now());
                warn!(
                    max_connections = self.connections_max,
                    "all connections are taken; further clients wait: raise `limits.max_connections`"
                );
            }
            // The semaphore is never closed; were it, the loop would only look again.
            if let Ok(permit) = Arc::clone(&self.free).acquire_owned().await {
                return permit;
            }
        }
    }
}

/// An accepted connection.
struct Connection {
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    watch: Arc<Watch>,
    watcher: Watcher,
}

impl Connection {
    async fn serve<S>(self, service: S, stop: CancellationToken)
    where
        S: Service<Request<Incoming>, Response = Response<ResponseBody>, Error = Infallible>
            + Clone
            + Send
            + 'static,
        S::Future: Send,
    {
        let Self { stream, tls, watch, watcher } = self;
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "cannot set TCP_NODELAY");
        }
        let stream = match tls {
            None => ClientStream::Plain(stream),
            Some(tls) => {
                // Boxed: large, and soon over.
                let secured = tokio::select! {
                    secured = Box::pin(secure(tls, stream)) => secured,
                    () = stop.cancelled() => return,
                };
                let Some(secured) = secured else { return watch.cut(CutReason::Handshake) };
                secured
            }
        };
        let mut http = http1::Builder::new();
        // How long this wait is the timer knows better; hyper only says when it begins.
        http.timer(HeadTimer(Arc::clone(&watch))).header_read_timeout(watch.clocks().keep_alive);
        http.max_buf_size(HEAD_BYTES_MAX).max_header_size(HEAD_BYTES_MAX);
        let service = Gate::new(service, Arc::clone(&watch));
        let io = TokioIo::new(ClientIo::new(stream, watch));
        if let Err(error) = watcher.watch(http.serve_connection(io, service)).await {
            debug!(%error, "connection ended with an error");
        }
    }
}

async fn secure(tls: TlsAcceptor, stream: TcpStream) -> Option<ClientStream> {
    match timeout(HANDSHAKE_LIMIT, tls.accept(stream)).await {
        Ok(Ok(stream)) => return Some(ClientStream::Tls(Box::new(stream))),
        Ok(Err(error)) => debug!(%error, "TLS handshake failed"),
        Err(_) => debug!("TLS handshake took too long"),
    }
    None
}

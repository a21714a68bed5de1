//! Accepting connections, and draining them at the end.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;
use tracing::{debug, warn};

use super::respond::ResponseBody;

/// A client has this long to send a request head, and an idle connection is kept this long: longer than the
/// 60 s of common connection pools, so that the client is the one to close.
const HEAD_LIMIT: Duration = Duration::from_secs(75);
/// Bytes of a request head, and of the read buffer.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Pause after a failed accept (out of file descriptors, say), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `listener` until `stop`, then lets requests under way finish until `force`.
pub async fn serve<S>(listener: TcpListener, service: S, stop: CancellationToken, force: CancellationToken)
where
    S: Service<Request<Incoming>, Response = Response<ResponseBody>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let graceful = GracefulShutdown::new();
    let connections = TaskTracker::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            () = stop.cancelled() => break,
        };
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "cannot set TCP_NODELAY");
        }
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT);
        http.max_buf_size(HEAD_BYTES_MAX).max_header_size(HEAD_BYTES_MAX);
        let connection =
            http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service.clone()));
        let connection = graceful.watch(connection);
        let force = force.clone();
        connections.spawn(async move {
            tokio::select! {
                outcome = connection => if let Err(error) = outcome {
                    debug!(%error, "connection ended with an error");
                },
                () = force.cancelled() => {}
            }
        });
    }
    drop(listener);
    connections.close();
    tokio::select! {
        () = graceful.shutdown() => {}
        () = force.cancelled() => {}
    }
    connections.wait().await;
}

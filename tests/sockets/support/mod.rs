//! Real servers and clients on loopback sockets, with every byte under the test's control.

pub(crate) mod answers;
pub(crate) mod app;
pub(crate) mod embedder;
pub(crate) mod engine;
pub(crate) mod fake_endpoint;
pub(crate) mod http1;
pub(crate) mod kernel;
pub(crate) mod llama;
pub(crate) mod metrics;
pub(crate) mod nvml;
pub(crate) mod process;
pub(crate) mod raw_client;
pub(crate) mod scripted;

use std::time::Duration;

/// Nothing here takes this long, even on a crowded machine: it only turns a hang into a failure.
const HANG: Duration = Duration::from_secs(60);

/// The outcome of `future`; a panic that names `what` if it hangs.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, future).await.unwrap_or_else(|_| panic!("waited {HANG:?} for {what}"))
}

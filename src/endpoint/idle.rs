//! Connections to one endpoint that wait for the next request.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::connection::EndpointConnection;

/// Idle connections are closed before the servers do it after 5 s.
const IDLE_MAX: Duration = Duration::from_secs(4);
/// Idle connections kept per endpoint.
const KEPT_MAX: usize = 1024;

/// Idle connections to one endpoint, the longest idle first.
#[derive(Debug, Default)]
pub(super) struct IdleConnections {
    kept: Mutex<Vec<Kept>>,
}

#[derive(Debug)]
struct Kept {
    connection: Box<EndpointConnection>,
    since: Instant,
}

impl IdleConnections {
    /// The connection used last, if it still stands.
    pub(super) fn take(&self) -> Option<Box<EndpointConnection>> {
        loop {
            let newest = self.lock().pop()?;
            let mut connection = newest.connection;
            if newest.since.elapsed() < IDLE_MAX && connection.is_reusable() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection whose exchange is over, if it can be used again.
    pub(super) fn put(&self, mut connection: Box<EndpointConnection>) {
        if !connection.is_free() {
            return;
        }
        let mut kept = self.lock();
        if kept.len() < KEPT_MAX {
            kept.push(Kept { connection, since: Instant::now() });
        }
    }

    /// Closes those that were idle for too long.
    pub(super) fn sweep(&self) {
        let mut kept = self.lock();
        let n_old = kept.partition_point(|kept| kept.since.elapsed() >= IDLE_MAX);
        let old: Vec<Kept> = kept.drain(..n_old).collect();
        drop(kept);
        // Closing takes system calls, which nobody should wait for.
        drop(old);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! What the admin API has the router do: take another configuration, drain an endpoint and resume it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

/// Reloads that may wait for one under way.
const RELOADS_WAITING_MAX: usize = 16;

/// What a reload came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// What was exchanged: `nothing`, `settings` (same fleet, same books) or `fleet` (the fleet and what is known of it).
    pub exchanged: &'static str,
    /// Keys whose change takes effect with the next start only.
    pub needs_restart: Vec<&'static str>,
}

/// Why the configuration before stays in force.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReloadError {
    /// The file cannot be read or has faults.
    #[error("{0}")]
    Configuration(String),
    /// It cannot be set up.
    #[error("the configuration cannot be put in force: {0}")]
    SetUp(String),
    /// Too many configurations are on their way out.
    #[error("{0} earlier configurations still have requests under way: try again when some of them are over")]
    Busy(usize),
    /// The router was started without a file.
    #[error("this router was not started from a file")]
    NoFile,
    /// The router stops, or has its hands full.
    #[error("the router cannot reload now")]
    Unavailable,
}

/// A reload that is asked for.
#[derive(Debug)]
pub struct ReloadRequest {
    /// Who wants to know what came of it.
    pub reply: oneshot::Sender<Result<Reloaded, ReloadError>>,
}

/// The way to whoever reloads. Clones share it.
#[derive(Debug, Clone)]
pub struct Control {
    requests: mpsc::Sender<ReloadRequest>,
}

impl Control {
    /// The way, and its other end.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<ReloadRequest>) {
        let (requests, inbox) = mpsc::channel(RELOADS_WAITING_MAX);
        (Self { requests }, inbox)
    }

    /// Reads the configuration again and puts it in force.
    ///
    /// # Errors
    /// See [`ReloadError`]; nothing has changed then.
    pub async fn reload(&self) -> Result<Reloaded, ReloadError> {
        let (reply, outcome) = oneshot::channel();
        self.requests.try_send(ReloadRequest { reply }).map_err(|_| ReloadError::Unavailable)?;
        outcome.await.unwrap_or(Err(ReloadError::Unavailable))
    }
}

/// Endpoints that an operator has taken out of service, by name; they stay so over reloads. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Drained(Arc<Mutex<BTreeSet<String>>>);

impl Drained {
    /// Notes that an endpoint is taken out of service, or back into it.
    pub fn set(&self, endpoint: &str, is_draining: bool) {
        let mut drained = self.lock();
        if is_draining {
            drained.insert(endpoint.to_owned());
        } else {
            drained.remove(endpoint);
        }
    }

    /// Whether an endpoint is out of service.
    #[must_use]
    pub fn contains(&self, endpoint: &str) -> bool {
        self.lock().contains(endpoint)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // Whoever panicked with the lock left names that are as good as any.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Why a request was not served.

use super::Routing;
use super::failure::{ComeBack, FailureKind};
use crate::scheduler::PlaceError;

/// Why a request was not answered by an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It got no destination.
    #[error("{error}")]
    Unplaced {
        /// Why.
        error: PlaceError,
        /// When it may come again, where its endpoints just want to be left alone.
        come_back: Option<ComeBack>,
    },
    /// Its destinations failed it; the last failure.
    #[error("{} destination(s) failed, the last one: {kind}", routing.attempts)]
    Failed {
        /// How it was routed last.
        routing: Box<Routing>,
        /// What went wrong.
        kind: FailureKind,
    },
}

impl ServeError {
    /// Whether it says something of the router, its policy or its fleet, rather than of the request.
    pub(super) fn is_a_failure(&self) -> bool {
        match self {
            Self::Unplaced { error, .. } => error.is_a_failure(),
            Self::Failed { kind, .. } => kind.is_a_failure(),
        }
    }
}

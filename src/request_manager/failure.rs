//! What goes wrong in an attempt, and what follows from it: for the request, for its endpoint, for what the
//! client is told in the end.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tracing::{info, warn};

use crate::domain::DestinationOrd;
use crate::endpoint::SendError;
use crate::endpoint::upstream_error::UpstreamError;
use crate::profiler::node::{Absence, Leave, Verdict};

/// What an endpoint did wrong, in terms a client may see.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FailureKind {
    /// No connection.
    #[error("it could not be reached")]
    Unreachable,
    /// It broke off.
    #[error("it closed the connection before answering")]
    Broken,
    /// It took too long.
    #[error("it did not answer in time")]
    TimedOut,
    /// It answered with something that is no answer.
    #[error("it gave an unusable answer: {0}")]
    Unusable(String),
    /// It answered with an error.
    #[error("it answered {}: {}", error.status, error.message)]
    Answered {
        /// Its status and words, without anything that names the endpoint.
        error: UpstreamError,
        /// When a retry may succeed.
        retry_after: Option<Duration>,
        /// Its own `x-should-retry`.
        should_retry: Option<bool>,
    },
}

impl FailureKind {
    /// Whether it says something of the endpoint rather than of the request.
    pub(super) fn is_a_failure(&self) -> bool {
        let is_about_the_request = |status: StatusCode| {
            status.is_client_error()
                && !is_about_the_router(status)
                && !matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
        };
        !matches!(self, Self::Answered { error, .. } if is_about_the_request(error.status))
    }
}

/// When and how a request that is refused for want of an endpoint may come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComeBack {
    /// Until the first of its endpoints takes requests again.
    pub wait: Duration,
    /// Whether they all just have too much to do (429), rather than something wrong (503).
    pub is_contended: bool,
}

/// Why an attempt gave no answer. Nothing of it has reached the client.
#[derive(Debug)]
pub(super) enum Failure {
    Connect,
    Broken,
    TimedOut(&'static str),
    Unusable(String),
    Answered { error: UpstreamError, wait: Option<Duration>, should_retry: Option<bool> },
}

impl Failure {
    /// Metric label.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Broken => "broken",
            Self::TimedOut(what) => what,
            Self::Unusable(_) => "unusable",
            Self::Answered { error, .. } => match error.status.as_u16() {
                429 => "status_429",
                503 => "status_503",
                400..500 => "status_4xx",
                _ => "status_5xx",
            },
        }
    }

    /// Whether another destination may do better: not where the request itself is at fault. A 404, 401 or
    /// 403 is about the endpoint's models and the router's key, a 408, 409 or 425 about the moment.
    pub(super) fn may_fail_over(&self) -> bool {
        match self {
            Self::Answered { error, .. } => !matches!(error.status.as_u16(), 400 | 405 | 413 | 415 | 422),
            _ => true,
        }
    }

    /// Writes it into the log.
    pub(super) fn tell(&self, (request_id, destination): (&str, &str), attempt: u32) {
        let status = match self {
            Self::Answered { error, .. } => Some(error.status.as_u16()),
            _ => None,
        };
        let reason = self.reason();
        if !self.may_fail_over() {
            info!(
                request_id,
                destination, attempt, status, reason, "the endpoint refused a request for what it is"
            );
        } else if matches!(status, Some(401 | 403)) {
            warn!(
                request_id,
                destination, attempt, status, reason, "attempt failed: is its `api_key_env` right?"
            );
        } else {
            warn!(request_id, destination, attempt, status, reason, "attempt failed");
        }
    }

    fn is_about_the_router(&self) -> bool {
        matches!(self, Self::Answered { error, .. } if is_about_the_router(error.status))
    }

    /// Whether it is a refusal of `stream_options`, which older servers do not know.
    pub(super) fn is_about_usage(&self) -> bool {
        let names = |text: &str| text.contains("stream_options") || text.contains("include_usage");
        match self {
            Self::Answered { error, .. } if matches!(error.status.as_u16(), 400 | 422) => {
                names(&error.message) || error.param.as_deref().is_some_and(names)
            }
            _ => false,
        }
    }

    /// What it says of the endpoint.
    pub(super) fn verdict(&self) -> Verdict {
        match self {
            Self::Connect => Verdict::Unreachable,
            Self::Broken | Self::TimedOut(_) | Self::Unusable(_) => Verdict::Failed,
            Self::Answered { error, wait, .. } => match (leave(error.status, *wait), error.status.as_u16()) {
                (Some(leave), _) => Verdict::Wait(leave, *wait),
                (None, 400..500) => Verdict::Fine,
                (None, _) => Verdict::Failed,
            },
        }
    }

    pub(super) fn kind(&self) -> FailureKind {
        match self {
            Self::Connect => FailureKind::Unreachable,
            Self::Broken => FailureKind::Broken,
            Self::TimedOut(_) => FailureKind::TimedOut,
            Self::Unusable(why) => FailureKind::Unusable(why.clone()),
            Self::Answered { error, wait, should_retry } => FailureKind::Answered {
                error: error.clone(),
                retry_after: *wait,
                should_retry: *should_retry,
            },
        }
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Connect(_) => Self::Connect,
            SendError::Broken(error) if error.is_parse() => Self::Unusable("no HTTP/1.1".to_owned()),
            SendError::Broken(_) => Self::Broken,
            SendError::FirstByteTimeout(_) => Self::TimedOut("first_byte_timeout"),
            SendError::Request(error) => Self::Unusable(error.to_string()),
        }
    }
}

/// Why an endpoint that answered with `status` and this wish is to be left alone, if it is.
fn leave(status: StatusCode, wait: Option<Duration>) -> Option<Leave> {
    match (status, wait) {
        (StatusCode::TOO_MANY_REQUESTS, _) => Some(Leave::RateLimited),
        (StatusCode::SERVICE_UNAVAILABLE, Some(_)) => Some(Leave::Overloaded),
        (StatusCode::SERVICE_UNAVAILABLE, None) => Some(Leave::Unavailable),
        _ => None,
    }
}

/// Whether an endpoint that answers with `status` finds fault with the router's key, account or configuration,
/// which no retry mends.
pub(super) const fn is_about_the_router(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401..=404 | 407)
}

/// An endpoint's own `x-should-retry`.
pub(super) fn should_retry(headers: &HeaderMap) -> Option<bool> {
    match headers.get("x-should-retry")?.as_bytes() {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

/// What has come of one request's destinations so far.
#[derive(Debug, Default)]
pub(super) struct Tried {
    /// Destinations that said wait, or were not asked because they had said so.
    waits: Vec<(DestinationOrd, Leave, Option<Duration>)>,
    /// Whether one failed in another way.
    has_failed: bool,
    /// Whether one of those may do better another time.
    may_mend: bool,
}

impl Tried {
    /// An attempt failed; `wait` is the one that its endpoint asked for, if it did.
    pub(super) fn failed(&mut self, d: DestinationOrd, failure: &Failure, wait: Duration) {
        match failure.verdict() {
            Verdict::Wait(leave, _) => self.waits.push((d, leave, Some(wait))),
            Verdict::Fine | Verdict::Failed | Verdict::Unreachable => {
                self.has_failed = true;
                self.may_mend |= !failure.is_about_the_router();
            }
        }
    }

    /// A destination takes nothing now. One that was tried already has had its say.
    pub(super) fn absent(&mut self, d: DestinationOrd, absence: Absence) {
        if self.waits.iter().all(|(tried, ..)| *tried != d) {
            self.waits.push((d, absence.leave, absence.back_in));
        }
    }

    /// One takes nothing and will not say when it does.
    pub(super) fn down(&mut self) {
        self.has_failed = true;
        self.may_mend = true;
    }

    /// Whether another try may find one that is better off.
    pub(super) fn may_mend(&self) -> bool {
        self.may_mend || !self.waits.is_empty()
    }

    /// Whether every destination tried said wait.
    pub(super) fn only_waits(&self) -> bool {
        !self.has_failed && !self.waits.is_empty()
    }

    /// When the first of those that wait is back.
    pub(super) fn come_back(&self) -> Option<ComeBack> {
        let wait = self.waits.iter().filter_map(|(.., wait)| *wait).min()?;
        let leaves = || self.waits.iter().map(|(_, leave, _)| *leave);
        let is_contended = self.only_waits()
            && leaves().any(|leave| leave == Leave::RateLimited)
            && leaves().all(|leave| matches!(leave, Leave::RateLimited | Leave::Overloaded));
        Some(ComeBack { wait, is_contended })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absent(leaves: &[(Leave, u64)]) -> Tried {
        let mut tried = Tried::default();
        for (d, (leave, ms)) in (0..).map(DestinationOrd).zip(leaves) {
            tried.absent(d, Absence { leave: *leave, back_in: Some(Duration::from_millis(*ms)) });
        }
        tried
    }

    #[test]
    fn the_earliest_return_counts_and_contention_is_told_from_failure() {
        use Leave::{CircuitOpen, Overloaded, RateLimited, Unavailable};
        for (leaves, wait_ms, is_contended) in [
            ([(RateLimited, 7_000), (RateLimited, 3_000), (Overloaded, 250)].as_slice(), 250, true),
            (&[(RateLimited, 120_000)], 120_000, true),
            (&[(Overloaded, 7_000)], 7_000, false),
            (&[(RateLimited, 10), (Unavailable, 1_000)], 10, false),
            (&[(RateLimited, 10), (CircuitOpen, 5)], 5, false),
        ] {
            let wait = Duration::from_millis(wait_ms);
            assert_eq!(absent(leaves).come_back(), Some(ComeBack { wait, is_contended }), "{leaves:?}");
        }
        assert_eq!(Tried::default().come_back(), None);
    }

    #[test]
    fn one_real_failure_is_more_than_contention() {
        let mut tried = absent(&[(Leave::RateLimited, 10)]);
        assert!(tried.only_waits());
        tried.failed(DestinationOrd(1), &Failure::Broken, Duration::ZERO);
        assert!(!tried.only_waits() && !tried.come_back().unwrap().is_contended);
    }

    #[test]
    fn who_is_at_fault_decides_on_fail_over_and_on_the_endpoint() {
        let answered = |status: u16, wait: Option<Duration>| {
            let error = UpstreamError::from_response(StatusCode::from_u16(status).unwrap(), b"");
            Failure::Answered { error, wait, should_retry: None }
        };
        for (status, fails_over, verdict) in [
            (400, false, Verdict::Fine),
            (401, true, Verdict::Fine),
            (404, true, Verdict::Fine),
            (405, false, Verdict::Fine),
            (408, true, Verdict::Fine),
            (409, true, Verdict::Fine),
            (413, false, Verdict::Fine),
            (422, false, Verdict::Fine),
            (425, true, Verdict::Fine),
            (429, true, Verdict::Wait(Leave::RateLimited, None)),
            (500, true, Verdict::Failed),
            (503, true, Verdict::Wait(Leave::Unavailable, None)),
            (504, true, Verdict::Failed),
        ] {
            let failure = answered(status, None);
            assert_eq!((failure.may_fail_over(), failure.verdict()), (fails_over, verdict), "{status}");
        }
        let wait = Some(Duration::from_secs(7));
        assert_eq!(answered(503, wait).verdict(), Verdict::Wait(Leave::Overloaded, wait));
        assert_eq!(Failure::Connect.verdict(), Verdict::Unreachable);
    }
}

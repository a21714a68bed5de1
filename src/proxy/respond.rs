//! From outcomes to HTTP: the one place where statuses and response headers are made.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

use super::openai::ApiError;
use super::stack::X_REQUEST_ID;
use crate::domain::{ApiCall, Destination};
use crate::endpoint::upstream_error::UpstreamError;
use crate::request_manager::{
    ComeBack, FailureKind, PassedHead, Routing, ServeError, Served, ServedBody, names_event_stream,
};
use crate::scheduler::{NoDestination, PlaceError};
use crate::units::Seconds;

/// The body of every answer.
pub type ResponseBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
pub(super) const X_CEMA_DESTINATION: HeaderName = HeaderName::from_static("x-cema-destination");
const X_CEMA_MODEL: HeaderName = HeaderName::from_static("x-cema-model");
const X_CEMA_BATCH: HeaderName = HeaderName::from_static("x-cema-batch");
const X_CEMA_WINDOW_MS: HeaderName = HeaderName::from_static("x-cema-window-ms");
pub(super) const X_CEMA_ATTEMPTS: HeaderName = HeaderName::from_static("x-cema-attempts");
const X_CEMA_POLICY: HeaderName = HeaderName::from_static("x-cema-policy");

/// When a client may try again where nothing better is known.
const RETRY_SOON: Duration = Duration::from_secs(1);

/// A body that is all there.
fn whole(body: impl Into<Bytes>) -> ResponseBody {
    Full::new(body.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A plain-text answer.
pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<ResponseBody> {
    with_type(status, "text/plain; charset=utf-8", body)
}

/// A JSON answer.
pub(super) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<ResponseBody> {
    with_type(status, "application/json", body)
}

/// An answer of the given media type.
pub(super) fn with_type(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<ResponseBody> {
    let mut response = Response::new(whole(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// An OpenAI-shaped error answer.
pub(super) fn error_response(error: ApiError) -> Response<ResponseBody> {
    error.into_response().map(whole)
}

/// The answer of an endpoint, with what clients are told of its routing.
pub(super) fn answer(served: Served, labels: &RoutingLabels) -> Response<ResponseBody> {
    let body = match served.body {
        ServedBody::Whole(body) => body.map_err(|never| match never {}).boxed_unsync(),
        ServedBody::Relayed(body) => body.map_err(Into::into).boxed_unsync(),
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let PassedHead { content_type, cache_control } = served.head;
    if names_event_stream(&content_type) {
        *headers = labels.head(&served.routing, Kind::Stream);
    } else {
        *headers = labels.head(&served.routing, Kind::Whole);
        if let Some(cache_control) = cache_control {
            headers.insert(header::CACHE_CONTROL, cache_control);
        }
    }
    headers.insert(header::CONTENT_TYPE, content_type);
    response
}

/// Which of a destination's heads.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Of an answer in one piece, or of an error.
    Whole,
    /// Of a stream of events.
    Stream,
}

/// The heads of answers by destination and [`Kind`], with usual values where values differ and a place for the id of the
/// request: to copy a head and to change some values of it costs half of what it takes to build one.
#[derive(Debug)]
pub(super) struct RoutingLabels {
    policy: &'static str,
    heads: Vec<[HeaderMap; 2]>,
}

impl RoutingLabels {
    /// `policy` is the usual one.
    pub(super) fn new(policy: &'static str, destinations: &[Destination]) -> Self {
        let heads = |d: &Destination| {
            let whole = usual_head(policy, d);
            let mut stream = whole.clone();
            stream.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            stream.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
            [whole, stream]
        };
        Self { policy, heads: destinations.iter().map(heads).collect() }
    }

    /// What an answer says of its `routing`.
    fn head(&self, routing: &Routing, kind: Kind) -> HeaderMap {
        let heads = self.heads.get(routing.ord.idx());
        let mut head = heads.map(|heads| heads[kind as usize].clone()).unwrap_or_default();
        head.insert(X_CEMA_BATCH, routing.plan.into());
        head.insert(X_CEMA_WINDOW_MS, in_ms(routing.waited));
        if routing.attempts != 1 {
            head.insert(X_CEMA_ATTEMPTS, routing.attempts.into());
        }
        if routing.policy != self.policy {
            head.insert(X_CEMA_POLICY, HeaderValue::from_static(routing.policy));
        }
        head
    }
}

fn usual_head(policy: &'static str, destination: &Destination) -> HeaderMap {
    let mut head = HeaderMap::new();
    // What a header cannot hold is left out.
    for (name, label) in [(X_CEMA_DESTINATION, destination.id.as_str()), (X_CEMA_MODEL, &destination.model)] {
        if let Ok(label) = HeaderValue::from_str(label) {
            head.insert(name, label);
        }
    }
    for (name, usual) in [
        (X_CEMA_BATCH, "1"),
        (X_CEMA_WINDOW_MS, "0.0"),
        (X_CEMA_ATTEMPTS, "1"),
        (X_CEMA_POLICY, policy),
        (header::CONTENT_TYPE, "application/json"),
        (X_REQUEST_ID, ""),
    ] {
        head.insert(name, HeaderValue::from_static(usual));
    }
    head
}

/// Puts a header whose value comes from a configuration; one that a header cannot hold is left out.
fn put(headers: &mut HeaderMap, name: &'static str, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

/// Milliseconds with one decimal.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates; a digit")]
fn in_ms(span: Seconds) -> HeaderValue {
    let mut left = (span.0 * 1e4).round() as u64;
    // From its end on: the tenths, and what comes before the point.
    let mut text = *b"00000000000000000000000.0";
    let mut at = text.len() - 1;
    text[at] += (left % 10) as u8;
    at -= 1;
    while left >= 10 || text.len() - at < 3 {
        left /= 10;
        at -= 1;
        text[at] += (left % 10) as u8;
    }
    HeaderValue::from_bytes(&text[at..]).unwrap_or_else(|_| HeaderValue::from_static("0.0"))
}

/// Adds what a client that asked for it is told of the decision.
pub(super) fn describe_decision(headers: &mut HeaderMap, routing: &Routing, runner_up: Option<&Destination>) {
    let e = &routing.estimate;
    let predicted = format!(
        "quality={:.4};usd={:.8};joules={:.3};seconds={:.3}",
        e.quality.0, e.usd.0, e.joules.0, e.completion.0
    );
    put(headers, "x-cema-predicted", predicted);
    put(headers, "x-cema-batch-size", routing.batch_size.to_string());
    if let Some(runner_up) = runner_up {
        put(headers, "x-cema-runner-up", runner_up.id.to_string());
    }
}

/// The answer to a client that no endpoint answered, with what it is told of the routing if it was routed.
pub(super) fn not_served(
    kind: ApiCall,
    error: &ServeError,
    labels: &RoutingLabels,
) -> Response<ResponseBody> {
    match error {
        ServeError::Unplaced { error, come_back } => error_response(place_error(kind, error, *come_back)),
        ServeError::Failed { kind: failed, routing } => {
            let mut response = error_response(failure(failed, &error.to_string()));
            response.headers_mut().extend(labels.head(routing, Kind::Whole));
            response
        }
    }
}

fn place_error(kind: ApiCall, error: &PlaceError, come_back: Option<ComeBack>) -> ApiError {
    let message = error.to_string();
    match error {
        PlaceError::Impossible(NoDestination::Unavailable { .. } | NoDestination::AllTried { .. }) => {
            match come_back {
                Some(back) if back.is_contended => ApiError::too_many_requests(message, back.wait),
                Some(back) => ApiError::unavailable(message, back.wait),
                None => ApiError::unavailable(message, RETRY_SOON),
            }
        }
        PlaceError::QueueFull { .. } => ApiError::too_many_requests(message, RETRY_SOON),
        PlaceError::Impossible(reason) => no_destination(kind, reason),
        PlaceError::Expired { .. } | PlaceError::Undecided(_) | PlaceError::Closed => {
            ApiError::unavailable(message, RETRY_SOON)
        }
    }
}

fn no_destination(kind: ApiCall, reason: &NoDestination) -> ApiError {
    let message = reason.to_string();
    match reason {
        NoDestination::UnknownModel { model } => ApiError::model_not_found(model),
        NoDestination::MissingCapability { .. } => {
            ApiError::bad_request(message, None, Some("unsupported_capability"))
        }
        NoDestination::ContextTooSmall { .. } => {
            ApiError::bad_request(message, Some(kind.prompt_field()), Some("context_length_exceeded"))
        }
        NoDestination::Placement { .. } => {
            ApiError::bad_request(message, Some("x-cema-placement"), Some("no_such_placement"))
        }
        NoDestination::QualityFloor { .. } => {
            ApiError::bad_request(message, Some("x-cema-min-quality"), Some("quality_floor"))
        }
        NoDestination::Unavailable { .. } | NoDestination::AllTried { .. } => {
            ApiError::unavailable(message, RETRY_SOON)
        }
        NoDestination::Deadline { deadline, earliest, is_hopeless } => {
            // As much of the backlog must be gone.
            let excess = Duration::try_from_secs_f64((*earliest - *deadline).0).unwrap_or(RETRY_SOON);
            let error = ApiError::unavailable(message, excess.max(RETRY_SOON));
            let error = ApiError { code: Some("deadline_infeasible".into()), ..error };
            if *is_hopeless { error.with_should_retry(false) } else { error }
        }
    }
}

fn failure(kind: &FailureKind, message: &str) -> ApiError {
    match kind {
        FailureKind::Unreachable | FailureKind::Broken => ApiError::unavailable(message, RETRY_SOON),
        FailureKind::TimedOut => ApiError::gateway_timeout(message),
        FailureKind::Unusable(_) => ApiError::bad_gateway(message),
        FailureKind::Answered { error, retry_after, should_retry } => {
            let answer = answered(error, *retry_after, message);
            match should_retry {
                Some(should_retry) => answer.with_should_retry(*should_retry),
                None => answer,
            }
        }
    }
}

/// An endpoint's error as the client gets it.
fn answered(error: &UpstreamError, asked_wait: Option<Duration>, message: &str) -> ApiError {
    let wait = asked_wait.unwrap_or(RETRY_SOON);
    match error.status.as_u16() {
        // The router's own key or account is at fault, not the client's.
        401 | 403 | 407 => {
            ApiError::bad_gateway("the endpoint refused the router's credentials").with_should_retry(false)
        }
        402 | 404 => ApiError::bad_gateway(message).with_should_retry(false),
        429 => ApiError::too_many_requests(error.message.clone(), wait),
        400..500 => ApiError {
            param: error.param.clone(),
            retry_after: asked_wait,
            ..ApiError::new(error.status, &error.kind, error.code.as_deref(), error.message.clone())
        },
        503 => ApiError::unavailable(error.message.clone(), wait),
        504 => ApiError::gateway_timeout(message),
        _ => ApiError::bad_gateway(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_told_in_tenths_of_milliseconds() {
        let told = [0.0, 4e-5, 6e-5, 0.00996, 0.9999, 1.0, 1234.5678, 1e30].map(|s| in_ms(Seconds(s)));
        let expected = ["0.0", "0.0", "0.1", "10.0", "999.9", "1000.0", "1234567.8", "1844674407370955161.5"];
        assert_eq!(told, expected);
    }
}

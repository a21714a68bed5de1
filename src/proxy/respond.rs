//! From outcomes to HTTP: the one place where statuses and response headers are made.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

use super::openai::ApiError;
use crate::domain::{ApiCall, Destination};
use crate::endpoint::upstream_error::UpstreamError;
use crate::request_manager::{
    ComeBack, FailureKind, Routing, ServeError, Served, ServedBody, names_event_stream,
};
use crate::scheduler::{NoDestination, PlaceError};
use crate::units::Seconds;

/// The body of every answer.
pub type ResponseBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const X_CEMA_DESTINATION: HeaderName = HeaderName::from_static("x-cema-destination");
const X_CEMA_MODEL: HeaderName = HeaderName::from_static("x-cema-model");
const X_CEMA_BATCH: HeaderName = HeaderName::from_static("x-cema-batch");
const X_CEMA_WINDOW_MS: HeaderName = HeaderName::from_static("x-cema-window-ms");
const X_CEMA_ATTEMPTS: HeaderName = HeaderName::from_static("x-cema-attempts");
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
    *headers = served.headers;
    if headers.get(header::CONTENT_TYPE).is_some_and(names_event_stream) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    }
    describe(headers, &served.routing, labels);
    response
}

/// What answers say of their routing, as far as it is known beforehand.
#[derive(Debug)]
pub(super) struct RoutingLabels {
    policy: HeaderValue,
    /// Id and model of every destination; `None` = what a header cannot hold.
    destinations: Vec<[Option<HeaderValue>; 2]>,
}

impl RoutingLabels {
    pub(super) fn new(policy: &'static str, destinations: &[Destination]) -> Self {
        let label = |text: &str| HeaderValue::from_str(text).ok();
        let labels = |d: &Destination| [label(d.id.as_str()), label(&d.model)];
        Self {
            policy: HeaderValue::from_static(policy),
            destinations: destinations.iter().map(labels).collect(),
        }
    }
}

/// Puts a header whose value comes from a configuration; one that a header cannot hold is left out.
fn put(headers: &mut HeaderMap, name: &'static str, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

fn describe(headers: &mut HeaderMap, routing: &Routing, labels: &RoutingLabels) {
    let of_destination = labels.destinations.get(routing.ord.idx()).into_iter().flatten();
    for (name, label) in [X_CEMA_DESTINATION, X_CEMA_MODEL].into_iter().zip(of_destination) {
        if let Some(label) = label {
            headers.insert(name, label.clone());
        }
    }
    headers.insert(X_CEMA_BATCH, number(routing.plan));
    headers.insert(X_CEMA_WINDOW_MS, in_ms(routing.waited));
    headers.insert(X_CEMA_ATTEMPTS, number(u64::from(routing.attempts)));
    headers.insert(X_CEMA_POLICY, labels.policy.clone());
}

/// A number, for next to nothing where it is 1.
fn number(number: u64) -> HeaderValue {
    if number == 1 { HeaderValue::from_static("1") } else { number.into() }
}

/// Milliseconds with one decimal.
fn in_ms(span: Seconds) -> HeaderValue {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let tenths = (span.0 * 1e4).round() as u64;
    if tenths == 0 {
        return HeaderValue::from_static("0.0");
    }
    HeaderValue::try_from(format!("{}.{}", tenths / 10, tenths % 10))
        .unwrap_or_else(|_| HeaderValue::from_static("0.0"))
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
            describe(response.headers_mut(), routing, labels);
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

//! The `x-cema-*` request headers: they only tighten what a virtual model or key allows.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::auth::Grant;
use super::openai::ApiError;
use super::stack::X_REQUEST_ID;
use crate::domain::{Constraints, NodeClass, Weights};
use crate::units::{Quality, Seconds};

const PLACEMENT: &str = "x-cema-placement";
const MIN_QUALITY: &str = "x-cema-min-quality";
const DEADLINE_MS: &str = "x-cema-deadline-ms";
const WEIGHTS: &str = "x-cema-weights";
const DEBUG: &str = "x-cema-debug";
const SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");
/// How the router's own headers begin.
const PREFIX: &str = "x-cema-";

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

const KNOWN: [&str; 5] = [PLACEMENT, MIN_QUALITY, DEADLINE_MS, WEIGHTS, DEBUG];

/// Longest deadline a client may ask for: a day.
const DEADLINE_MS_MAX: f64 = 86_400_000.0;

/// What the headers of a request ask of its routing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct RoutingHeaders {
    pub(super) constraints: Constraints,
    pub(super) weights: Option<Weights>,
    pub(super) debug: bool,
}

/// Reads them. A misspelt one is refused: a constraint must not be lost.
pub(super) fn read(headers: &HeaderMap, grant: Grant<'_>) -> Result<RoutingHeaders, ApiError> {
    if !headers.keys().any(|name| name.as_str().starts_with(PREFIX)) {
        return Ok(RoutingHeaders::default());
    }
    let is_unknown =
        |name: &&HeaderName| name.as_str().starts_with(PREFIX) && !KNOWN.contains(&name.as_str());
    if let Some(name) = headers.keys().find(is_unknown) {
        let message = format!("header `{name}` is not known here; there are {}", KNOWN.join(", "));
        return Err(ApiError::bad_request(message, Some(name.as_str()), Some("invalid_header")));
    }
    let placement = parsed(headers, PLACEMENT, "cloud or edge", NodeClass::from_name)?;
    let min_quality = parsed(headers, MIN_QUALITY, "a number from 0 to 1", |text| number_in(text, 0.0, 1.0))?;
    let deadline_ms = parsed(headers, DEADLINE_MS, "milliseconds from 1 to 86400000", |text| {
        number_in(text, 1.0, DEADLINE_MS_MAX)
    })?;
    let weights = parsed(
        headers,
        WEIGHTS,
        "weights such as quality=.6,time=.4, each named once, that do not sum to 0",
        Weights::parse,
    )?;
    if weights.is_some() && !grant.allows_weights() {
        let message = format!("this API key may not set `{WEIGHTS}`: leave the header out");
        return Err(ApiError::new(
            http::StatusCode::FORBIDDEN,
            "invalid_request_error",
            Some("weights_not_allowed"),
            message,
        ));
    }
    let debug = parsed(headers, DEBUG, "true or false", |text| text.to_ascii_lowercase().parse().ok())?;
    let constraints = Constraints {
        placement,
        min_quality: min_quality.map(Quality),
        deadline: deadline_ms.map(Seconds::from_ms),
    };
    Ok(RoutingHeaders { constraints, weights, debug: debug.unwrap_or(false) })
}

/// What the client calls the session that its request is part of; nothing if it says so several times.
pub(super) fn session(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(SESSION_ID).iter();
    let name = values.next().filter(|_| values.next().is_none())?.as_bytes().trim_ascii();
    (!name.is_empty()).then_some(name)
}

fn parsed<T>(
    headers: &HeaderMap,
    name: &'static str,
    allowed: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let single = Some(value).filter(|_| values.next().is_none());
    let text = single.and_then(|value| value.to_str().ok());
    text.and_then(|text| parse(text.trim())).map(Some).ok_or_else(|| {
        ApiError::bad_request(
            format!("header `{name}` must be {allowed}, once"),
            Some(name),
            Some("invalid_header"),
        )
    })
}

fn number_in(text: &str, low: f64, high: f64) -> Option<f64> {
    text.parse::<f64>().ok().filter(|number| (low..=high).contains(number))
}

/// Refuses a body that is declared as something other than JSON; one that is not declared is taken for JSON.
///
/// # Errors
/// 415.
pub(super) fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    for value in headers.get_all(header::CONTENT_TYPE) {
        if value == "application/json" {
            continue;
        }
        let text = String::from_utf8_lossy(value.as_bytes());
        let media_type = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let is_json = matches!(media_type.as_str(), "" | "application/json" | "text/json")
            || (media_type.starts_with("application/") && media_type.ends_with("+json"));
        if !is_json {
            return Err(ApiError::unsupported_media_type(&text));
        }
    }
    Ok(())
}

/// The headers an endpoint gets: what describes the body and the trace, never a credential, and nothing that
/// the client's `connection` header says is for this hop alone.
pub(super) fn for_endpoint(headers: &HeaderMap, request_id: HeaderValue) -> Arc<[(HeaderName, HeaderValue)]> {
    let own = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        // What passes must be readable on the way: no compression on this hop.
        (header::ACCEPT_ENCODING, HeaderValue::from_static("identity")),
        (X_REQUEST_ID, request_id),
    ];
    let passing = [header::ACCEPT, TRACEPARENT, TRACESTATE];
    let is_passed =
        |(name, _): &(&HeaderName, &HeaderValue)| passing.contains(name) && !is_for_this_hop(headers, name);
    let mut passed = Vec::with_capacity(own.len() + 2);
    passed.extend(headers.iter().filter(is_passed).map(|(name, value)| (name.clone(), value.clone())));
    passed.extend(own);
    passed.into()
}

fn is_for_this_hop(headers: &HeaderMap, name: &HeaderName) -> bool {
    let listed = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii));
    listed.into_iter().any(|listed| listed.eq_ignore_ascii_case(name.as_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::auth::Auth;

    fn read_one(name: &'static str, value: &'static str) -> Result<RoutingHeaders, ApiError> {
        let headers =
            HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]);
        let auth = Auth::default();
        read(&headers, auth.check(&headers).unwrap())
    }

    #[test]
    fn each_header_is_read_or_refused_by_name() {
        assert_eq!(read_one(PLACEMENT, "edge").unwrap().constraints.placement, Some(NodeClass::Edge));
        assert_eq!(read_one(MIN_QUALITY, "0.7").unwrap().constraints.min_quality, Some(Quality(0.7)));
        assert_eq!(read_one(DEADLINE_MS, "1500").unwrap().constraints.deadline, Some(Seconds(1.5)));
        assert_eq!(
            read_one(WEIGHTS, "quality=3, time=1").unwrap().weights,
            Some(Weights { quality: 0.75, cost: 0.0, energy: 0.0, time: 0.25 })
        );
        assert!(read_one(DEBUG, "True").unwrap().debug);
        assert!(!read_one(DEBUG, "false").unwrap().debug);
        for (name, value) in [
            (PLACEMENT, "moon"),
            (MIN_QUALITY, "1.1"),
            (MIN_QUALITY, "nan"),
            (DEADLINE_MS, "0"),
            (DEADLINE_MS, "inf"),
            (WEIGHTS, "quality=0"),
            (WEIGHTS, "speed=1"),
            (WEIGHTS, "time"),
            (WEIGHTS, "time=-1"),
            (WEIGHTS, "time=1,time=2"),
            (DEBUG, "1"),
            (DEBUG, ""),
            ("x-cema-placment", "edge"),
        ] {
            let error = read_one(name, value).unwrap_err();
            assert_eq!(error.status, http::StatusCode::BAD_REQUEST, "{name}: {value}");
            assert_eq!(error.param.as_deref(), Some(name));
        }
    }

    #[test]
    fn bodies_declared_as_something_else_are_refused() {
        let check = |value: &'static str| {
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(value))]);
            check_content_type(&headers)
        };
        for json in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json", ""] {
            assert_eq!(check(json), Ok(()), "{json}");
        }
        for other in ["text/plain", "application/x-www-form-urlencoded", "application/jsonl", "json"] {
            assert_eq!(check(other).unwrap_err().status, http::StatusCode::UNSUPPORTED_MEDIA_TYPE, "{other}");
        }
        assert_eq!(check_content_type(&HeaderMap::new()), Ok(()));
    }

    #[test]
    fn a_repeated_header_is_refused() {
        let mut headers = HeaderMap::new();
        headers.append(PLACEMENT, HeaderValue::from_static("cloud"));
        headers.append(PLACEMENT, HeaderValue::from_static("edge"));
        let auth = Auth::default();
        let error = read(&headers, auth.check(&headers).unwrap()).unwrap_err();
        assert!(error.message.contains("once"), "{}", error.message);
    }

    #[test]
    fn credentials_never_reach_an_endpoint() {
        let headers = HeaderMap::from_iter([
            (header::AUTHORIZATION, HeaderValue::from_static("Bearer proxy-key")),
            (header::COOKIE, HeaderValue::from_static("a=b")),
            (HeaderName::from_static("traceparent"), HeaderValue::from_static("00-1-2-01")),
            (HeaderName::from_static("tracestate"), HeaderValue::from_static("a=1")),
            (header::CONNECTION, HeaderValue::from_static("close, TraceState")),
        ]);
        let passed = for_endpoint(&headers, HeaderValue::from_static("req_1"));
        let names: Vec<_> = passed.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["traceparent", "content-type", "accept-encoding", "x-request-id"]);
        assert_eq!(passed[3].1, "req_1");
    }
}

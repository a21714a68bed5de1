//! Errors as OpenAI clients read them: `{"error":{message,type,param,code}}`, strings or null.
//!
//! The status decides the client's exception class and whether it retries; the message says what to do next.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, ALLOW, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde::Serialize;

use super::request::RequestFault;

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

const INVALID_REQUEST: &str = "invalid_request_error";
const SERVER_ERROR: &str = "server_error";

/// Longest client-given name that a message repeats.
const QUOTED_CHARS_MAX: usize = 200;

/// An error answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// What went wrong and what to do about it.
    pub message: String,
    /// OpenAI's `type`.
    pub kind: String,
    /// The request field at fault.
    pub param: Option<String>,
    /// Machine-readable reason.
    pub code: Option<String>,
    /// When a retry may succeed; sent as `retry-after` and `retry-after-ms`.
    pub retry_after: Option<Duration>,
    /// Overrides the retry rule that SDKs derive from the status.
    pub should_retry: Option<bool>,
    /// Methods the path does allow.
    pub allow: Option<&'static str>,
    /// Content codings that are accepted.
    pub accept_encoding: Option<&'static str>,
    /// Whether the connection ends with the answer.
    pub ends_connection: bool,
}

impl ApiError {
    /// An error with no more than a status, a message, a type and a code.
    #[must_use]
    pub fn new(status: StatusCode, kind: &str, code: Option<&str>, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            kind: kind.to_owned(),
            param: None,
            code: code.map(str::to_owned),
            retry_after: None,
            should_retry: should_retry(status),
            allow: None,
            accept_encoding: None,
            ends_connection: false,
        }
    }

    /// 400: the request cannot be served as it is.
    #[must_use]
    pub fn bad_request(message: impl Into<String>, param: Option<&str>, code: Option<&str>) -> Self {
        Self {
            param: param.map(str::to_owned),
            ..Self::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, code, message)
        }
    }

    /// 400: no destination of `model` can do all that the request needs; `missing` says what it lacks.
    #[must_use]
    pub fn unsupported_capability(model: &str, missing: &[&str]) -> Self {
        let message = format!(
            "the model `{}` does not offer {}: ask for one that does (`capabilities` in the router's configuration)",
            shortened(model),
            missing.join(", ")
        );
        Self::bad_request(message, Some("model"), Some("unsupported_capability"))
    }

    /// 401: no key or a wrong one.
    #[must_use]
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, INVALID_REQUEST, Some("invalid_api_key"), message)
    }

    /// 404: no destination serves a model of this name.
    #[must_use]
    pub fn model_not_found(model: &str) -> Self {
        let message = format!(
            "the model `{}` does not exist here: GET /v1/models lists those that do",
            shortened(model)
        );
        Self {
            param: Some("model".into()),
            ..Self::new(StatusCode::NOT_FOUND, INVALID_REQUEST, Some("model_not_found"), message)
        }
    }

    /// 404: nothing is served at this path.
    #[must_use]
    pub fn path_not_found(path: &str, hint: &str) -> Self {
        let message = format!("there is nothing at `{}`: {hint}", shortened(path));
        Self::new(StatusCode::NOT_FOUND, INVALID_REQUEST, Some("path_not_found"), message)
    }

    /// 405: the path exists but not for this method; `allow` lists those that it takes.
    #[must_use]
    pub fn method_not_allowed(method: &str, path: &str, allow: &'static str) -> Self {
        let useful = allow.trim_end_matches(", OPTIONS");
        let message = format!("`{}` does not take {}: use {useful}", shortened(path), shortened(method));
        Self {
            allow: Some(allow),
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, INVALID_REQUEST, Some("method_not_allowed"), message)
        }
    }

    /// 408: the body did not arrive within `limit`.
    #[must_use]
    pub fn request_timeout(limit: Duration) -> Self {
        let message = format!("the request body did not arrive within {} s", limit.as_secs_f64());
        Self {
            ends_connection: true,
            ..Self::new(StatusCode::REQUEST_TIMEOUT, INVALID_REQUEST, Some("request_timeout"), message)
        }
    }

    /// 413: the body is larger than `limit_bytes`.
    #[must_use]
    pub fn payload_too_large(limit_bytes: usize) -> Self {
        let message = format!("the request body is larger than the limit of {limit_bytes} bytes: send less");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID_REQUEST, Some("request_too_large"), message)
    }

    /// 415: the body is declared as something other than JSON.
    #[must_use]
    pub fn unsupported_media_type(content_type: &str) -> Self {
        let message =
            format!("the content type `{}` is not supported: send application/json", shortened(content_type));
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            INVALID_REQUEST,
            Some("unsupported_media_type"),
            message,
        )
    }

    /// 415: the body is coded in a way that is not decoded here.
    #[must_use]
    pub fn unsupported_coding(coding: &str) -> Self {
        let message = format!(
            "the content encoding `{}` is not supported: send the body as it is, or with gzip once",
            shortened(coding)
        );
        Self {
            accept_encoding: Some("gzip, identity"),
            ..Self::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                INVALID_REQUEST,
                Some("unsupported_encoding"),
                message,
            )
        }
    }

    /// 429: there is capacity, but not for this request now.
    #[must_use]
    pub fn too_many_requests(message: impl Into<String>, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "rate_limit_error",
                Some("rate_limit_exceeded"),
                message,
            )
        }
    }

    /// 500: a fault of this router.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER_ERROR, Some("internal_error"), message)
    }

    /// 502: every endpoint tried gave an unusable answer.
    #[must_use]
    pub fn bad_gateway(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, SERVER_ERROR, Some("bad_gateway"), message)
    }

    /// 503: no endpoint can take the request now.
    #[must_use]
    pub fn unavailable(message: impl Into<String>, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER_ERROR, Some("service_unavailable"), message)
        }
    }

    /// 504: the endpoint did not answer in time.
    #[must_use]
    pub fn gateway_timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, SERVER_ERROR, Some("gateway_timeout"), message)
    }

    /// Tells SDKs that trying again is useless (`false`) or safe (`true`), whatever the status.
    #[must_use]
    pub const fn with_should_retry(mut self, should_retry: bool) -> Self {
        self.should_retry = Some(should_retry);
        self
    }

    /// The JSON body; also the data of an in-band error event.
    #[must_use]
    pub fn to_body(&self) -> Bytes {
        #[derive(Serialize)]
        struct Body<'a> {
            error: Detail<'a>,
        }
        #[derive(Serialize)]
        struct Detail<'a> {
            message: &'a str,
            r#type: &'a str,
            param: Option<&'a str>,
            code: Option<&'a str>,
        }
        let error = Detail {
            message: &self.message,
            r#type: &self.kind,
            param: self.param.as_deref(),
            code: self.code.as_deref(),
        };
        // Strings and nulls under fixed keys: serialising them cannot fail.
        serde_json::to_vec(&Body { error }).unwrap_or_default().into()
    }

    /// The event that reports this error in a stream whose 200 is already with the client.
    ///
    /// Where the stream was cut inside an event ([`Scanner::is_between_events`]) a blank line must come first.
    ///
    /// [`Scanner::is_between_events`]: crate::endpoint::sse::Scanner::is_between_events
    #[must_use]
    pub fn to_event(&self) -> Bytes {
        [b"data: ".as_slice(), &self.to_body(), b"\n\n"].concat().into()
    }

    /// The whole answer but for `x-request-id` and the `x-cema-*` headers.
    #[must_use]
    pub fn into_response(self) -> Response<Bytes> {
        let mut response = Response::new(self.to_body());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.ends_connection {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(wait) = self.retry_after {
            // Zero would be ignored by SDKs, which then choose a wait of their own.
            let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1);
            headers.insert(RETRY_AFTER, HeaderValue::from(wait_ms.div_ceil(1000)));
            headers.insert(RETRY_AFTER_MS, HeaderValue::from(wait_ms));
        }
        if let Some(should_retry) = self.should_retry {
            headers.insert(
                X_SHOULD_RETRY,
                HeaderValue::from_static(if should_retry { "true" } else { "false" }),
            );
        }
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if let Some(codings) = self.accept_encoding {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(codings));
        }
        response
    }
}

/// Whether a retry of a request that was refused so may succeed; `None` leaves it to the client's own rule.
fn should_retry(status: StatusCode) -> Option<bool> {
    match status.as_u16() {
        408 | 409 | 425 | 429 | 502..=504 => Some(true),
        400..500 => Some(false),
        _ => None,
    }
}

impl From<RequestFault> for ApiError {
    fn from(fault: RequestFault) -> Self {
        Self::bad_request(fault.to_string(), fault.param(), Some(fault.code()))
    }
}

/// Client-given text for a message: its start, without control characters.
fn shortened(text: &str) -> String {
    let mut chars = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c });
    let mut start: String = chars.by_ref().take(QUOTED_CHARS_MAX).collect();
    if chars.next().is_some() {
        start.push('…');
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(error: ApiError) -> Vec<(String, String)> {
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        let mut headers: Vec<_> = error
            .into_response()
            .headers()
            .iter()
            .map(|(name, value)| (name.to_string(), text(value)))
            .collect();
        headers.sort();
        headers
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn bodies_hold_strings_or_null() {
        assert_eq!(
            ApiError::model_not_found("a\"b\n").to_body(),
            r#"{"error":{"message":"the model `a\"b�` does not exist here: GET /v1/models lists those that do","type":"invalid_request_error","param":"model","code":"model_not_found"}}"#
        );
        assert_eq!(
            ApiError::new(StatusCode::IM_A_TEAPOT, "x", None, "m").to_body(),
            r#"{"error":{"message":"m","type":"x","param":null,"code":null}}"#
        );
        let long = ApiError::model_not_found(&"é".repeat(10_000));
        assert!(long.message.len() < 600 && long.message.contains("é…`"));
    }

    #[test]
    fn waits_are_sent_in_both_units() {
        let error = ApiError::unavailable("no endpoint", Duration::from_millis(1250));
        assert_eq!(error.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            headers(error),
            [
                pair("content-type", "application/json"),
                pair("retry-after", "2"),
                pair("retry-after-ms", "1250"),
                pair("x-should-retry", "true"),
            ]
        );
        let at_once = headers(ApiError::too_many_requests("full", Duration::ZERO));
        assert!(
            at_once.contains(&pair("retry-after", "1")) && at_once.contains(&pair("retry-after-ms", "1"))
        );
    }

    #[test]
    fn statuses_choose_the_clients_exception() {
        let errors = [
            (400, ApiError::bad_request("m", None, None)),
            (401, ApiError::unauthorized("m")),
            (404, ApiError::model_not_found("m")),
            (404, ApiError::path_not_found("/v1/responses", "use POST /v1/chat/completions")),
            (405, ApiError::method_not_allowed("PUT", "/v1/models", "GET, HEAD")),
            (408, ApiError::request_timeout(Duration::from_secs(30))),
            (413, ApiError::payload_too_large(10)),
            (400, ApiError::unsupported_capability("m", &["tools"])),
            (415, ApiError::unsupported_media_type("text/plain")),
            (415, ApiError::unsupported_coding("br")),
            (429, ApiError::too_many_requests("m", Duration::from_secs(1))),
            (500, ApiError::internal("m")),
            (502, ApiError::bad_gateway("m")),
            (503, ApiError::unavailable("m", Duration::from_secs(1))),
            (504, ApiError::gateway_timeout("m")),
        ];
        for (status, error) in errors {
            assert_eq!(error.status, status, "{}", error.message);
            assert!(!error.message.is_empty() && !error.kind.is_empty());
        }
        let allowed = headers(ApiError::method_not_allowed("PUT", "/v1/models", "GET, HEAD"));
        assert!(allowed.contains(&pair("allow", "GET, HEAD")));
        for (error, said) in [
            (ApiError::bad_request("m", None, None), Some("false")),
            (ApiError::model_not_found("m"), Some("false")),
            (ApiError::payload_too_large(10), Some("false")),
            (ApiError::too_many_requests("m", Duration::from_secs(1)), Some("true")),
            (ApiError::gateway_timeout("m"), Some("true")),
            (ApiError::bad_gateway("m"), Some("true")),
            (ApiError::request_timeout(Duration::from_secs(30)), Some("true")),
            (ApiError::internal("m"), None),
        ] {
            let sent = headers(error).into_iter().find(|(name, _)| name == "x-should-retry");
            assert_eq!(sent.as_ref().map(|(_, value)| value.as_str()), said);
        }
        let permanent = headers(ApiError::internal("m").with_should_retry(false));
        assert!(permanent.contains(&pair("x-should-retry", "false")));
    }

    #[test]
    fn an_event_is_one_data_line() {
        let event = ApiError::bad_gateway("cut").to_event();
        assert_eq!(
            event,
            "data: {\"error\":{\"message\":\"cut\",\"type\":\"server_error\",\"param\":null,\"code\":\"bad_gateway\"}}\n\n"
        );
    }
}

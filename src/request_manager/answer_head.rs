//! The head of an endpoint's answer: whether a stream follows, and what of it the client gets.

use http::{HeaderMap, HeaderValue, Response, header};

/// Whether a content type is that of server-sent events.
pub(crate) fn names_event_stream(content_type: &HeaderValue) -> bool {
    names(content_type, "text/event-stream")
}

/// Whether a content type is that of plain text.
pub(super) fn names_plain_text(content_type: &HeaderValue) -> bool {
    names(content_type, "text/plain")
}

/// Media types have no case.
fn names(content_type: &HeaderValue, media_type: &str) -> bool {
    let start = content_type.as_bytes().get(..media_type.len());
    start.is_some_and(|name| name.eq_ignore_ascii_case(media_type.as_bytes()))
}

/// Whether a stream of events follows the head of `response`.
pub(super) fn is_event_stream<B>(response: &Response<B>) -> bool {
    let content_type = response.headers().get(header::CONTENT_TYPE);
    content_type.is_some_and(names_event_stream)
}

/// The headers of an endpoint's stream that go to the client: nothing that names the endpoint or belongs to
/// one hop.
pub(super) fn passed_event_stream_headers(headers: &HeaderMap) -> HeaderMap {
    let declared = headers.get(header::CONTENT_TYPE).cloned();
    passed(headers, declared.unwrap_or_else(|| HeaderValue::from_static("text/event-stream")))
}

/// The headers of an endpoint's answer in one piece that go to the client. It has been found to be JSON,
/// whatever the endpoint calls it, and clients that go by the type must be able to read it.
pub(super) fn passed_json_headers(headers: &HeaderMap) -> HeaderMap {
    passed(headers, HeaderValue::from_static("application/json"))
}

fn passed(headers: &HeaderMap, content_type: HeaderValue) -> HeaderMap {
    // Room for what the router says itself.
    let mut passed = HeaderMap::with_capacity(12);
    passed.insert(header::CONTENT_TYPE, content_type);
    if let Some(value) = headers.get(header::CACHE_CONTROL) {
        passed.insert(header::CACHE_CONTROL, value.clone());
    }
    passed
}

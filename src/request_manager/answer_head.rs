//! The head of an endpoint's answer: whether a stream follows, and what of it the client gets.

use http::{HeaderMap, HeaderValue, Response, header};

/// What of the head of an endpoint's answer goes to the client: nothing that names the endpoint or belongs to one hop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedHead {
    /// The media type.
    pub content_type: HeaderValue,
    /// As the endpoint has it.
    pub cache_control: Option<HeaderValue>,
}

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

impl PassedHead {
    /// Of an endpoint's stream.
    pub(super) fn of_event_stream(headers: &HeaderMap) -> Self {
        let declared = headers.get(header::CONTENT_TYPE).cloned();
        Self::new(headers, declared.unwrap_or_else(|| HeaderValue::from_static("text/event-stream")))
    }

    /// Of an endpoint's answer in one piece. It has been found to be JSON, whatever the endpoint calls it, and clients
    /// that go by the type must be able to read it.
    pub(super) fn of_json(headers: &HeaderMap) -> Self {
        Self::new(headers, HeaderValue::from_static("application/json"))
    }

    fn new(headers: &HeaderMap, content_type: HeaderValue) -> Self {
        Self { content_type, cache_control: headers.get(header::CACHE_CONTROL).cloned() }
    }
}

//! What wraps every request of a listener.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use tracing::error;

use super::openai::ApiError;
use super::respond::{ResponseBody, error_response};

/// The header that names a request everywhere: towards clients, endpoints, logs.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";
/// Longest id taken over from a client.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// What answers the requests of a listener. Clones share it.
pub trait Answers: Clone + Send + 'static {
    /// The answer to `request`, which is called `id`; printable.
    fn answer(
        self,
        request: Request<Incoming>,
        id: HeaderValue,
    ) -> impl Future<Output = Response<ResponseBody>> + Send;
}

/// Gives every request an id, the first usable one of its own if there is one, puts it on the answer, turns a panic into
/// an answer, so that a defect costs one request, and keeps whatever is printed within free of credentials.
#[derive(Debug, Clone)]
pub struct Guarded<A>(pub A);

impl<A: Answers> Service<Request<Incoming>> for Guarded<A> {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        hide_credentials(request.headers_mut());
        let id = request_id(request.headers());
        let answers = self.0.clone();
        Box::pin(async move {
            let answer = AssertUnwindSafe(answers.answer(request, id.clone())).catch_unwind();
            let mut response = answer.await.unwrap_or_else(|payload| panicked(payload.as_ref()));
            response.headers_mut().insert(X_REQUEST_ID, id);
            Ok(response)
        })
    }
}

/// Has credentials printed as `Sensitive`.
fn hide_credentials(headers: &mut HeaderMap) {
    // There are few headers: to go through them is less work than to look two up.
    for (_, value) in headers.iter_mut().filter(|(name, _)| **name == AUTHORIZATION || **name == COOKIE) {
        value.set_sensitive(true);
    }
}

fn panicked(payload: &(dyn std::any::Any + Send)) -> Response<ResponseBody> {
    let what = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("unknown");
    error!(what, "a request handler panicked");
    error_response(ApiError::internal(
        "the router failed on this request; this is a defect, please report it",
    ))
}

/// The id of a request: the first usable one of its client's, else a new one.
pub(super) fn request_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get_all(&X_REQUEST_ID).iter().find(|value| is_usable(value));
    given.cloned().unwrap_or_else(new_id)
}

/// Printable, without spaces, not empty, of bounded length.
fn is_usable(id: &HeaderValue) -> bool {
    let bytes = id.as_bytes();
    (1..=REQUEST_ID_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
}

fn new_id() -> HeaderValue {
    let mut id = *b"req_00000000000000000000000000000000";
    for (digits, byte) in id[4..].chunks_exact_mut(2).zip(rand::random::<[u8; 16]>()) {
        digits[0] = HEX_DIGITS[usize::from(byte >> 4)];
        digits[1] = HEX_DIGITS[usize::from(byte & 0xf)];
    }
    HeaderValue::from_bytes(&id).unwrap_or_else(|_| HeaderValue::from_static("req_unknown"))
}

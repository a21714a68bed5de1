//! What wraps every request of a listener, outermost first.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use tower::layer::layer_fn;
use tower::{Service, ServiceBuilder};
use tower_http::sensitive_headers::SetSensitiveRequestHeadersLayer;
use tracing::error;

use super::openai::ApiError;
use super::respond::{ResponseBody, error_response};

/// The header that names a request everywhere: towards clients, endpoints, logs.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";
/// Longest id taken over from a client.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// The id of a request, as an extension of it; printable.
#[derive(Debug, Clone)]
pub struct RequestId(pub HeaderValue);

/// Wraps a listener's service.
pub fn wrap<S>(
    service: S,
) -> impl Service<
    Request<Incoming>,
    Response = Response<ResponseBody>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<ResponseBody>, Infallible>> + Send,
> + Clone
+ Send
+ 'static
where
    S: Service<Request<Incoming>, Response = Response<ResponseBody>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
{
    ServiceBuilder::new()
        // First, so that nothing within can print a credential.
        .layer(SetSensitiveRequestHeadersLayer::new([header::AUTHORIZATION, header::COOKIE]))
        // Innermost: a defect costs one request, and even its answer carries the request's id.
        .layer(layer_fn(Guarded))
        .service(service)
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

/// Gives every request an id, the first usable one of its own if there is one, puts it on the answer, and turns a panic into one.
#[derive(Debug, Clone)]
struct Guarded<S>(S);

impl<S> Service<Request<Incoming>> for Guarded<S>
where
    S: Service<Request<Incoming>, Response = Response<ResponseBody>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        let value = request_id(request.headers());
        request.extensions_mut().insert(RequestId(value.clone()));
        let answer = AssertUnwindSafe(self.0.call(request)).catch_unwind();
        Box::pin(async move {
            let mut response = match answer.await {
                Ok(answered) => answered?,
                Err(payload) => panicked(payload.as_ref()),
            };
            response.headers_mut().insert(X_REQUEST_ID, value);
            Ok(response)
        })
    }
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

//! What is refused of a request before anything looks at it: framing that others may read otherwise, hosts that
//! others may take for different ones, expectations nobody meets, and targets of absurd length.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::Either;
use http::{HeaderValue, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::service::Service;

use super::body;
use super::connection::Watch;
use super::connection_metrics::CutReason;
use super::openai::ApiError;
use super::respond::{ResponseBody, error_response};
use super::stack::{X_REQUEST_ID, request_id};

/// Longest path and query. The API's own paths are short; a model's name is at most part of one.
const TARGET_BYTES_MAX: usize = 8 << 10;

/// The service of one connection, in front of the listener's.
#[derive(Debug)]
pub(super) struct Gate<S> {
    service: S,
    watch: Arc<Watch>,
    n_requests: AtomicU32,
}

impl<S> Gate<S> {
    pub(super) fn new(service: S, watch: Arc<Watch>) -> Self {
        Self { service, watch, n_requests: AtomicU32::new(0) }
    }

    /// Where the body of `request` ends must be beyond doubt.
    fn check_framing(&self, request: &Request<Incoming>) -> Result<(), ApiError> {
        let n = self.n_requests.fetch_add(1, Ordering::Relaxed);
        if self.watch.has_two_lengths(n) {
            self.watch.cut(CutReason::TwoLengths);
            let message = "the request has both Content-Length and Transfer-Encoding: send one of them";
            return Err(ApiError::bad_request(message, None, Some("ambiguous_length")));
        }
        let mut codings = request.headers().get_all(header::TRANSFER_ENCODING).iter();
        if let Some(coding) = codings.next()
            && (!coding.as_bytes().eq_ignore_ascii_case(b"chunked") || codings.next().is_some())
        {
            let message = "the only Transfer-Encoding taken is `chunked`, once";
            return Err(ApiError::bad_request(message, None, Some("unsupported_transfer_encoding")));
        }
        Ok(())
    }
}

/// What else the head must be like.
fn check_head(request: &Request<Incoming>) -> Result<(), ApiError> {
    let refused = |status, code, message: String| {
        Err(ApiError::new(status, "invalid_request_error", Some(code), message))
    };
    let is_1_1 = request.version() == Version::HTTP_11;
    let n_hosts = request.headers().get_all(header::HOST).iter().count();
    if n_hosts > 1 || (n_hosts == 0 && is_1_1) {
        let message = format!("the request has {n_hosts} Host headers: send one");
        return refused(StatusCode::BAD_REQUEST, "invalid_host", message);
    }
    let mut expectations = request.headers().get_all(header::EXPECT).iter();
    if is_1_1 && expectations.any(|value| !value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        let message = "the only Expect header met here is `100-continue`".to_owned();
        return refused(StatusCode::EXPECTATION_FAILED, "expectation_failed", message);
    }
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    if target > TARGET_BYTES_MAX {
        let message =
            format!("the request target has {target} bytes; {TARGET_BYTES_MAX} are the most it may have");
        return refused(StatusCode::URI_TOO_LONG, "uri_too_long", message);
    }
    Ok(())
}

/// The answer to a request of this id that goes no further; the connection ends with it.
fn turned_away(id: HeaderValue, error: ApiError) -> Response<ResponseBody> {
    let mut response = error_response(ApiError { ends_connection: true, ..error });
    response.headers_mut().insert(X_REQUEST_ID, id);
    response
}

impl<S> Service<Request<Incoming>> for Gate<S>
where
    S: Service<Request<Incoming>, Response = Response<ResponseBody>, Error = Infallible>,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Either<Ready<Result<Self::Response, Infallible>>, S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        // Nobody knows where a body of odd framing ends, or whether one that is announced comes.
        let (error, is_drained) = match self.check_framing(&request) {
            Err(error) => (error, false),
            Ok(()) => match check_head(&request) {
                Err(error) => (error, !request.headers().contains_key(header::EXPECT)),
                Ok(()) => return Either::Right(self.service.call(request)),
            },
        };
        let id = request_id(request.headers());
        let error = if is_drained { body::refused(error, request.into_body()) } else { error };
        Either::Left(ready(Ok(turned_away(id, error))))
    }
}

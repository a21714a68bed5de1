//! What is refused of a request before anything looks at it: framing that others may read otherwise, and
//! targets of absurd length.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::Either;
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::service::Service;

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

    fn check(&self, request: &Request<Incoming>) -> Result<(), ApiError> {
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
        let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
        if target > TARGET_BYTES_MAX {
            let message =
                format!("the request target has {target} bytes; {TARGET_BYTES_MAX} are the most it may have");
            let code = Some("uri_too_long");
            return Err(ApiError::new(StatusCode::URI_TOO_LONG, "invalid_request_error", code, message));
        }
        Ok(())
    }
}

impl<S> Service<Request<Incoming>> for Gate<S>
where
    S: Service<Request<Incoming>, Response = Response<ResponseBody>, Error = Infallible>,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Either<Ready<Result<Self::Response, Infallible>>, S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        match self.check(&request) {
            Ok(()) => Either::Right(self.service.call(request)),
            Err(error) => {
                let mut response = error_response(error);
                let headers = response.headers_mut();
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
                headers.insert(X_REQUEST_ID, request_id(request.headers()));
                Either::Left(ready(Ok(response)))
            }
        }
    }
}

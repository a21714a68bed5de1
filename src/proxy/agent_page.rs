//! What `cema-router agent` serves: its metrics.

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures_util::future::{Ready, ready};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use prometheus::Registry;
use tower::Service;

use super::admin::metrics;
use super::openai::ApiError;
use super::respond::{ResponseBody, error_response, text};

/// The agent's pages as a service; clones share it.
#[derive(Debug, Clone)]
pub struct AgentPage {
    registry: Registry,
}

impl AgentPage {
    /// Pages over what is registered.
    #[must_use]
    pub fn new(registry: Registry) -> Self {
        Self { registry }
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<ResponseBody> {
        let path = request.uri().path();
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let method = request.method().as_str();
            return error_response(ApiError::method_not_allowed(method, path, "GET, HEAD"));
        }
        match path {
            "/metrics" => metrics(&self.registry),
            "/healthz" => text(StatusCode::OK, "ok\n"),
            _ => error_response(ApiError::path_not_found(path, "the agent serves /metrics and /healthz")),
        }
    }
}

impl Service<Request<Incoming>> for AgentPage {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        ready(Ok(self.answer(&request)))
    }
}

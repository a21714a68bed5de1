//! What `cema-router agent` serves: its metrics.

use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use prometheus::Registry;

use super::admin::metrics;
use super::openai::ApiError;
use super::respond::{ResponseBody, error_response, text};
use super::stack::Answers;

/// The agent's pages. Clones share them.
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

    fn page(&self, request: &Request<Incoming>) -> Response<ResponseBody> {
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

impl Answers for AgentPage {
    async fn answer(self, request: Request<Incoming>, _: HeaderValue) -> Response<ResponseBody> {
        self.page(&request)
    }
}

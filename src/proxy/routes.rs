//! The main listener's paths (HTTP routes; routing is what the scheduler does).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tower::Service;

use super::auth::Auth;
use super::body;
use super::openai::models::Model;
use super::openai::{ApiError, ModelList};
use super::readiness::Readiness;
use super::respond::{ResponseBody, error_response, json, text};
use crate::request_manager::RequestManager;
use crate::request_manager::admission::ModelDirectory;

const CHAT: &str = "/v1/chat/completions";
const MODELS: &str = "/v1/models";

/// What the API is made of.
pub struct ApiParams {
    /// Serves admitted requests.
    pub manager: RequestManager,
    /// Names clients may ask for.
    pub directory: ModelDirectory,
    /// Who may ask.
    pub auth: Auth,
    /// Whether it can take work.
    pub readiness: Readiness,
    /// Largest request body.
    pub body_bytes_max: usize,
    /// Longest time a request body may take to arrive.
    pub body_total: Duration,
    /// Name of the policy in force, for a response header.
    pub policy: &'static str,
    /// Whether answers name the model as the client asked for it.
    pub echo_model: bool,
}

/// The OpenAI-compatible API as a service; clones share it.
#[derive(Clone)]
pub struct Api {
    pub(super) params: Arc<ApiParams>,
    models: Arc<ModelList>,
}

impl Api {
    /// The API over `params`.
    #[must_use]
    pub fn new(params: ApiParams) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let list = params.directory.names().map(|name| Model::new(name, created)).collect();
        Self { params: Arc::new(params), models: Arc::new(ModelList::new(list)) }
    }

    async fn answer(self, request: Request<Incoming>) -> Response<ResponseBody> {
        let path = request.uri().path();
        let path = if path.len() > 1 { path.trim_end_matches('/') } else { path };
        let outcome = match (path, request.method()) {
            (CHAT, &Method::POST) => return super::chat::handle(&self, request).await,
            (CHAT, method) => Err(ApiError::method_not_allowed(method.as_str(), CHAT, "POST")),
            ("/healthz" | "/health", method) => get(method, path, || Ok(text(StatusCode::OK, "ok\n"))),
            ("/readyz", method) => get(method, "/readyz", || Ok(self.params.readiness.answer())),
            (MODELS, method) => get(method, MODELS, || {
                self.params.auth.check(request.headers())?;
                Ok(json(StatusCode::OK, self.models.to_body()))
            }),
            (other, method) => match other.strip_prefix("/v1/models/") {
                Some(id) => get(method, other, || {
                    self.params.auth.check(request.headers())?;
                    self.model(id)
                }),
                None => Err(ApiError::path_not_found(other, hint(other))),
            },
        };
        match outcome {
            Ok(response) => response,
            Err(error) => {
                self.params.manager.count_rejected("bad_route");
                if !request.headers().contains_key(header::EXPECT) {
                    body::discard(request.into_body()).await;
                }
                error_response(error)
            }
        }
    }

    fn model(&self, id: &str) -> Result<Response<ResponseBody>, ApiError> {
        let id = percent_decoded(id);
        let model = self.models.get(&id).ok_or_else(|| ApiError::model_not_found(&id))?;
        Ok(json(StatusCode::OK, model.to_body()))
    }
}

/// Answers GET and HEAD (hyper leaves the body of a HEAD answer out).
fn get(
    method: &Method,
    path: &str,
    answer: impl FnOnce() -> Result<Response<ResponseBody>, ApiError>,
) -> Result<Response<ResponseBody>, ApiError> {
    match *method {
        Method::GET | Method::HEAD => answer(),
        _ => Err(ApiError::method_not_allowed(method.as_str(), path, "GET, HEAD")),
    }
}

/// What a client that asked for a path we do not have should ask for.
fn hint(path: &str) -> &'static str {
    match path {
        "/chat/completions" | "/models" => "the base URL must end in /v1",
        _ if path.starts_with("/api/") => "this is not an Ollama server; use POST /v1/chat/completions",
        _ => "this router serves POST /v1/chat/completions and GET /v1/models",
    }
}

/// Decodes `%XX`; anything malformed stays as it is.
pub(super) fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = bytes[at..].strip_prefix(b"%").and_then(|rest| rest.get(..2));
        let byte = escaped
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        decoded.push(byte.unwrap_or(bytes[at]));
        at += if byte.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

impl Service<Request<Incoming>> for Api {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = futures_util::future::BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let api = self.clone();
        Box::pin(async move { Ok(api.answer(request).await) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_ids_may_be_escaped() {
        assert_eq!(percent_decoded("org%2Flarge"), "org/large");
        assert_eq!(percent_decoded("org/large"), "org/large");
        assert_eq!(percent_decoded("100%"), "100%");
        assert_eq!(percent_decoded("%zz%4"), "%zz%4");
        assert_eq!(percent_decoded("%E6%97%A5"), "日");
    }
}

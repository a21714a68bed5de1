//! The main listener's paths (HTTP routes; routing is what the scheduler does).

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;

use super::auth::Auth;
use super::body::{self, BodyRoom};
use super::openai::models::Model;
use super::openai::{ApiError, ModelList};
use super::readiness::Readiness;
use super::respond::{ResponseBody, RoutingLabels, error_response, json, text};
use super::stack::Answers;
use super::unknown_path::hint;
use crate::domain::ApiCall;
use crate::profiler::quality::feedback::Feedback;
use crate::request_manager::RequestManager;
use crate::request_manager::admission::ModelDirectory;

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
    /// What clients say of answers.
    pub feedback: Feedback,
    /// Largest request body.
    pub body_bytes_max: usize,
    /// Room for all of them at once.
    pub body_room: BodyRoom,
    /// Longest time a request body may take to arrive.
    pub body_total: Duration,
    /// Name of the usual policy, for a response header.
    pub policy: &'static str,
    /// Whether answers name the model as the client asked for it.
    pub echo_model: bool,
}

/// The OpenAI-compatible API. Clones share it.
#[derive(Clone)]
pub struct Api(Arc<ApiParts>);

/// What the clones of an [`Api`] share.
pub(super) struct ApiParts {
    pub(super) params: ApiParams,
    pub(super) labels: RoutingLabels,
    models: ModelList,
}

impl Api {
    /// The API over `params`.
    #[must_use]
    pub fn new(params: ApiParams) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (directory, destinations) = (&params.directory, params.manager.destinations());
        let model = |name| {
            let model = Model::new(name, created);
            directory.offer(name, destinations).iter().fold(model, Model::offering)
        };
        let list = directory.names().map(model).collect();
        let labels = RoutingLabels::new(params.policy, params.manager.destinations());
        Self(Arc::new(ApiParts { params, labels, models: ModelList::new(list) }))
    }
}

impl ApiParts {
    async fn answer(&self, request: Request<Incoming>, id: HeaderValue) -> Response<ResponseBody> {
        // The query is of no use to an endpoint either: it is never forwarded.
        let path = request.uri().path();
        let path = if path.len() > 1 { path.trim_end_matches('/') } else { path };
        let outcome = match (Resource::at(path), request.method()) {
            (None, _) => Err(ApiError::path_not_found(path, hint(path))),
            (Some(Resource::Call(kind)), &Method::POST) => {
                return super::calls::handle(self, kind, request, id).await;
            }
            (Some(Resource::Feedback), &Method::POST) => {
                return super::feedback::handle(self, request).await;
            }
            // Hyper leaves the body of an answer to HEAD out.
            (Some(Resource::Page(page)), &Method::GET | &Method::HEAD) => self.page(page, request.headers()),
            (Some(resource), &Method::OPTIONS) => Ok(options(resource)),
            (Some(resource), method) => {
                Err(ApiError::method_not_allowed(method.as_str(), path, resource.allow()))
            }
        };
        match outcome {
            Ok(response) => response,
            Err(error) => {
                self.params.manager.count_rejected("bad_route");
                let awaits_continue = request.headers().contains_key(header::EXPECT);
                error_response(if awaits_continue {
                    error
                } else {
                    body::refused(error, request.into_body())
                })
            }
        }
    }

    fn page(&self, page: Page<'_>, headers: &HeaderMap) -> Result<Response<ResponseBody>, ApiError> {
        Ok(match page {
            Page::Alive => text(StatusCode::OK, "ok\n"),
            Page::Ready => self.params.readiness.answer(),
            Page::Models => {
                let grant = self.params.auth.check(headers)?;
                json(StatusCode::OK, self.models.to_body(|id| grant.allows_model(id)))
            }
            Page::Model(id) => {
                let grant = self.params.auth.check(headers)?;
                let id = percent_decoded(id);
                let model = self.models.get(&id).filter(|model| grant.allows_model(&model.id));
                json(StatusCode::OK, model.ok_or_else(|| ApiError::model_not_found(&id))?.to_body())
            }
        })
    }
}

/// What a path stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource<'p> {
    /// The whole server: the target `*` of OPTIONS.
    Server,
    Call(ApiCall),
    Feedback,
    Page(Page<'p>),
}

/// What can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Page<'p> {
    Alive,
    Ready,
    Models,
    /// One model by its id, percent-encoded or not.
    Model(&'p str),
}

impl<'p> Resource<'p> {
    /// The resource at `path`, which has no slash at its end.
    fn at(path: &'p str) -> Option<Self> {
        let page = match path {
            "*" => return Some(Self::Server),
            "/healthz" | "/health" => Page::Alive,
            "/readyz" => Page::Ready,
            "/v1/models" => Page::Models,
            "/v1/feedback" => return Some(Self::Feedback),
            _ => {
                let below = path.strip_prefix("/v1")?;
                if let Some(call) = ApiCall::ALL.iter().find(|call| call.path() == below) {
                    return Some(Self::Call(*call));
                }
                Page::Model(below.strip_prefix("/models/")?)
            }
        };
        Some(Self::Page(page))
    }

    /// Methods it takes.
    const fn allow(self) -> &'static str {
        match self {
            Self::Server => "GET, HEAD, POST, OPTIONS",
            Self::Call(_) | Self::Feedback => "POST, OPTIONS",
            Self::Page(_) => "GET, HEAD, OPTIONS",
        }
    }
}

/// The answer to OPTIONS. It grants no cross-origin access: browsers are not to hold an API key.
fn options(resource: Resource<'_>) -> Response<ResponseBody> {
    let mut response = text(StatusCode::NO_CONTENT, "");
    let allow = HeaderValue::from_static(resource.allow());
    *response.headers_mut() = HeaderMap::from_iter([(header::ALLOW, allow)]);
    response
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

impl Answers for Api {
    async fn answer(self, request: Request<Incoming>, id: HeaderValue) -> Response<ResponseBody> {
        self.0.answer(request, id).await
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

//! The admin listener: metrics, health, the fleet's state, recent decisions, and what operators have the router do.
//!
//! docs/admin-openapi.yaml describes it; a test holds it to [`ROUTES`].

mod access;
mod control;
mod what_if;

use std::collections::BTreeSet;
use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use prometheus::proto::MetricFamily;
use prometheus::{Registry, TEXT_FORMAT, TextEncoder};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::fleet::Shown;
use super::live::Live;
use super::openai::ApiError;
use super::readiness::Readiness;
use super::respond::{ResponseBody, error_response, json as json_response, text, with_type};
use super::routes::percent_decoded;
use super::stack::Answers;
use crate::decision::explanation::Explanation;
use crate::domain::Destination;
use crate::endpoint::EndpointPool;
use crate::profiler::quality::feedback::Feedback;
use crate::profiler::view::Viewer;
use crate::scheduler::Scheduler;
use crate::telemetry::metrics_book::MetricsBook;

pub use access::AdminAccess;
pub use control::{Control, Drained, ReloadError, ReloadRequest, Reloaded};

/// Longest body of a request.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Decisions in a list, and plans that are looked through for them.
const LISTED_MAX: usize = 64;
const PLANS_LISTED_MAX: usize = 256;

/// Every path with the methods it takes, as they are shown.
pub const ROUTES: &[(&str, &str)] = &[
    ("/", "GET"),
    ("/metrics", "GET"),
    ("/healthz", "GET"),
    ("/readyz", "GET"),
    ("/admin/v1/destinations", "GET"),
    ("/admin/v1/destinations/{id}/drain", "POST"),
    ("/admin/v1/destinations/{id}/resume", "POST"),
    ("/admin/v1/decisions", "GET"),
    ("/admin/v1/decisions/{request_id}", "GET"),
    ("/admin/v1/what-if", "POST"),
    ("/admin/v1/switchback", "GET"),
    ("/admin/v1/reload", "POST"),
];

/// The parts of the router that a configuration is made of.
#[derive(Clone)]
pub struct AdminParts {
    /// Plans.
    pub scheduler: Scheduler,
    /// States of endpoints.
    pub readiness: Readiness,
    /// Figures of destinations.
    pub viewer: Viewer,
    /// How far predictions are off, by what clients say.
    pub feedback: Feedback,
    /// Names of endpoints.
    pub pool: Arc<EndpointPool>,
    /// Who may use the API.
    pub access: AdminAccess,
}

/// The admin API. Clones share it.
#[derive(Clone)]
pub struct Admin {
    book: MetricsBook,
    parts: Live<Arc<AdminParts>>,
    control: Control,
    drained: Drained,
    /// Weights are tried one after the other: requests need the processor too.
    trying: Arc<Semaphore>,
}

impl Admin {
    /// The admin API over whatever `parts` are in force.
    #[must_use]
    pub fn new(book: MetricsBook, parts: Live<Arc<AdminParts>>, control: Control, drained: Drained) -> Self {
        Self { book, parts, control, drained, trying: Arc::new(Semaphore::new(1)) }
    }

    async fn respond(&self, request: Request<Incoming>) -> Result<Response<ResponseBody>, ApiError> {
        let path = request.uri().path().to_owned();
        let resource = Resource::at(&path).ok_or_else(|| ApiError::path_not_found(&path, &served()))?;
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let fits = if resource.is_post() { request.method() == Method::POST } else { is_read };
        if !fits {
            let allowed = if resource.is_post() { "POST" } else { "GET, HEAD" };
            return Err(ApiError::method_not_allowed(request.method().as_str(), &path, allowed));
        }
        let parts = self.parts.get();
        if resource.is_guarded() {
            parts.access.check(request.headers())?;
        }
        match resource {
            Resource::Metrics => Ok(encoded(&self.book.gather())),
            Resource::Alive => Ok(text(StatusCode::OK, "ok\n")),
            Resource::Ready => Ok(parts.readiness.answer()),
            Resource::StatusPage => Ok(status_page()),
            Resource::Destinations => Ok(json_response(StatusCode::OK, destinations(&parts).to_string())),
            Resource::Switchback => switchback(&parts),
            Resource::Decisions => shown(&recent(&parts)),
            Resource::Decision(id) => decision(&parts, percent_decoded(id)).await,
            Resource::Drain(id) => self.set_draining(&parts, &percent_decoded(id), true),
            Resource::Resume(id) => self.set_draining(&parts, &percent_decoded(id), false),
            Resource::WhatIf => {
                let asked = body(request).await?;
                let _permit = self.trying.acquire().await;
                what_if::answer(&parts, asked).await
            }
            Resource::Reload => self.reload().await,
        }
    }

    fn set_draining(
        &self,
        parts: &AdminParts,
        id: &str,
        is_draining: bool,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let destinations = parts.scheduler.destinations();
        let found = destinations.iter().find(|destination| destination.id.as_str() == id);
        let Some(Destination { endpoint, .. }) = found else {
            let message = format!("no destination is called `{id}`: GET /admin/v1/destinations names them");
            return Err(not_found("destination_not_found", message));
        };
        let name = &parts.pool.spec(*endpoint).name;
        self.drained.set(name, is_draining);
        parts.readiness.health.set_draining(*endpoint, is_draining);
        tracing::info!(endpoint = name, draining = is_draining, "an operator changed an endpoint");
        let beside = destinations.iter().filter(|other| other.endpoint == *endpoint);
        let ids: Vec<&str> = beside.map(|other| other.id.as_str()).collect();
        let inflight = parts.readiness.health.inflight(*endpoint);
        shown(
            &json!({ "endpoint": name, "draining": is_draining, "destinations": ids, "inflight": inflight }),
        )
    }

    async fn reload(&self) -> Result<Response<ResponseBody>, ApiError> {
        match self.control.reload().await {
            Ok(reloaded) => shown(&reloaded),
            Err(error) => {
                let (status, code) = match &error {
                    ReloadError::Configuration(_) => {
                        (StatusCode::UNPROCESSABLE_ENTITY, "invalid_configuration")
                    }
                    ReloadError::NoFile => (StatusCode::CONFLICT, "no_configuration_file"),
                    ReloadError::Busy(_) => (StatusCode::CONFLICT, "reloads_under_way"),
                    ReloadError::SetUp(_) => (StatusCode::INTERNAL_SERVER_ERROR, "reload_failed"),
                    ReloadError::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "reload_unavailable"),
                };
                let message = format!("nothing was changed: {error}");
                Err(ApiError::new(status, "invalid_request_error", Some(code), message))
            }
        }
    }
}

/// The page for people, with everything it needs.
const STATUS_PAGE: &str = include_str!("status.html");

/// What a path stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource<'p> {
    Metrics,
    Alive,
    Ready,
    StatusPage,
    Destinations,
    Switchback,
    Decisions,
    Decision(&'p str),
    Drain(&'p str),
    Resume(&'p str),
    WhatIf,
    Reload,
}

impl<'p> Resource<'p> {
    fn at(path: &'p str) -> Option<Self> {
        Some(match path {
            "/" => Self::StatusPage,
            "/metrics" => Self::Metrics,
            "/healthz" => Self::Alive,
            "/readyz" => Self::Ready,
            "/admin/v1/destinations" => Self::Destinations,
            "/admin/v1/switchback" => Self::Switchback,
            "/admin/v1/decisions" => Self::Decisions,
            "/admin/v1/what-if" => Self::WhatIf,
            "/admin/v1/reload" => Self::Reload,
            _ => {
                let below = path.strip_prefix("/admin/v1/")?;
                if let Some(id) = below.strip_prefix("decisions/") {
                    return Some(Self::Decision(id));
                }
                let id = below.strip_prefix("destinations/")?;
                match id.rsplit_once('/')? {
                    (id, "drain") => Self::Drain(id),
                    (id, "resume") => Self::Resume(id),
                    _ => return None,
                }
            }
        })
    }

    const fn is_post(self) -> bool {
        matches!(self, Self::Drain(_) | Self::Resume(_) | Self::WhatIf | Self::Reload)
    }

    /// Whether it is more than a scraper, a load balancer or the page itself needs.
    const fn is_guarded(self) -> bool {
        !matches!(self, Self::Metrics | Self::Alive | Self::Ready | Self::StatusPage)
    }
}

/// The status page; it may load nothing from anywhere and be shown within no other page.
fn status_page() -> Response<ResponseBody> {
    const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                          base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let mut response = with_type(StatusCode::OK, "text/html; charset=utf-8", STATUS_PAGE);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn served() -> String {
    let paths: Vec<_> = ROUTES.iter().map(|(path, _)| *path).collect();
    format!("the admin listener serves {}", paths.join(", "))
}

async fn body(request: Request<Incoming>) -> Result<Vec<u8>, ApiError> {
    let read = Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await;
    let wrong = |_| ApiError::bad_request(format!("a body has {BODY_BYTES_MAX} bytes at most"), None, None);
    Ok(read.map_err(wrong)?.to_bytes().into())
}

fn destinations(parts: &AdminParts) -> Value {
    let availabilities = parts.readiness.health.states();
    let states = parts.scheduler.states();
    let shown = parts
        .viewer
        .report()
        .iter()
        .enumerate()
        .map(|(idx, report)| {
            let shown = Shown {
                report,
                availability: availabilities.get(report.destination.endpoint.idx()),
                state: states.get(idx),
                drift: parts.feedback.drift(&report.destination.model),
            };
            shown.to_json()
        })
        .collect::<Vec<_>>();
    json!({ "destinations": shown, "weights": parts.scheduler.weights() })
}

fn switchback(parts: &AdminParts) -> Result<Response<ResponseBody>, ApiError> {
    let none = "no policies take turns: configure `switchback` with at least two";
    let report = parts.scheduler.switchback_report();
    shown(&report.ok_or_else(|| not_found("switchback_not_configured", none.to_owned()))?)
}

/// A decision in a list.
#[derive(Debug, Serialize)]
struct Listed {
    request_id: String,
    batch: u64,
    policy: &'static str,
    destination: String,
    quality_source: &'static str,
    predicted: Value,
}

/// The last placements, newest first.
fn recent(parts: &AdminParts) -> Value {
    let destinations = parts.scheduler.destinations();
    let mut listed = Vec::new();
    // Of a request that was held, the plan it left by.
    let mut seen = BTreeSet::new();
    for solved in parts.scheduler.decisions().latest(PLANS_LISTED_MAX) {
        for planned in solved.plan.planned.iter().rev() {
            if !seen.insert(Arc::clone(&planned.request_id)) {
                continue;
            }
            let id = |at: usize| destinations[at].id.to_string();
            let e = &planned.estimate;
            listed.push(Listed {
                request_id: planned.request_id.to_string(),
                batch: solved.plan.number,
                policy: solved.policy,
                destination: id(planned.destination.idx()),
                quality_source: planned.source.as_str(),
                predicted: json!({
                    "quality": e.quality.0,
                    "usd": e.usd.0,
                    "joules": e.joules.0,
                    "seconds": e.completion.0,
                }),
            });
        }
        if listed.len() >= LISTED_MAX {
            break;
        }
    }
    listed.truncate(LISTED_MAX);
    json!({ "decisions": listed })
}

async fn decision(parts: &AdminParts, request_id: String) -> Result<Response<ResponseBody>, ApiError> {
    let solved = parts.scheduler.decisions().find(&request_id);
    let id = request_id.clone();
    // Of a large batch over a large fleet that is work of milliseconds.
    let explaining = tokio::task::spawn_blocking(move || Explanation::new(solved.as_deref()?, &id));
    let failed = |_| ApiError::internal("the decision could not be explained");
    let explanation = explaining.await.map_err(failed)?;
    let none = || {
        let message = format!(
            "no recent decision about request `{request_id}`: only the last few are kept; `cema-router explain` reads \
             the decision log"
        );
        not_found("decision_not_found", message)
    };
    shown(&explanation.ok_or_else(none)?)
}

fn not_found(code: &'static str, message: String) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", Some(code), message)
}

fn shown(value: &impl Serialize) -> Result<Response<ResponseBody>, ApiError> {
    let body = serde_json::to_string(value);
    let body = body.map_err(|error| ApiError::internal(format!("it cannot be shown: {error}")))?;
    Ok(json_response(StatusCode::OK, body))
}

/// Everything in `registry`, in the text format of Prometheus.
pub(super) fn metrics(registry: &Registry) -> Response<ResponseBody> {
    encoded(&registry.gather())
}

fn encoded(families: &[MetricFamily]) -> Response<ResponseBody> {
    match TextEncoder::new().encode_to_string(families) {
        Ok(body) => with_type(StatusCode::OK, TEXT_FORMAT, body),
        Err(error) => error_response(ApiError::internal(format!("metrics cannot be encoded: {error}"))),
    }
}

impl Answers for Admin {
    async fn answer(self, request: Request<Incoming>, _: HeaderValue) -> Response<ResponseBody> {
        self.respond(request).await.unwrap_or_else(error_response)
    }
}

//! The admin listener: metrics, health, the fleet's state and recent decisions.

use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use prometheus::{Registry, TEXT_FORMAT, TextEncoder};
use serde_json::{Value, json};

use super::fleet::Shown;
use super::openai::ApiError;
use super::readiness::Readiness;
use super::respond::{ResponseBody, error_response, json as json_response, text, with_type};
use super::routes::percent_decoded;
use super::stack::Answers;
use crate::profiler::quality::feedback::Feedback;
use crate::profiler::view::Viewer;
use crate::scheduler::Scheduler;
use crate::scheduler::decision_record::DecisionRecord;

/// The admin API. Clones share it.
#[derive(Clone)]
pub struct Admin {
    registry: Registry,
    scheduler: Scheduler,
    readiness: Readiness,
    viewer: Viewer,
    feedback: Feedback,
}

impl Admin {
    /// The admin API over these parts.
    #[must_use]
    pub fn new(
        registry: Registry,
        (scheduler, viewer): (Scheduler, Viewer),
        readiness: Readiness,
        feedback: Feedback,
    ) -> Self {
        Self { registry, scheduler, readiness, viewer, feedback }
    }

    fn page(&self, request: &Request<Incoming>) -> Response<ResponseBody> {
        let path = request.uri().path();
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return error_response(ApiError::method_not_allowed(
                request.method().as_str(),
                path,
                "GET, HEAD",
            ));
        }
        match path {
            "/metrics" => metrics(&self.registry),
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" => self.readiness.answer(),
            "/admin/v1/destinations" => json_response(StatusCode::OK, self.destinations().to_string()),
            "/admin/v1/switchback" => self.switchback(),
            _ => match path.strip_prefix("/admin/v1/decisions/") {
                Some(id) => self.decision(&percent_decoded(id)),
                None => error_response(ApiError::path_not_found(
                    path,
                    "the admin listener serves /metrics, /healthz, /readyz, /admin/v1/destinations, /admin/v1/switchback and /admin/v1/decisions/{request_id}",
                )),
            },
        }
    }

    fn destinations(&self) -> Value {
        let availabilities = self.readiness.health.states();
        let states = self.scheduler.states();
        let shown = self
            .viewer
            .report()
            .iter()
            .enumerate()
            .map(|(idx, report)| {
                let shown = Shown {
                    report,
                    availability: availabilities.get(report.destination.endpoint.idx()),
                    state: states.get(idx),
                    drift: self.feedback.drift(&report.destination.model),
                };
                shown.to_json()
            })
            .collect::<Vec<_>>();
        json!({ "destinations": shown })
    }

    fn switchback(&self) -> Response<ResponseBody> {
        let Some(report) = self.scheduler.switchback_report() else {
            let message = "no policies take turns: configure `switchback` with at least two";
            let code = Some("switchback_not_configured");
            return error_response(ApiError::new(
                StatusCode::NOT_FOUND,
                "invalid_request_error",
                code,
                message,
            ));
        };
        match serde_json::to_string(&report) {
            Ok(body) => json_response(StatusCode::OK, body),
            Err(error) => error_response(ApiError::internal(format!("the figures cannot be shown: {error}"))),
        }
    }

    fn decision(&self, request_id: &str) -> Response<ResponseBody> {
        let Some(solved) = self.scheduler.decisions().find(request_id) else {
            let message =
                format!("no recent decision about request `{request_id}`: only the last few are kept");
            let code = Some("decision_not_found");
            return error_response(ApiError::new(
                StatusCode::NOT_FOUND,
                "invalid_request_error",
                code,
                message,
            ));
        };
        let destinations = self.scheduler.destinations();
        let record = DecisionRecord::new(request_id, &solved, destinations);
        match record.and_then(|record| serde_json::to_string(&record)) {
            Ok(body) => json_response(StatusCode::OK, body),
            Err(error) => {
                error_response(ApiError::internal(format!("the decision cannot be shown: {error}")))
            }
        }
    }
}

/// Everything in `registry`, in the text format of Prometheus.
pub(super) fn metrics(registry: &Registry) -> Response<ResponseBody> {
    match TextEncoder::new().encode_to_string(&registry.gather()) {
        Ok(body) => with_type(StatusCode::OK, TEXT_FORMAT, body),
        Err(error) => error_response(ApiError::internal(format!("metrics cannot be encoded: {error}"))),
    }
}

impl Answers for Admin {
    async fn answer(self, request: Request<Incoming>, _: HeaderValue) -> Response<ResponseBody> {
        self.page(&request)
    }
}

//! The admin listener: metrics, health, the fleet's state and recent decisions.

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures_util::future::{Ready, ready};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use prometheus::{Registry, TEXT_FORMAT, TextEncoder};
use serde_json::{Value, json};
use tower::Service;

use super::openai::ApiError;
use super::respond::{ResponseBody, error_response, json as json_response, text, with_type};
use crate::problem_file;
use crate::profiler::node::FleetHealth;
use crate::scheduler::Scheduler;
use crate::scheduler::decisions::SolvedPlan;

/// The admin API as a service; clones share it.
#[derive(Clone)]
pub struct Admin {
    registry: Registry,
    scheduler: Scheduler,
    health: FleetHealth,
    policy: &'static str,
}

impl Admin {
    /// The admin API over these parts.
    #[must_use]
    pub fn new(registry: Registry, scheduler: Scheduler, health: FleetHealth, policy: &'static str) -> Self {
        Self { registry, scheduler, health, policy }
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<ResponseBody> {
        let path = request.uri().path();
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return error_response(ApiError::method_not_allowed(request.method().as_str(), path, "GET, HEAD"));
        }
        match path {
            "/metrics" => self.metrics(),
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/admin/v1/destinations" => json_response(StatusCode::OK, self.destinations().to_string()),
            _ => match path.strip_prefix("/admin/v1/decisions/") {
                Some(id) => self.decision(id),
                None => error_response(ApiError::path_not_found(
                    path,
                    "the admin listener serves /metrics, /healthz, /admin/v1/destinations and /admin/v1/decisions/{request_id}",
                )),
            },
        }
    }

    fn metrics(&self) -> Response<ResponseBody> {
        match TextEncoder::new().encode_to_string(&self.registry.gather()) {
            Ok(body) => with_type(StatusCode::OK, TEXT_FORMAT, body),
            Err(error) => error_response(ApiError::internal(format!("metrics cannot be encoded: {error}"))),
        }
    }

    fn destinations(&self) -> Value {
        let states = self.health.states();
        let describe = |d: &crate::domain::Destination| {
            json!({
                "id": d.id.as_str(),
                "node": &*d.node,
                "class": d.class.as_str(),
                "model": &*d.model,
                "state": states.get(d.endpoint.idx()).map(|state| state.as_str()),
                "max_concurrency": d.throughput.max_concurrency,
                "max_inflight": d.max_inflight,
                "prefill_tps": d.throughput.prefill.0,
                "decode_tps": d.throughput.decode.0,
                "batch_speedup": d.throughput.batch_speedup,
            })
        };
        json!({ "destinations": self.scheduler.destinations().iter().map(describe).collect::<Vec<_>>() })
    }

    fn decision(&self, request_id: &str) -> Response<ResponseBody> {
        match self.scheduler.decisions().find(request_id) {
            Some(solved) => json_response(StatusCode::OK, self.describe(request_id, &solved).to_string()),
            None => {
                let message = format!("no recent decision about request `{request_id}`: only the last few are kept");
                error_response(ApiError::new(
                    StatusCode::NOT_FOUND,
                    "invalid_request_error",
                    Some("decision_not_found"),
                    message,
                ))
            }
        }
    }

    fn describe(&self, request_id: &str, solved: &SolvedPlan) -> Value {
        let ids = |ord: crate::domain::DestinationOrd| self.scheduler.destinations()[ord.idx()].id.as_str();
        let placements: Vec<Value> = solved
            .plan
            .planned
            .iter()
            .map(|p| {
                json!({
                    "request_id": &*p.request_id,
                    "destination": ids(p.destination),
                    "runner_up": solved.runner_up(&p.request_id).map(ids),
                    "quality_source": p.source.as_str(),
                    "predicted": {
                        "quality": p.estimate.quality.0,
                        "usd": p.estimate.usd.0,
                        "joules": p.estimate.joules.0,
                        "seconds": p.estimate.completion.0,
                    },
                })
            })
            .collect();
        let mut record = json!({
            "request_id": request_id,
            "batch": solved.plan.number,
            "policy": self.policy,
            "solve_ms": solved.took.as_secs_f64() * 1e3,
            "placements": placements,
        });
        if let Some(s) = &solved.plan.solved {
            record["objective"] = json!(s.decision.objective);
            record["terms"] = s.decision.terms.named().map(|(term, value)| (term.to_owned(), json!(value))).into_iter().collect();
            record["lower_bound"] = json!(s.decision.lower_bound);
            record["certified_gap"] = json!(s.decision.certified_gap);
            record["evaluations"] = json!(s.decision.evaluations);
            record["problem"] = problem_file::to_json(&s.problem, &s.objective);
        }
        record
    }
}

impl Service<Request<Incoming>> for Admin {
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

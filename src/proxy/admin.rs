//! The admin listener: metrics, health, the fleet's state and recent decisions.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::task::{Context, Poll};

use futures_util::future::{Ready, ready};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use prometheus::{Registry, TEXT_FORMAT, TextEncoder};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tower::Service;

use super::openai::ApiError;
use super::respond::{ResponseBody, error_response, json as json_response, text, with_type};
use crate::domain::{Destination, DestinationOrd};
use crate::planning::{Planned, Solved};
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
            return error_response(ApiError::method_not_allowed(
                request.method().as_str(),
                path,
                "GET, HEAD",
            ));
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
        let describe = |d: &Destination| {
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
        let record = DecisionRecord::new(request_id, &solved, self);
        match record.and_then(|record| serde_json::to_string(&record)) {
            Ok(body) => json_response(StatusCode::OK, body),
            Err(error) => {
                error_response(ApiError::internal(format!("the decision cannot be shown: {error}")))
            }
        }
    }

    fn destination_id(&self, ord: DestinationOrd) -> &str {
        self.scheduler.destinations()[ord.idx()].id.as_str()
    }
}

/// A plan as the admin API shows it.
#[derive(Serialize)]
struct DecisionRecord<'a> {
    request_id: &'a str,
    batch: u64,
    policy: &'static str,
    solve_ms: f64,
    placements: Vec<PlacementRecord<'a>>,
    #[serde(flatten)]
    outcome: Option<OutcomeRecord>,
}

#[derive(Serialize)]
struct PlacementRecord<'a> {
    request_id: &'a str,
    destination: &'a str,
    runner_up: Option<&'a str>,
    quality_source: &'static str,
    predicted: PredictedRecord,
}

#[derive(Serialize)]
struct PredictedRecord {
    quality: f64,
    usd: f64,
    joules: f64,
    seconds: f64,
    completion_tokens: f64,
}

#[derive(Serialize)]
struct OutcomeRecord {
    /// J under the bounds of `problem`.
    objective: f64,
    terms: BTreeMap<&'static str, f64>,
    lower_bound: Option<f64>,
    certified_gap: Option<f64>,
    evaluations: u64,
    /// The batch as a problem file, for `cema-router solve`.
    problem: Box<RawValue>,
}

impl<'a> DecisionRecord<'a> {
    fn new(request_id: &'a str, solved: &'a SolvedPlan, admin: &'a Admin) -> serde_json::Result<Self> {
        let place = |p: &'a Planned| PlacementRecord {
            request_id: &p.request_id,
            destination: admin.destination_id(p.destination),
            runner_up: solved.runner_up(&p.request_id).map(|ord| admin.destination_id(ord)),
            quality_source: p.source.as_str(),
            predicted: PredictedRecord {
                quality: p.estimate.quality.0,
                usd: p.estimate.usd.0,
                joules: p.estimate.joules.0,
                seconds: p.estimate.completion.0,
                completion_tokens: p.completion.0,
            },
        };
        let plan = &solved.plan;
        let outcome = plan.solved.as_ref().map(|s| OutcomeRecord::new(plan.number, s)).transpose()?;
        Ok(Self {
            request_id,
            batch: plan.number,
            policy: admin.policy,
            solve_ms: solved.took.as_secs_f64() * 1e3,
            placements: plan.planned.iter().map(place).collect(),
            outcome,
        })
    }
}

impl OutcomeRecord {
    fn new(number: u64, solved: &Solved) -> serde_json::Result<Self> {
        let Solved { problem, objective, decision } = solved;
        let problem = problem_file::to_json(&format!("batch-{number}"), problem, objective)?;
        Ok(Self {
            objective: decision.objective,
            terms: decision.terms.named().into(),
            lower_bound: decision.lower_bound,
            certified_gap: decision.certified_gap,
            evaluations: decision.evaluations,
            problem: RawValue::from_string(problem)?,
        })
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

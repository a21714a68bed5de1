//! The routed calls (chat, completions, embeddings): from the bytes of a request to a call for the request manager.

use std::num::NonZero;
use std::sync::{Arc, LazyLock};

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use tokio::sync::Semaphore;
use tracing::{debug, error};

use super::access::{AccessNote, AccessWanted};
use super::auth::{Grant, refusal_reason};
use super::body::{self, BodyRules, WholeBody};
use super::headers::{self, RoutingHeaders};
use super::openai::{ApiError, ApiRequest, parse_request, session_hash};
use super::respond::{ResponseBody, answer, describe_decision, error_response, not_served};
use super::routes::ApiParts;
use crate::domain::{ApiCall, RoutingRequest};
use crate::endpoint::coding::{ContentCoding, DecodeError, gunzip};
use crate::request_manager::admission::{AdmissionError, Ask};
use crate::request_manager::key_budget::KeyUse;
use crate::request_manager::{Call, ServeError};
use crate::scheduler::{NoDestination, PlaceError};
use crate::units::{Bytes as Size, Tokens};

/// Bodies that are decompressed at once.
static DECODERS: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(std::thread::available_parallelism().map_or(1, NonZero::get)));

/// Serves one request for `kind`.
pub(super) async fn handle(
    api: &ApiParts,
    kind: ApiCall,
    request: Request<Incoming>,
    id: HeaderValue,
) -> Response<ResponseBody> {
    let is_noted = request.extensions().get::<AccessWanted>().is_some();
    let Admitted { call, model, debug } = match admit(api, kind, request, id).await {
        Ok(admitted) => admitted,
        Err(error) => {
            api.params.manager.count_rejected(refusal_reason(&error));
            return error_response(error);
        }
    };
    let id = Arc::clone(&call.request.id);
    let note = is_noted.then(|| AccessNote {
        key: call.owner.clone(),
        model: model.as_str().into(),
        stream: call.stream,
    });
    let mut response = match api.params.manager.serve(call).await {
        Ok(served) => {
            let routing = debug.then(|| served.routing.clone());
            let mut response = answer(served, &api.labels);
            if let Some(routing) = routing {
                let runner_up = api.params.manager.runner_up(&id);
                describe_decision(response.headers_mut(), &routing, runner_up);
            }
            response
        }
        Err(error) => {
            debug!(request_id = &*id, %error, "not served");
            match &error {
                ServeError::Unplaced {
                    error: PlaceError::Impossible(NoDestination::MissingCapability { missing }),
                    ..
                } => error_response(ApiError::unsupported_capability(&model, missing)),
                error => not_served(kind, error, &api.labels),
            }
        }
    };
    if let Some(note) = note {
        response.extensions_mut().insert(note);
    }
    response
}

/// A request that may be placed.
struct Admitted {
    call: Call,
    /// The model as the client named it.
    model: String,
    /// Whether the client wants the predictions.
    debug: bool,
}

/// Reads, checks and admits a request.
async fn admit(
    api: &ApiParts,
    kind: ApiCall,
    request: Request<Incoming>,
    id: HeaderValue,
) -> Result<Admitted, ApiError> {
    let (Parts { headers, .. }, body) = request.into_parts();
    let awaits_continue = headers.contains_key(header::EXPECT);
    let checked = match check_head(api, &headers) {
        Ok(checked) => checked,
        Err(error) => return Err(if awaits_continue { error } else { body::refused(error, body) }),
    };
    let bytes_max = api.params.body_bytes_max;
    let (room, total) = (&api.params.body_room, api.params.body_total);
    let whole = body::read(body, BodyRules { bytes_max, room, total, awaits_continue }).await?;
    let WholeBody { bytes: body, room } = match checked.coding {
        ContentCoding::Gzip => decoded(whole, bytes_max).await?,
        ContentCoding::Identity => whole,
    };
    let mut request = parse_request(kind, &body)?;
    if !checked.grant.allows_model(&request.model) {
        return Err(ApiError::model_not_found(&request.model));
    }
    let sent = headers::for_endpoint(&headers, id.clone());
    let debug = checked.asked.debug;
    let mut admitted = admitted(api, &id, &checked, &request, body.len())?;
    let session = headers::session(&headers).map(session_hash);
    let prefixes = std::mem::take(&mut request.prefixes).in_session(session);
    admitted.cached = api.params.manager.expected_cached(&prefixes);
    let model = std::mem::take(&mut request.model);
    let call = Call {
        request: Arc::new(admitted),
        text: std::mem::take(&mut request.text).into(),
        prefixes,
        kind,
        stream: request.stream,
        headers: sent,
        echo_model: api.params.echo_model.then(|| Arc::from(model.as_str())),
        owner: checked.grant.name().cloned(),
        client: checked.client,
        // The body as received but for the value of `model`. It has its room as long as it may be sent again.
        body_for: Box::new(move |upstream_model| {
            let _room = &room;
            request.splice_model(&body, upstream_model)
        }),
    };
    Ok(Admitted { call, model, debug })
}

/// What the head of a request says.
struct Checked<'a> {
    grant: Grant<'a>,
    asked: RoutingHeaders,
    coding: ContentCoding,
    /// The use of the client's key, which begins with the head.
    client: Option<KeyUse>,
}

/// Checks the head of a request, before its body is read.
fn check_head<'a>(api: &'a ApiParts, head: &HeaderMap) -> Result<Checked<'a>, ApiError> {
    let grant = api.params.auth.check(head)?;
    let asked = headers::read(head, grant)?;
    headers::check_content_type(head)?;
    let coding = ContentCoding::of(head).map_err(|unknown| ApiError::unsupported_coding(&unknown.0))?;
    Ok(Checked { grant, asked, coding, client: grant.begin()? })
}

/// Decompresses a body away from the async threads, no more at once than there are processors: how large it gets
/// is only known afterwards.
async fn decoded(WholeBody { bytes, mut room }: WholeBody, bytes_max: usize) -> Result<WholeBody, ApiError> {
    let turn = DECODERS.acquire().await;
    let decoding = tokio::task::spawn_blocking(move || gunzip(&bytes, bytes_max)).await;
    drop(turn);
    match decoding {
        Ok(Ok(bytes)) => {
            room.grow_to(bytes.len())?;
            Ok(WholeBody { bytes, room })
        }
        Ok(Err(DecodeError::TooLarge(limit))) => Err(ApiError::payload_too_large(limit)),
        Ok(Err(error @ DecodeError::Corrupt(_))) => {
            let message = format!("{error}, as its content-encoding says: send it whole, or uncompressed");
            Err(ApiError::bad_request(message, None, Some("invalid_encoding")))
        }
        Err(panic) => {
            error!(%panic, "decoding a request body failed");
            Err(ApiError::internal("the request body could not be decoded"))
        }
    }
}

/// Admits `request`, whose body has `n_bytes`, under `id`.
fn admitted(
    api: &ApiParts,
    id: &HeaderValue,
    checked: &Checked<'_>,
    request: &ApiRequest,
    n_bytes: usize,
) -> Result<RoutingRequest, ApiError> {
    let ask = Ask {
        model: &request.model,
        needs: request.needs,
        prompt_tokens: request.prompt.tokens(),
        longest_prompt: request.longest_prompt.tokens(),
        max_completion_tokens: request.max_completion_tokens.map(|tokens| Tokens(tokens as f64)),
        choices: request.completions,
        upload: Size(n_bytes as f64),
        constraints: checked.asked.constraints,
        weights: checked.asked.weights,
    };
    let id = Arc::from(id.to_str().unwrap_or_default());
    api.params.directory.admit(id, &ask).map_err(|error| match error {
        AdmissionError::UnknownModel(model) => ApiError::model_not_found(&model),
        AdmissionError::PlacementConflict { .. } => {
            ApiError::bad_request(error.to_string(), Some("x-cema-placement"), Some("placement_conflict"))
        }
    })
}

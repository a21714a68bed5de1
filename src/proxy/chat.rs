//! `POST /v1/chat/completions`: from the bytes of a request to a call for the request manager.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, header};
use hyper::body::Incoming;
use tracing::debug;

use super::auth::refusal_reason;
use super::body::{self, BodyRules};
use super::headers;
use super::openai::{ApiError, ChatRequest, parse_chat};
use super::respond::{ResponseBody, answer, describe_decision, error_response, not_served};
use super::routes::Api;
use super::stack::RequestId;
use crate::request_manager::Call;
use crate::request_manager::admission::{AdmissionError, Ask};
use crate::units::{Bytes as Size, Tokens};

/// Serves one chat completion.
pub(super) async fn handle(api: &Api, request: Request<Incoming>) -> Response<ResponseBody> {
    let (call, debug) = match admit(api, request).await {
        Ok(admitted) => admitted,
        Err(error) => {
            api.params.manager.count_rejected(refusal_reason(&error));
            return error_response(error);
        }
    };
    let id = Arc::clone(&call.request.id);
    match api.params.manager.serve(call).await {
        Ok(served) => {
            let routing = debug.then(|| served.routing.clone());
            let mut response = answer(served, api.params.policy);
            if let Some(routing) = routing {
                let runner_up = api.params.manager.runner_up(&id);
                describe_decision(response.headers_mut(), &routing, runner_up);
            }
            response
        }
        Err(error) => {
            debug!(request_id = &*id, %error, "not served");
            not_served(&error, api.params.policy)
        }
    }
}

/// Reads, checks and admits a request; the flag says whether its client wants the predictions.
async fn admit(api: &Api, request: Request<Incoming>) -> Result<(Call, bool), ApiError> {
    let (head, body) = request.into_parts();
    let awaits_continue = head.headers.contains_key(header::EXPECT);
    let checked = api
        .params
        .auth
        .check(&head.headers)
        .and_then(|grant| Ok((grant, headers::read(&head.headers, grant)?, grant.begin()?)));
    let (grant, asked, client) = match checked {
        Ok(checked) => checked,
        Err(error) => {
            if !awaits_continue {
                body::discard(body).await;
            }
            return Err(error);
        }
    };
    let rules =
        BodyRules { bytes_max: api.params.body_bytes_max, total: api.params.body_total, awaits_continue };
    let body = body::read(body, rules).await?;
    let chat = parse_chat(&body)?;
    if !grant.allows_model(&chat.model) {
        return Err(ApiError::model_not_found(&chat.model));
    }
    let id = head.extensions.get::<RequestId>().map_or_else(|| Arc::from("unknown"), |id| Arc::clone(&id.0));
    let ask = Ask {
        model: &chat.model,
        needs: chat.needs,
        prompt_tokens: chat.estimate_prompt_tokens(),
        max_completion_tokens: chat.max_completion_tokens.map(|tokens| Tokens(tokens as f64)),
        choices: chat.n,
        upload: Size(body.len() as f64),
        constraints: asked.constraints,
        weights: asked.weights,
    };
    let admitted = api.params.directory.admit(Arc::clone(&id), &ask).map_err(|error| match error {
        AdmissionError::UnknownModel(model) => ApiError::model_not_found(&model),
        AdmissionError::PlacementConflict { .. } => {
            ApiError::bad_request(error.to_string(), Some("x-cema-placement"), Some("placement_conflict"))
        }
    })?;
    let call = Call {
        request: Arc::new(admitted),
        text: chat.last_user_text.clone(),
        path: "/chat/completions",
        stream: chat.stream,
        headers: headers::for_endpoint(&head.headers, &id),
        echo_model: api.params.echo_model.then(|| Arc::from(chat.model.as_str())),
        client,
        body_for: body_for(chat, body),
    };
    Ok((call, asked.debug))
}

/// The body as received but for the value of `model`.
fn body_for(chat: ChatRequest, body: Bytes) -> Box<dyn Fn(&str) -> Bytes + Send + Sync> {
    Box::new(move |upstream_model| chat.splice_model(&body, upstream_model))
}

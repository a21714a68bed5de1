//! `POST /v1/feedback`: what clients say of answers they got.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use serde_json::{Map, Value, json};

use super::auth::Grant;
use super::body::{self, BodyRules};
use super::headers;
use super::openai::ApiError;
use super::respond::{ResponseBody, error_response, json as json_response};
use super::routes::ApiParts;
use crate::profiler::quality::feedback::{FeedbackError, FeedbackOutcome, Opinion, Receipt};
use crate::units::Quality;

/// Largest body.
const BODY_BYTES_MAX: usize = 16 << 10;
/// Longest label.
const LABEL_BYTES_MAX: usize = 256;
/// When a store that is busy or away may be asked again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Stores one score; the answer is sent when it is on disk.
pub(super) async fn handle(api: &ApiParts, request: Request<Incoming>) -> Response<ResponseBody> {
    let opinion = match read(api, request).await {
        Ok(opinion) => opinion,
        Err(error) => {
            api.params.feedback.count(FeedbackOutcome::Invalid);
            return error_response(error);
        }
    };
    let id = opinion.request_id.clone();
    let (score, label) = (opinion.score.0, opinion.label.clone());
    match api.params.feedback.give(opinion).await {
        Ok(Receipt { previous, is_learnt }) => json_response(
            StatusCode::OK,
            json!({
                "object": "feedback",
                "request_id": id,
                "score": score,
                "label": label.as_deref(),
                "previous_score": previous.map(|previous| previous.0),
                "learned": is_learnt,
            })
            .to_string(),
        ),
        Err(error) => error_response(refusal(error)),
    }
}

fn refusal(error: FeedbackError) -> ApiError {
    match error {
        FeedbackError::Unknown => {
            let message = format!(
                "{error}: give the x-request-id of a whole answer that this API key got lately (quality.feedback.retention_s)"
            );
            let code = Some("request_not_found");
            ApiError {
                param: Some("request_id".to_owned()),
                ..ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", code, message)
            }
        }
        FeedbackError::Busy | FeedbackError::Store | FeedbackError::Stopping => {
            ApiError::unavailable(format!("{error}: send it again"), RETRY_AFTER)
        }
    }
}

async fn read(api: &ApiParts, request: Request<Incoming>) -> Result<Opinion, ApiError> {
    let (parts, body) = request.into_parts();
    let awaits_continue = parts.headers.contains_key(header::EXPECT);
    let owner = match check_head(api, &parts.headers) {
        Ok(grant) => grant.name().cloned(),
        Err(error) => return Err(if awaits_continue { error } else { body::refused(error, body) }),
    };
    let (room, total) = (&api.params.body_room, api.params.body_total);
    let rules = BodyRules { bytes_max: BODY_BYTES_MAX, room, total, awaits_continue };
    let body = body::read(body, rules).await?;
    parse(&body.bytes, owner)
}

fn check_head<'a>(api: &'a ApiParts, head: &HeaderMap) -> Result<Grant<'a>, ApiError> {
    let grant = api.params.auth.check(head)?;
    headers::check_content_type(head)?;
    Ok(grant)
}

fn parse(body: &[u8], owner: Option<Arc<str>>) -> Result<Opinion, ApiError> {
    let fault =
        |param: &str, message: &str| ApiError::bad_request(message, Some(param), Some("invalid_feedback"));
    let body: Map<String, Value> = serde_json::from_slice(body).map_err(|error| {
        let message =
            format!("the body is not a JSON object ({error}): send {{\"request_id\": …, \"score\": 0 to 1}}");
        ApiError::bad_request(message, None, Some("invalid_json"))
    })?;
    let request_id = body.get("request_id").and_then(Value::as_str).filter(|id| !id.is_empty());
    let request_id = request_id
        .ok_or_else(|| fault("request_id", "`request_id` must be the x-request-id of an answer, a string"))?;
    let score = body.get("score").and_then(Value::as_f64).filter(|score| (0.0..=1.0).contains(score));
    let score = score.ok_or_else(|| fault("score", "`score` must be a number from 0 to 1"))?;
    let label = match body.get("label") {
        None | Some(Value::Null) => None,
        Some(Value::String(label)) if is_label(label) => Some(Arc::from(label.as_str())),
        Some(_) => {
            let message = format!(
                "`label` must be a string of at most {LABEL_BYTES_MAX} bytes without control characters"
            );
            return Err(fault("label", &message));
        }
    };
    Ok(Opinion { owner, request_id: request_id.to_owned(), score: Quality(score), label })
}

fn is_label(label: &str) -> bool {
    label.len() <= LABEL_BYTES_MAX && !label.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fault(body: &str) -> (u16, Option<String>, String) {
        let error = parse(body.as_bytes(), None).unwrap_err();
        (error.status.as_u16(), error.param, error.message)
    }

    #[test]
    fn a_score_is_read_with_its_label() {
        let body = r#"{"request_id":"req_1","score":0.25,"label":"too long","comment":"unread"}"#;
        let opinion = parse(body.as_bytes(), Some("app".into())).unwrap();
        assert_eq!((opinion.request_id.as_str(), opinion.label.as_deref()), ("req_1", Some("too long")));
        assert_eq!((opinion.score, opinion.owner.as_deref()), (Quality(0.25), Some("app")));
        assert_eq!(parse(br#"{"request_id":"r","score":1,"label":null}"#, None).unwrap().label, None);
    }

    #[test]
    fn each_fault_names_its_field() {
        for (body, param) in [
            (r#"{"score":1}"#, "request_id"),
            (r#"{"request_id":"","score":1}"#, "request_id"),
            (r#"{"request_id":7,"score":1}"#, "request_id"),
            (r#"{"request_id":"r"}"#, "score"),
            (r#"{"request_id":"r","score":1.5}"#, "score"),
            (r#"{"request_id":"r","score":-0.1}"#, "score"),
            (r#"{"request_id":"r","score":"1"}"#, "score"),
            (r#"{"request_id":"r","score":true}"#, "score"),
            (r#"{"request_id":"r","score":1,"label":1}"#, "label"),
            (r#"{"request_id":"r","score":1,"label":"a\nb"}"#, "label"),
        ] {
            let (status, named, message) = fault(body);
            assert_eq!((status, named.as_deref()), (400, Some(param)), "{body}: {message}");
        }
        let long = format!(r#"{{"request_id":"r","score":1,"label":"{}"}}"#, "x".repeat(LABEL_BYTES_MAX + 1));
        assert_eq!(fault(&long).1.as_deref(), Some("label"));
        for body in
            ["", "[]", "{", r#"{"request_id":"r","score":NaN}"#, r#"{"request_id":"r","score":1e999}"#]
        {
            let (status, param, message) = fault(body);
            assert_eq!((status, param), (400, None), "{body}: {message}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(body in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Err(error) = parse(&body, None) {
                prop_assert_eq!(error.status, StatusCode::BAD_REQUEST);
            }
        }
    }
}

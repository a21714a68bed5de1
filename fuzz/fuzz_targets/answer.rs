//! An endpoint's answer of any bytes: reading never panics, an error always says something, and an echo changes
//! `model` alone.
#![no_main]

mod oracle;

use bytes::Bytes;
use cema_router::domain::ApiCall;
use cema_router::endpoint::answer::{EventKind, classify_event, inspect_complete};
use cema_router::endpoint::echo::echo_model;
use cema_router::endpoint::upstream_error::UpstreamError;
use http::StatusCode;
use libfuzzer_sys::fuzz_target;

/// No fuzzer finds this by chance, so no name in the input spells it already.
const MODEL: &str = "acme/\"2f1d0c9b\"";
const MODEL_KEYS_MAX: usize = 8;

fuzz_target!(|data: &[u8]| {
    let facts = classify_event(data);
    for call in [ApiCall::Chat, ApiCall::Completions, ApiCall::Embeddings] {
        match inspect_complete(call, data) {
            Err(error) => check(&error),
            Ok(_) => assert!(!matches!(facts.kind, EventKind::Error(_)), "an error that passes as an answer"),
        }
    }
    check(&UpstreamError::from_response(StatusCode::SERVICE_UNAVAILABLE, data));

    let body = Bytes::copy_from_slice(data);
    let echoed = echo_model(&body, MODEL);
    match std::str::from_utf8(data).ok().and_then(|text| oracle::with_model(text, MODEL, MODEL_KEYS_MAX)) {
        Some(expected) => assert_eq!(echoed, expected),
        None => assert_eq!(echoed, body),
    }
});

fn check(error: &UpstreamError) {
    assert!(error.status.is_client_error() || error.status.is_server_error(), "{error:?}");
    assert!(!error.message.is_empty() && !error.kind.is_empty(), "{error:?}");
    let mut redacted = error.clone();
    redacted.redact("e");
    assert_eq!(redacted.status, error.status);
}

//! A request of any bytes, rewritten for each kind of endpoint: it reads as before but for the token counts asked for,
//! and stays the JSON it was.
#![no_main]

use bytes::Bytes;
use cema_router::domain::ApiCall;
use cema_router::endpoint::EndpointKind;
use cema_router::proxy::openai::parse_request;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

const KINDS: [EndpointKind; 4] =
    [EndpointKind::Vllm, EndpointKind::LlamaCpp, EndpointKind::Ollama, EndpointKind::OpenAi];

fuzz_target!(|data: &[u8]| {
    let body = Bytes::copy_from_slice(data);
    let Ok(request) = parse_request(ApiCall::Chat, &body) else { return };
    let document = |body: &Bytes| {
        let text = std::str::from_utf8(body).expect("only text parses").trim_start_matches('\u{feff}');
        serde_json::from_str::<Value>(text).ok()
    };
    for kind in KINDS {
        // Ollama reads `max_tokens` alone: of duplicates, those that are left mean nothing to it.
        if kind == EndpointKind::Ollama && !names_cap_once(&body) {
            continue;
        }
        for wants_usage in [false, true] {
            let prepared = kind.prepare(body.clone(), wants_usage);
            let again = parse_request(ApiCall::Chat, &prepared.body).expect("a rewritten body parses");
            assert_eq!(again.include_usage, request.include_usage || prepared.asks_for_usage);
            assert!(!prepared.asks_for_usage || (wants_usage && !request.include_usage));
            assert_eq!(
                (again.model, again.stream, again.completions, again.needs, again.text, again.prompt),
                (
                    request.model.clone(),
                    request.stream,
                    request.completions,
                    request.needs,
                    request.text.clone(),
                    request.prompt
                )
            );
            assert_eq!(again.max_completion_tokens, request.max_completion_tokens);
            // All members but those that were rewritten have the value they had.
            let Some(Value::Object(mut before)) = document(&body) else { continue };
            let Some(Value::Object(mut after)) = document(&prepared.body) else { panic!("no JSON any more") };
            for key in ["stream_options", "max_tokens", "max_completion_tokens"] {
                before.remove(key);
                after.remove(key);
            }
            assert_eq!(before, after);
        }
    }
});

/// Whether `max_completion_tokens` can stand in `body` once at most, however it is spelled.
fn names_cap_once(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    text.matches("max_completion_tokens").count() <= 1 && !text.contains("\\u")
}

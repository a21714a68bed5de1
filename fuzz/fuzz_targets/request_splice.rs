//! A request of any call and any bytes: reading never panics, and splicing changes the values of `model` alone.
#![no_main]

mod oracle;

use bytes::Bytes;
use cema_router::domain::ApiCall;
use cema_router::proxy::openai::parse_request;
use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;

const MODELS: [&str; 3] = ["m", "acme/Qwen \"2.5\"\\日本\u{7f}\n", "auto"];

fuzz_target!(|data: &[u8]| {
    let body = Bytes::copy_from_slice(data);
    for call in [ApiCall::Chat, ApiCall::Completions, ApiCall::Embeddings] {
        check(call, &body);
    }
});

fn check(call: ApiCall, body: &Bytes) {
    let request = match parse_request(call, body) {
        Ok(request) => request,
        Err(fault) => {
            assert!(!fault.to_string().is_empty() && !fault.code().is_empty());
            return;
        }
    };
    let text = std::str::from_utf8(body).expect("only text parses");
    let document = text.strip_prefix('\u{feff}').unwrap_or(text);
    assert!(serde_json::from_str::<IgnoredAny>(document).is_ok(), "what is no JSON passes as a request");
    for model in MODELS {
        let spliced = request.splice_model(body, model);
        if spliced != *body {
            let expected = oracle::with_model(document, model, usize::MAX).expect("only an object parses");
            assert_eq!(spliced, [&text[..text.len() - document.len()], &expected].concat());
        }
        let again = parse_request(call, &spliced).expect("a spliced body parses");
        assert_eq!(again.model, model);
        assert_eq!(again.splice_model(&spliced, MODELS[0]), request.splice_model(body, MODELS[0]));
        // All but the model reads as before.
        assert_eq!((again.prompt, again.longest_prompt), (request.prompt, request.longest_prompt));
        assert_eq!(again.text, request.text);
        assert_eq!((again.stream, again.include_usage), (request.stream, request.include_usage));
        assert_eq!(
            (again.max_completion_tokens, again.completions, again.needs),
            (request.max_completion_tokens, request.completions, request.needs)
        );
    }
}

//! An endpoint that plays what the last user message of a request asks for, and a window to what it has seen.
//!
//! The first word of the message is the scenario, the whole message tells requests of one check from others:
//!
//! | message | answer |
//! |---|---|
//! | `say WORDS` | the words, streamed one by one |
//! | `reason WORDS` | the same with `reasoning_content` and `timings`, which no API has |
//! | `call` | a call of the tool `add` with `{"a":1,"b":2}`, streamed in fragments |
//! | `overflow` | 400, the context is too long |
//! | `busy` | 429 with `retry-after: 1`, to each message once; then `attempt N` |
//! | `break` | two deltas, then an error event and `[DONE]`, as vLLM ends on SIGTERM |
//! | `cut` | two deltas, then a reset |
//! | `endless` | two deltas, then nothing |
//! | `hang` | nothing at all |

use std::sync::Arc;

use serde_json::{Value, json as object};

use super::answers::{self, DONE_EVENT, chunk, json, last_chunk, stream_head};
use super::app::llm;
use super::fake_endpoint::Step::WaitClientClose;
use super::fake_endpoint::{FakeEndpoint, Recorded, Step};

const OVERFLOW: &str = r#"{"error":{"message":"This model's maximum context length is 1024 tokens. However, your messages resulted in 4000 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#;
const BUSY: &str = r#"{"error":{"message":"too many requests","type":"rate_limit_error","param":null,"code":"rate_limited"}}"#;

/// The endpoint.
pub(crate) async fn endpoint() -> FakeEndpoint {
    let attempts = std::sync::Mutex::new(std::collections::HashMap::<String, u32>::new());
    llm(move |request| {
        let asked: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let text = last_user_text(&asked);
        let attempt = {
            let mut attempts = attempts.lock().unwrap();
            let attempt = attempts.entry(text.clone()).or_default();
            *attempt += 1;
            *attempt
        };
        match request.head.path().as_str() {
            "/v1/chat/completions" => chat(&asked, &text, attempt),
            "/v1/completions" => completion(&asked),
            "/v1/embeddings" => embeddings(&asked),
            _ => json(404, r#"{"detail":"Not Found"}"#),
        }
    })
    .await
}

/// Answers `GET /answers_cut` with how many answers of `endpoint` its client has cut short, `GET /last_body` with the
/// last request that it got.
pub(crate) async fn observer(endpoint: Arc<FakeEndpoint>) -> FakeEndpoint {
    let script = move |request: &Recorded| match request.head.path().as_str() {
        "/answers_cut" => json(200, &endpoint.answers_cut().to_string()),
        "/last_body" => {
            let last = endpoint.posts().pop().map(|post| post.body).unwrap_or_default();
            json(200, &String::from_utf8_lossy(&last))
        }
        other => panic!("nothing is seen at {other}"),
    };
    FakeEndpoint::start(script).await
}

fn last_user_text(asked: &Value) -> String {
    let messages = asked["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let last = messages.iter().rfind(|message| message["role"] == "user");
    let content = last.map(|message| &message["content"]).unwrap_or(&Value::Null);
    let parts = content.as_array().map(Vec::as_slice).unwrap_or_default();
    let text = content.as_str().or_else(|| parts.iter().find_map(|part| part["text"].as_str()));
    text.unwrap_or_default().to_owned()
}

fn chat(asked: &Value, text: &str, attempt: u32) -> Vec<Step> {
    let (scenario, rest) = text.split_once(' ').unwrap_or((text, ""));
    match scenario {
        "overflow" => return json(400, OVERFLOW),
        "busy" if attempt == 1 => {
            let head =
                "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nretry-after: 1\r\n";
            let len = BUSY.len();
            return vec![answers::write(format!("{head}content-length: {len}\r\n\r\n{BUSY}"))];
        }
        "busy" => return answer(asked, object!({"content": format!("attempt {attempt}")}), "stop"),
        "hang" => return vec![WaitClientClose],
        "call" => {
            // Once the tool has answered, the model repeats what it said.
            let messages = asked["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
            return match messages.last().filter(|message| message["role"] == "tool") {
                Some(result) => answer(asked, object!({"content": result["content"]}), "stop"),
                None => call(asked),
            };
        }
        "reason" => {
            return answer(asked, object!({"reasoning_content": "hm", "content": rest}), "stop");
        }
        "break" | "cut" | "endless" => {}
        _ => return answer(asked, object!({"content": rest}), "stop"),
    }
    let mut steps = vec![stream_head()];
    steps.extend(["one", " two"].map(|word| chunk(event(asked, &object!({"content": word}), None))));
    match scenario {
        "break" => steps.extend([
            chunk("data: {\"error\":{\"message\":\"engine stopped\",\"type\":\"internal_error\",\"code\":500}}\n\n"),
            chunk(DONE_EVENT),
            last_chunk(),
        ]),
        "cut" => steps.push(Step::Reset),
        _ => steps.push(WaitClientClose),
    }
    steps
}

/// A call of the tool `add`, its arguments in three fragments.
fn call(asked: &Value) -> Vec<Step> {
    let part = |id: Option<&str>, arguments: &str| {
        let mut call = object!({"index": 0, "function": {"arguments": arguments}});
        if let Some(id) = id {
            call["id"] = id.into();
            call["type"] = "function".into();
            call["function"]["name"] = "add".into();
        }
        object!({"tool_calls": [call]})
    };
    if asked["stream"] != true {
        let call = object!({"id": "call_1", "type": "function",
            "function": {"name": "add", "arguments": r#"{"a":1,"b":2}"#}});
        return answer(asked, object!({"content": null, "tool_calls": [call]}), "tool_calls");
    }
    let deltas = [part(Some("call_1"), ""), part(None, r#"{"a":1"#), part(None, r#","b":2}"#)];
    stream(asked, &deltas, "tool_calls")
}

/// `message` whole, or its text word by word.
fn answer(asked: &Value, message: Value, finish_reason: &str) -> Vec<Step> {
    if asked["stream"] != true {
        let mut message = message;
        message["role"] = "assistant".into();
        let body = object!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000,
            "model": asked["model"], "timings": {"predicted_ms": 1.5}, "usage": usage(),
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]});
        return json(200, &body.to_string());
    }
    let mut deltas = Vec::new();
    if message["reasoning_content"].is_string() {
        deltas.push(object!({"reasoning_content": message["reasoning_content"]}));
    }
    let text = message["content"].as_str().unwrap_or_default();
    deltas.extend(text.split_inclusive(' ').map(|word| object!({"content": word})));
    stream(asked, &deltas, finish_reason)
}

fn stream(asked: &Value, deltas: &[Value], finish_reason: &str) -> Vec<Step> {
    let mut events = vec![event(asked, &object!({"role": "assistant", "content": ""}), None)];
    events.extend(deltas.iter().map(|delta| event(asked, delta, None)));
    events.push(event(asked, &object!({}), Some(finish_reason)));
    if asked["stream_options"]["include_usage"] == true {
        let mut last = frame(asked);
        last["choices"] = object!([]);
        last["usage"] = usage();
        events.push(format!("data: {last}\n\n"));
    }
    events.push(DONE_EVENT.to_owned());
    std::iter::once(stream_head()).chain(events.iter().map(chunk)).chain([last_chunk()]).collect()
}

fn event(asked: &Value, delta: &Value, finish_reason: Option<&str>) -> String {
    let mut frame = frame(asked);
    frame["choices"] = object!([{"index": 0, "delta": delta, "finish_reason": finish_reason}]);
    format!("data: {frame}\n\n")
}

fn frame(asked: &Value) -> Value {
    object!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": asked["model"]})
}

fn usage() -> Value {
    object!({"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12})
}

fn completion(asked: &Value) -> Vec<Step> {
    let text = format!("{} there", asked["prompt"].as_str().unwrap_or_default());
    let body = object!({"id": "cmpl-1", "object": "text_completion", "created": 1_700_000_000,
        "model": asked["model"], "usage": usage(),
        "choices": [{"index": 0, "text": text, "finish_reason": "stop", "logprobs": null}]});
    if asked["stream"] != true {
        return json(200, &body.to_string());
    }
    let event = format!("data: {body}\n\n");
    vec![stream_head(), chunk(event), chunk(DONE_EVENT), last_chunk()]
}

/// The vectors `[n, 0.5]`, n the position; in base64 where the SDKs ask for that.
fn embeddings(asked: &Value) -> Vec<Step> {
    let count = asked["input"].as_array().map_or(1, Vec::len);
    let data: Vec<_> = (0..count)
        .map(|idx| {
            // The bytes of [0.0, 0.5], [1.0, 0.5] and [2.0, 0.5] as little-endian f32.
            let base64 = ["AAAAAAAAAD8=", "AACAPwAAAD8=", "AAAAQAAAAD8="][idx];
            let is_base64 = asked["encoding_format"] == "base64";
            let vector = if is_base64 { object!(base64) } else { object!([idx, 0.5]) };
            object!({"object": "embedding", "index": idx, "embedding": vector})
        })
        .collect();
    let usage = object!({"prompt_tokens": 4, "total_tokens": 4});
    json(200, &object!({"object": "list", "data": data, "model": asked["model"], "usage": usage}).to_string())
}

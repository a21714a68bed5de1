//! Answers of LLM servers as script steps.

use std::time::Duration;

use bytes::Bytes;

use super::fake_endpoint::Step;

/// Writes `bytes`.
pub(crate) fn write(bytes: impl AsRef<[u8]>) -> Step {
    Step::Write(Bytes::copy_from_slice(bytes.as_ref()))
}

/// A whole JSON answer with its length.
pub(crate) fn json(status: u16, body: &str) -> Vec<Step> {
    with_type(status, "application/json", body)
}

/// A whole answer of any content type.
pub(crate) fn with_type(status: u16, content_type: &str, body: &str) -> Vec<Step> {
    let len = body.len();
    vec![write(format!(
        "HTTP/1.1 {status} Status\r\ncontent-type: {content_type}\r\ncontent-length: {len}\r\n\r\n{body}"
    ))]
}

/// Body of a chat answer of `model` saying `content`, with usage.
pub(crate) fn chat_body(model: &str, content: &str) -> String {
    let (model, content) = (quote(model), quote(content));
    format!(
        r#"{{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":{model},"choices":[{{"index":0,"message":{{"role":"assistant","content":{content}}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}}}"#
    )
}

/// A whole chat answer.
pub(crate) fn chat(model: &str, content: &str) -> Vec<Step> {
    json(200, &chat_body(model, content))
}

/// Body of a text completion of `model` saying `text`, with usage.
pub(crate) fn completion_body(model: &str, text: &str) -> String {
    let (model, text) = (quote(model), quote(text));
    format!(
        r#"{{"id":"cmpl-1","object":"text_completion","created":1700000000,"model":{model},"choices":[{{"index":0,"text":{text},"logprobs":null,"finish_reason":"length"}}],"usage":{{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}}}"#
    )
}

/// All events of a streamed text completion that says `words`, one event each.
pub(crate) fn completion_events(model: &str, words: &[&str]) -> String {
    let model = quote(model);
    let event = |text: &str, finish: &str| {
        let text = quote(text);
        format!(
            "data: {{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"model\":{model},\"choices\":[{{\"index\":0,\"text\":{text},\"finish_reason\":{finish}}}]}}\n\n"
        )
    };
    let mut events: String = words.iter().map(|word| event(word, "null")).collect();
    events.push_str(&event("", "\"stop\""));
    events.push_str(DONE_EVENT);
    events
}

/// Body of an answer of `model` with one embedding.
pub(crate) fn embedding_body(model: &str) -> String {
    let model = quote(model);
    format!(
        r#"{{"object":"list","data":[{{"object":"embedding","index":0,"embedding":[0.10,-1e-7,1E400]}}],"model":{model},"usage":{{"prompt_tokens":6,"total_tokens":6}}}}"#
    )
}

/// A whole answer coded as `coding`, whatever `body` is.
pub(crate) fn coded(status: u16, content_type: &str, coding: &str, body: &[u8]) -> Vec<Step> {
    let len = body.len();
    let head = format!(
        "HTTP/1.1 {status} Status\r\ncontent-type: {content_type}\r\ncontent-encoding: {coding}\r\ncontent-length: {len}\r\n\r\n"
    );
    vec![write(head), write(body)]
}

/// `body` in gzip, in pieces that were flushed one by one.
pub(crate) fn gzip_flushed<'a>(pieces: impl IntoIterator<Item = &'a str>) -> Vec<Vec<u8>> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    let mut coded = Vec::new();
    for piece in pieces {
        encoder.write_all(piece.as_bytes()).unwrap();
        encoder.flush().unwrap();
        coded.push(std::mem::take(encoder.get_mut()));
    }
    coded.push(encoder.finish().unwrap());
    coded
}

/// `body` in gzip.
pub(crate) fn gzip(body: &str) -> Vec<u8> {
    gzip_flushed([body]).concat()
}

/// The answer of `GET /v1/models`.
pub(crate) fn models(names: &[&str]) -> Vec<Step> {
    let data: Vec<_> =
        names.iter().map(|name| format!(r#"{{"id":{},"object":"model"}}"#, quote(name))).collect();
    json(200, &format!(r#"{{"object":"list","data":[{}]}}"#, data.join(",")))
}

/// The answer of vLLM's `GET /health`: empty.
pub(crate) fn healthy() -> Vec<Step> {
    with_type(200, "text/plain", "")
}

/// The head of an event stream in chunks.
pub(crate) fn stream_head() -> Step {
    write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
}

/// One HTTP chunk.
pub(crate) fn chunk(data: impl AsRef<[u8]>) -> Step {
    let data = data.as_ref();
    write([format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat())
}

/// The last chunk of a body.
pub(crate) fn last_chunk() -> Step {
    write("0\r\n\r\n")
}

/// The delta event that names the role and says nothing.
pub(crate) fn role_event(model: &str) -> String {
    event(model, r#"{"role":"assistant","content":""}"#, "null")
}

/// A delta event with `content`.
pub(crate) fn delta_event(model: &str, content: &str) -> String {
    event(model, &format!(r#"{{"content":{}}}"#, quote(content)), "null")
}

/// The event that ends a choice.
pub(crate) fn finish_event(model: &str) -> String {
    event(model, "{}", r#""stop""#)
}

/// The event that ends a stream.
pub(crate) const DONE_EVENT: &str = "data: [DONE]\n\n";

/// All events of a stream that says `words`, one delta each.
pub(crate) fn chat_events(model: &str, words: &[&str]) -> String {
    let mut events = role_event(model);
    for word in words {
        events.push_str(&delta_event(model, word));
    }
    events.push_str(&finish_event(model));
    events.push_str(DONE_EVENT);
    events
}

/// A whole stream of `events`, cut into HTTP chunks of `size` bytes, `pause` after each.
pub(crate) fn stream_in_chunks(events: &str, size: usize, pause: Duration) -> Vec<Step> {
    let mut steps = vec![stream_head()];
    for data in events.as_bytes().chunks(size) {
        steps.push(chunk(data));
        if !pause.is_zero() {
            steps.push(Step::Pause(pause));
        }
    }
    steps.push(last_chunk());
    steps
}

/// A whole stream with one HTTP chunk for each event of [`chat_events`].
pub(crate) fn chat_stream(model: &str, words: &[&str]) -> Vec<Step> {
    let events = chat_events(model, words);
    let chunks = events.split_inclusive("\n\n").map(chunk);
    std::iter::once(stream_head()).chain(chunks).chain([last_chunk()]).collect()
}

fn event(model: &str, delta: &str, finish_reason: &str) -> String {
    let model = quote(model);
    format!(
        "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":{model},\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish_reason}}}]}}\n\n"
    )
}

fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

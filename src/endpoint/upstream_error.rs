//! What an endpoint's error says, whatever shape its server gives it.
//!
//! Messages and codes stay verbatim where there are any: clients recognise a context overflow by its text.
//! HTML is never repeated, plain text only where it is a short line that names no place.

use std::sync::Arc;

use http::StatusCode;
use memchr::memmem;

use super::json;

/// Longest message that is passed on; validation errors may repeat the whole request.
pub const MESSAGE_BYTES_MAX: usize = 8 << 10;

/// Longest `type`, `code` or `param` that is passed on: they are words.
const WORD_BYTES_MAX: usize = 256;

/// Longest plain text that is passed on.
const PLAIN_BYTES_MAX: usize = 300;

/// Longer words of a plain text may be keys.
const PLAIN_WORD_BYTES_MAX: usize = 24;

/// An endpoint's error in OpenAI's terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamError {
    /// The HTTP status, or for an error inside a 200 the one that its code names, else 502.
    pub status: StatusCode,
    /// What the endpoint said.
    pub message: String,
    /// OpenAI's `type`; by the status where the endpoint names none.
    pub kind: String,
    /// Machine-readable reason; numbers as text.
    pub code: Option<String>,
    /// The request field at fault.
    pub param: Option<String>,
}

impl UpstreamError {
    /// Reads the body of an answer with an error status.
    ///
    /// Understands `{"error":{…}}` (OpenAI, vLLM, llama.cpp), the same in an array (Gemini),
    /// `{"error":"text"}` (Ollama), `{"detail":…}` (FastAPI) and `{"object":"error","message":…}` (older
    /// vLLM), also where the body was cut. Bytes that are no UTF-8 become U+FFFD.
    #[must_use]
    pub fn from_response(status: StatusCode, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let text = text.trim();
        let said = Said::read(text).or_else(|| Said::read_cut(text));
        said.unwrap_or_default().into_error(Some(status))
    }

    /// [`UpstreamError::from_response`] of a `text/plain` body. The endpoint's own names are not known here: see
    /// [`UpstreamError::redact`].
    #[must_use]
    pub fn from_plain_text(status: StatusCode, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        match plain_message(text.trim()) {
            Some(message) => Said { message: Some(message), ..Said::default() }.into_error(Some(status)),
            None => Self::from_response(status, body),
        }
    }

    /// Reads an error that came inside a 200: in a stream event or a whole body. `None` if there is none.
    pub(super) fn in_band(object: &str) -> Option<Self> {
        let is_error = json::member(object, "error").is_some_and(json::is_truthy)
            || json::member(object, "object").is_some_and(|kind| json::string_is(kind, "error"));
        is_error.then(|| Said::read(object).unwrap_or_default().into_error(None))
    }

    /// Reads the data of a stream event that is called `error`.
    pub(super) fn from_event(data: &[u8]) -> Self {
        let said = std::str::from_utf8(data).ok().map(str::trim_ascii).and_then(Said::read);
        said.unwrap_or_default().into_error(None)
    }

    /// An answer with a good status that cannot be used; `what` says why.
    pub(super) fn unusable(what: &str) -> Self {
        Said { message: Some(format!("the endpoint {what}")), ..Said::default() }.into_error(None)
    }

    /// Replaces every `secret` (the endpoint's host or key) wherever the endpoint wrote it.
    pub fn redact(&mut self, secret: &str) {
        if secret.is_empty() {
            return;
        }
        let texts = [&mut self.message, &mut self.kind].into_iter();
        for text in texts.chain(self.code.as_mut()).chain(self.param.as_mut()) {
            if text.contains(secret) {
                *text = text.replace(secret, "(endpoint)");
            }
        }
    }

    /// Gives the model its other name wherever the message has it as a whole word.
    pub fn rename_model(&mut self, renamed: &Renamed) {
        if renamed.is_in(self.message.as_bytes()) {
            self.message = replace_word(&self.message, &renamed.upstream, &renamed.asked);
        }
    }
}

/// A model's two names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renamed {
    /// As the endpoint knows it.
    pub upstream: Arc<str>,
    /// As the client asked for it.
    pub asked: Arc<str>,
}

impl Renamed {
    /// Whether the endpoint's name for it occurs in `bytes`, be it within a word.
    pub(super) fn is_in(&self, bytes: &[u8]) -> bool {
        !self.upstream.is_empty() && memmem::find(bytes, self.upstream.as_bytes()).is_some()
    }

    /// JSON `text` with the name replaced as in [`UpstreamError::rename_model`].
    pub(super) fn in_json(&self, text: &str) -> String {
        let quoted = serde_json::Value::from(&*self.asked).to_string();
        replace_word(text, &self.upstream, &quoted[1..quoted.len() - 1])
    }
}

/// `text` with every `word` replaced, where it stands alone: not inside of a longer name or path.
fn replace_word(text: &str, word: &str, replacement: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '/' | ':' | '@');
    let mut replaced = String::with_capacity(text.len());
    let mut copied = 0;
    for (at, _) in text.match_indices(word) {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        // A dot joins names, and ends sentences.
        let after_dots = after.trim_start_matches('.');
        let joins = |c: Option<char>| c.is_some_and(is_part);
        let is_inside = before.ends_with('.')
            || joins(before.chars().next_back())
            || joins(after.chars().next())
            || (after_dots.len() < after.len() && joins(after_dots.chars().next()));
        if !is_inside {
            replaced.push_str(&text[copied..at]);
            replaced.push_str(replacement);
            copied = at + word.len();
        }
    }
    replaced.push_str(&text[copied..]);
    replaced
}

/// The message that a plain text is: one short printable line without what looks like an address.
fn plain_message(text: &str) -> Option<String> {
    let is_line = (1..=PLAIN_BYTES_MAX).contains(&text.len()) && !text.contains(char::is_control);
    let is_prose = !text.starts_with(['{', '[', '<', '"']) && text != "null";
    (is_line && is_prose && !text.split_whitespace().any(names_place)).then(|| text.to_owned())
}

/// Whether a word may be an address or a key: with dots or colons inside, `@` or slashes, or very long.
fn names_place(word: &str) -> bool {
    let word = word.trim_matches(|c: char| !c.is_alphanumeric());
    if word.len() > PLAIN_WORD_BYTES_MAX {
        return true;
    }
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        && word.bytes().filter(|byte| *byte == b'.').count() < 2;
    !is_number && word.contains(['.', ':', '@', '/', '\\'])
}

/// The parts of an error that a body names.
#[derive(Default)]
struct Said {
    message: Option<String>,
    kind: Option<String>,
    code: Option<String>,
    param: Option<String>,
}

impl Said {
    fn read(text: &str) -> Option<Self> {
        Self::read_object(if text.starts_with('[') { first_element(text)? } else { text })
    }

    /// What a body says that was cut.
    fn read_cut(text: &str) -> Option<Self> {
        let mut said = Self::read(&json::mended(text)?)?;
        said.message.get_or_insert_with(|| "the endpoint's error broke off before its message".to_owned());
        Some(said)
    }

    fn read_object(object: &str) -> Option<Self> {
        let mut said = Self::default();
        let mut error = None;
        let mut detail = None;
        json::members(object, |key, value| match key {
            "error" => error = Some(value),
            "detail" => detail = Some(value),
            _ => said.take(key, value),
        })
        .ok()?;
        match error {
            Some(raw) if raw.starts_with('{') => {
                said = Self::default();
                json::members(raw, |key, value| said.take(key, value)).ok()?;
            }
            Some(raw) if raw.starts_with('"') => said.message = scalar(raw),
            _ => {}
        }
        if said.message.is_none() {
            said.message = detail.and_then(detail_text);
        }
        Some(said)
    }

    fn take(&mut self, key: &str, raw: &str) {
        match key {
            "message" => self.message = scalar(raw),
            "type" => self.kind = word(raw),
            "code" => self.code = word(raw),
            "param" => self.param = word(raw),
            _ => {}
        }
    }

    /// The status that an error inside a 200 stands for.
    fn status(&self) -> StatusCode {
        let code = || self.code.as_deref()?.parse().ok();
        let named = code().and_then(|code| StatusCode::from_u16(code).ok());
        if let Some(status) = named.filter(|status| status.is_client_error() || status.is_server_error()) {
            return status;
        }
        let says =
            |what: &str| [&self.code, &self.kind].into_iter().flatten().any(|word| word.contains(what));
        if says("rate_limit") {
            StatusCode::TOO_MANY_REQUESTS
        } else if says("overloaded") {
            StatusCode::SERVICE_UNAVAILABLE
        } else {
            StatusCode::BAD_GATEWAY
        }
    }

    fn into_error(self, status: Option<StatusCode>) -> UpstreamError {
        let status = status.unwrap_or_else(|| self.status());
        let message = match self.message {
            Some(message) => bounded(message),
            None => format!("the endpoint answered with status {} and no message", status.as_u16()),
        };
        let short = |text: Option<String>| text.filter(|text| text.len() <= WORD_BYTES_MAX);
        let kind = short(self.kind).unwrap_or_else(|| kind_of(status).to_owned());
        UpstreamError { status, message, kind, code: short(self.code), param: short(self.param) }
    }
}

/// A string as it decodes, another value as it stands; nothing for null and the empty string.
fn scalar(raw: &str) -> Option<String> {
    let says = !matches!(raw, "null" | "\"\"");
    says.then(|| json::string(raw).map_or_else(|| raw.to_owned(), Into::into))
}

/// A [`scalar`] that is no empty value of another language.
fn word(raw: &str) -> Option<String> {
    scalar(raw).filter(|word| !matches!(word.as_str(), "None" | "null"))
}

/// The first element of an array.
pub(super) fn first_element(array: &str) -> Option<&str> {
    let mut first = None;
    json::elements(array, |element| first = first.or(Some(element))).ok()?;
    first
}

/// FastAPI's `detail`: a text, or a list of `{"loc":[…],"msg":…}`.
fn detail_text(raw: &str) -> Option<String> {
    let mut faults = Vec::new();
    let listed = json::elements(raw, |fault| {
        let mut place = Vec::new();
        if let Some(loc) = json::member(fault, "loc") {
            // A `loc` of another type has no place to name.
            _ = json::elements(loc, |step| place.extend(scalar(step)));
        }
        let text = json::member(fault, "msg").and_then(scalar);
        let text = text.unwrap_or_else(|| fault.to_owned());
        faults.push(if place.is_empty() { text } else { format!("{}: {text}", place.join(".")) });
    });
    if listed.is_ok() && !faults.is_empty() { Some(faults.join("; ")) } else { scalar(raw) }
}

fn bounded(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES_MAX {
        let end = (0..=MESSAGE_BYTES_MAX).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
    message
}

fn kind_of(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        400..500 => "invalid_request_error",
        _ => "server_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: u16, body: &str) -> UpstreamError {
        UpstreamError::from_response(StatusCode::from_u16(status).unwrap(), body.as_bytes())
    }

    /// Body of a captured answer: what follows the first blank line.
    fn body_of(capture: &str) -> &str {
        capture.split_once("\n\n").unwrap().1
    }

    #[test]
    fn context_overflow_stays_verbatim() {
        let vllm = read(400, body_of(include_str!("../../tests/fixtures/wire/vllm-too-long.txt")));
        assert!(
            vllm.message.starts_with("This model's maximum context length is 1024 tokens. However, your")
        );
        assert_eq!((vllm.kind.as_str(), vllm.code.as_deref()), ("BadRequestError", Some("400")));
        assert_eq!(vllm.param.as_deref(), Some("input_tokens"));

        let llamacpp = read(400, body_of(include_str!("../../tests/fixtures/wire/llamacpp-too-long.txt")));
        let text =
            "request (12031 tokens) exceeds the available context size (1024 tokens), try increasing it";
        assert_eq!((llamacpp.message.as_str(), llamacpp.kind.as_str()), (text, "exceed_context_size_error"));

        let openai = read(
            400,
            r#"{"error":{"message":"m","type":"t","param":null,"code":"context_length_exceeded"}}"#,
        );
        assert_eq!((openai.code.as_deref(), openai.param), (Some("context_length_exceeded"), None));
    }

    #[test]
    fn every_servers_shape_is_understood() {
        let busy = read(503, body_of(include_str!("../../tests/fixtures/wire/vllm-queue-full-503.txt")));
        assert!(busy.message.starts_with("The engine is currently busy"));
        assert_eq!((busy.status.as_u16(), busy.kind.as_str()), (503, "Service Unavailable"));
        let missing = read(404, body_of(include_str!("../../tests/fixtures/wire/vllm-404.txt")));
        assert_eq!((missing.message.as_str(), missing.kind.as_str()), ("Not Found", "invalid_request_error"));
        let key = read(401, r#"{"error":"Unauthorized"}"#);
        assert_eq!((key.message.as_str(), key.kind.as_str()), ("Unauthorized", "authentication_error"));
        let flat = read(
            400,
            r#"{"object":"error","message":"bad","type":"BadRequestError","param":null,"code":40303}"#,
        );
        assert_eq!((flat.message.as_str(), flat.code.as_deref(), flat.param), ("bad", Some("40303"), None));
        let fastapi = read(
            422,
            r#"{"detail":[{"loc":["body","messages",0],"msg":"Field required","type":"missing"},{"msg":"x"}]}"#,
        );
        assert_eq!(fastapi.message, "body.messages.0: Field required; x");
        assert_eq!(read(500, r#"{"error":{"code":"oops"}}"#).code.as_deref(), Some("oops"));
    }

    #[test]
    fn pages_and_texts_are_not_repeated() {
        for body in
            ["<html><h1>502 Bad Gateway</h1>nginx</html>", "upstream 10.0.0.7:8000 died", "", "[1]", "null"]
        {
            let error = read(502, body);
            assert_eq!(error.message, "the endpoint answered with status 502 and no message", "{body}");
            assert_eq!((error.kind.as_str(), error.code), ("server_error", None));
        }
        let binary = UpstreamError::from_response(StatusCode::BAD_GATEWAY, b"\x1f\x8b\xff");
        assert_eq!(binary.kind, "server_error");
    }

    #[test]
    fn a_plain_text_passes_where_it_names_no_place() {
        let plain =
            |body: &str| UpstreamError::from_plain_text(StatusCode::BAD_GATEWAY, body.as_bytes()).message;
        for text in ["Rate limit reached: wait 2.5 s, then try again.", "model overloaded"] {
            assert_eq!(plain(&format!("{text}\n")), text);
        }
        let long = "a ".repeat(PLAIN_BYTES_MAX);
        for text in [
            "upstream 10.0.0.7:8000 died",
            "lost gpu-3.local",
            "see http://x/y",
            "two\nlines",
            &long,
            "",
            "<html>no</html>",
            "mail ops@here",
            "key abcdefghijklmnopqrstuvwxyz0123",
            "null",
        ] {
            assert!(plain(text).ends_with("and no message"), "{text}");
        }
        assert_eq!(plain(r#"{"error":"busy"}"#), "busy");
    }

    #[test]
    fn arrays_cut_bodies_and_bad_bytes_are_understood() {
        let array = r#"[{"error":{"code":429,"message":"quota","status":"RESOURCE_EXHAUSTED"}}]"#;
        assert_eq!(
            (read(429, array).message.as_str(), read(429, array).code.as_deref()),
            ("quota", Some("429"))
        );
        let in_time =
            read(400, r#"{"error":{"message":"too long","code":"context_length_exceeded","input":["a","#);
        assert_eq!(
            (in_time.message.as_str(), in_time.code.as_deref()),
            ("too long", Some("context_length_exceeded"))
        );
        let inside = read(400, r#"{"error":{"type":"t","message":"it was \u00"#);
        assert_eq!((inside.message.as_str(), inside.kind.as_str()), ("it was ", "t"));
        let before = read(400, r#"{"error":{"code":"c","in"#);
        assert_eq!(
            (before.message.as_str(), before.code.as_deref()),
            ("the endpoint's error broke off before its message", Some("c"))
        );
        let bytes =
            UpstreamError::from_response(StatusCode::BAD_REQUEST, b"{\"error\":{\"message\":\"caf\xe9\"}}");
        assert_eq!(bytes.message, "caf\u{fffd}");
        let none = read(400, r#"{"error":{"message":"m","type":"None","param":"null","code":"None"}}"#);
        assert_eq!((none.kind.as_str(), none.param, none.code), ("invalid_request_error", None, None));
    }

    #[test]
    fn messages_are_bounded_and_hosts_removed() {
        let mut error = read(404, r#"{"error":"no model at http://10.0.0.7:8000/v1 or 10.0.0.7:8000"}"#);
        error.redact("http://10.0.0.7:8000");
        error.redact("10.0.0.7:8000");
        error.redact("");
        assert_eq!(error.message, "no model at (endpoint)/v1 or (endpoint)");
        let long = read(400, &format!(r#"{{"error":"x{}"}}"#, "é".repeat(MESSAGE_BYTES_MAX)));
        assert_eq!(long.message.len(), MESSAGE_BYTES_MAX - 1 + '…'.len_utf8());
    }

    #[test]
    fn secrets_are_removed_from_every_part_and_words_are_bounded() {
        let body = r#"{"error":{"message":"key sk-1","type":"sk-1","code":"csk-1","param":"p/sk-1"}}"#;
        let mut error = read(400, body);
        error.redact("sk-1");
        assert_eq!((error.message.as_str(), error.kind.as_str()), ("key (endpoint)", "(endpoint)"));
        assert_eq!(
            (error.code.as_deref(), error.param.as_deref()),
            (Some("c(endpoint)"), Some("p/(endpoint)"))
        );
        let word = "x".repeat(WORD_BYTES_MAX + 1);
        let error = read(400, &format!(r#"{{"error":{{"message":"m","type":"{word}","code":"{word}"}}}}"#));
        assert_eq!((error.kind.as_str(), error.code), ("invalid_request_error", None));
    }

    #[test]
    fn models_are_renamed_as_whole_words() {
        for (message, renamed) in [
            ("no `qwen2.5:7b` here: qwen2.5:7b.", "no `auto` here: auto."),
            ("qwen2.5:7b-instruct, org/qwen2.5:7b, xqwen2.5:7b, qwen2.5:7b.gguf", ""),
            ("\"qwen2.5:7b\"qwen2.5:7b", "\"auto\"auto"),
        ] {
            let mut error = UpstreamError::unusable("");
            message.clone_into(&mut error.message);
            let name =
                |upstream: &str, asked: &str| Renamed { upstream: upstream.into(), asked: asked.into() };
            error.rename_model(&name("qwen2.5:7b", "auto"));
            assert_eq!(error.message, if renamed.is_empty() { message } else { renamed });
            let before = error.message.clone();
            error.rename_model(&name("", "x"));
            assert_eq!(error.message, before);
            let quoting = name("qwen2.5:7b", "a\"b").in_json(message);
            assert_eq!(
                quoting,
                if renamed.is_empty() { message.into() } else { renamed.replace("auto", "a\\\"b") }
            );
        }
    }

    #[test]
    fn errors_inside_a_200_name_their_status() {
        let status = |object| UpstreamError::in_band(object).map(|error| error.status.as_u16());
        assert_eq!(status(r#"{"error":{"message":"overloaded","code":503}}"#), Some(503));
        assert_eq!(status(r#"{"error":{"message":"x","code":"429"}}"#), Some(429));
        assert_eq!(status(r#"{"error":{"message":"x","code":200}}"#), Some(502));
        assert_eq!(status(r#"{"error":"text"}"#), Some(502));
        assert_eq!(status(r#"{"object":"error","message":"m","code":400}"#), Some(400));
        assert_eq!(status(r#"{"error":{"message":"x","code":"rate_limit_exceeded"}}"#), Some(429));
        assert_eq!(status(r#"{"error":{"message":"x","type":"rate_limit_error"}}"#), Some(429));
        assert_eq!(status(r#"{"error":{"message":"x","type":"server_overloaded"}}"#), Some(503));
        assert_eq!(status(r#"{"error":{"message":"x","type":"overloaded_error","code":"429"}}"#), Some(429));
        assert_eq!(status(r#"{"error":null,"choices":[]}"#), None);
        assert_eq!(status(r#"{"error":{}}"#), None);
        assert_eq!(status("null"), None);
    }
}

//! What differs from one server software to the next: with the engine profiler's pages, the one place that asks which
//! `kind` it is.
//!
//! Health pages, the two things of a request that have to be said differently, and defaults. Everything
//! else passes as the client wrote it: what an endpoint does not take, its own error says best (vLLM
//! refuses `stream_options` without `stream`, for example).
//!
//! vLLM's and llama.cpp's ways were recorded from running servers, Ollama's are those of its published API.

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use memchr::memmem;
use serde_json::Value;

use super::{EndpointKind, json};

/// What a health page says of its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It can take work.
    Ready,
    /// It is up and its model is not there yet.
    Loading,
    /// It is up and does not want to be asked so often: what was known of it stands.
    Busy,
    /// It cannot take work.
    Down,
}

/// A body as an endpoint is to get it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// The body.
    pub body: Bytes,
    /// Token counts were asked for that the client has not asked for: the event with them is not its own.
    pub asks_for_usage: bool,
}

impl EndpointKind {
    /// The page that tells whether the server can take work, from its root; `base_path` is the path of
    /// its API. None of them makes a server load a model.
    #[must_use]
    pub fn health_path(self, base_path: &str) -> String {
        match self {
            Self::Vllm | Self::LlamaCpp => "/health".to_owned(),
            Self::Ollama => "/api/version".to_owned(),
            Self::OpenAi => format!("{base_path}/models"),
        }
    }

    /// Reads the answer of the health page.
    ///
    /// llama.cpp answers 503 `Loading model` while it loads. vLLM listens only once it has loaded; its 503
    /// is an engine that died. Ollama has no loading state: its first request waits. Of the others, some have no page of
    /// models; to answer that is a sign of life.
    #[must_use]
    pub fn read_health(self, status: StatusCode, body: &[u8]) -> Health {
        let loads = match self {
            Self::LlamaCpp => memmem::find(body, b"Loading model").is_some(),
            Self::OpenAi => true,
            Self::Vllm | Self::Ollama => false,
        };
        match status {
            _ if status.is_success() => Health::Ready,
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED if self == Self::OpenAi => Health::Ready,
            StatusCode::TOO_MANY_REQUESTS => Health::Busy,
            StatusCode::SERVICE_UNAVAILABLE if loads => Health::Loading,
            _ => Health::Down,
        }
    }

    /// Whether the health page is part of an API that limits its callers, so that it must not be asked
    /// while the endpoint wants to be left alone.
    #[must_use]
    pub const fn limits_probes(self) -> bool {
        matches!(self, Self::OpenAi)
    }

    /// Requests that run at once where the configuration does not say.
    #[must_use]
    pub const fn default_concurrency(self) -> u32 {
        match self {
            Self::Vllm => 64,
            Self::OpenAi => 32,
            Self::LlamaCpp | Self::Ollama => 4,
        }
    }

    /// Whether streams are asked for token counts where the configuration does not say. llama.cpp counts in
    /// the `timings` of its last event, which it would move to the event that clients must not see.
    #[must_use]
    pub const fn default_inject_usage(self) -> bool {
        !matches!(self, Self::LlamaCpp)
    }

    /// Whether `ignore_eos: true` makes it write as many tokens as it may.
    #[must_use]
    pub const fn takes_ignore_eos(self) -> bool {
        matches!(self, Self::Vllm | Self::LlamaCpp)
    }

    /// Whether `cache_prompt: false` keeps earlier prompts from helping.
    #[must_use]
    pub const fn takes_cache_prompt(self) -> bool {
        matches!(self, Self::LlamaCpp)
    }

    /// The page, from its root, that tells how many requests it runs at once.
    #[must_use]
    pub const fn slots_path(self) -> Option<&'static str> {
        match self {
            Self::LlamaCpp => Some("/props"),
            Self::Vllm | Self::Ollama | Self::OpenAi => None,
        }
    }

    /// Reads that page; `None` where it does not say.
    #[must_use]
    pub fn read_slots(body: &[u8]) -> Option<u32> {
        let page: Value = serde_json::from_slice(body).ok()?;
        page["total_slots"].as_u64().and_then(|slots| u32::try_from(slots).ok()).filter(|slots| *slots > 0)
    }

    /// The page, from its root, that tells which models are in memory, of a server that loads one when it is asked
    /// for. Asking for the page loads none.
    #[must_use]
    pub const fn loaded_models_path(self) -> Option<&'static str> {
        match self {
            Self::Ollama => Some("/api/ps"),
            Self::Vllm | Self::LlamaCpp | Self::OpenAi => None,
        }
    }

    /// Reads that page: whether `model` is in memory. `None` where it does not say. Ollama adds `:latest` to a name
    /// without a tag.
    #[must_use]
    pub fn read_loaded(body: &[u8], model: &str) -> Option<bool> {
        let page: Value = serde_json::from_slice(body).ok()?;
        let same = |name: &str| name == model || name.strip_suffix(":latest") == Some(model);
        Some(page["models"].as_array()?.iter().any(|entry| entry["name"].as_str().is_some_and(same)))
    }

    /// Rewrites what the server would misunderstand; every other byte stays. `wants_usage` = the answer is
    /// a stream and its tokens are to be counted.
    #[must_use]
    pub fn prepare(self, body: Bytes, wants_usage: bool) -> Prepared {
        let body = match self {
            Self::Ollama => with_max_tokens(&body).unwrap_or(body),
            Self::Vllm | Self::LlamaCpp | Self::OpenAi => body,
        };
        match wants_usage.then(|| with_usage(&body)).flatten() {
            Some(body) => Prepared { body, asks_for_usage: true },
            None => Prepared { body, asks_for_usage: false },
        }
    }
}

/// Ollama knows `max_tokens` and ignores `max_completion_tokens`: the key is renamed. Where both are there
/// the newer one wins, as it does at OpenAI, vLLM and llama.cpp: `max_tokens` gets its value.
///
/// `None` where nothing is to be done. A key spelled with escapes is not found.
fn with_max_tokens(body: &Bytes) -> Option<Bytes> {
    const KEY: &str = "max_completion_tokens";
    memmem::find(body, KEY.as_bytes())?;
    let document = document(body)?;
    let newer = json::member(document, KEY).filter(|value| *value != "null")?;
    if let Some(older) = json::member(document, "max_tokens") {
        let at = json::span(text(body)?, older);
        return Some(replaced(body, at, newer));
    }
    let before = text(body)?[..json::span(text(body)?, newer).start].trim_ascii_end().strip_suffix(':')?;
    let quoted = before.trim_ascii_end().strip_suffix('"')?;
    let start = quoted.len().checked_sub(KEY.len()).filter(|at| &quoted[*at..] == KEY)?;
    Some(replaced(body, start..quoted.len(), "max_tokens"))
}

/// Asks for the event with token counts. `None` where the client has asked itself, or `stream_options` is
/// nothing that can be added to.
fn with_usage(body: &Bytes) -> Option<Bytes> {
    const OPTIONS: &str = "stream_options";
    const OBJECT: &str = r#"{"include_usage":true}"#;
    let end = body.trim_ascii_end().strip_suffix(b"}")?.len();
    let at_the_end = || Some(replaced(body, end..end, &format!(r#","{OPTIONS}":{OBJECT}"#)));
    if memmem::find(body, b"\"stream_options\"").is_none() {
        return at_the_end();
    }
    let Some(options) = json::member(document(body)?, OPTIONS) else { return at_the_end() };
    let at = json::span(text(body)?, options);
    let inside = match options {
        "null" => return Some(replaced(body, at, OBJECT)),
        object => object.strip_prefix('{')?.strip_suffix('}')?,
    };
    match json::member(options, "include_usage") {
        Some(value) if matches!(value, "false" | "null") => {
            Some(replaced(body, json::span(text(body)?, value), "true"))
        }
        Some(_) => None,
        None => {
            let comma = if inside.trim_ascii().is_empty() { "" } else { "," };
            Some(replaced(body, at.end - 1..at.end - 1, &format!(r#"{comma}"include_usage":true"#)))
        }
    }
}

fn text(body: &Bytes) -> Option<&str> {
    std::str::from_utf8(body).ok()
}

/// The JSON in `body`, which may stand behind a byte-order mark.
fn document(body: &Bytes) -> Option<&str> {
    text(body).map(|text| text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// `body` with `new` in place of the bytes at `at`.
fn replaced(body: &Bytes, at: std::ops::Range<usize>, new: &str) -> Bytes {
    let mut bytes = BytesMut::with_capacity(body.len() + new.len());
    bytes.extend_from_slice(&body[..at.start]);
    bytes.extend_from_slice(new.as_bytes());
    bytes.extend_from_slice(&body[at.end..]);
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prepared(kind: EndpointKind, body: &str, wants_usage: bool) -> (String, bool) {
        let prepared = kind.prepare(Bytes::copy_from_slice(body.as_bytes()), wants_usage);
        (String::from_utf8(prepared.body.to_vec()).unwrap(), prepared.asks_for_usage)
    }

    #[test]
    fn pages_of_slots_and_loaded_models_are_read() {
        let slots = |body: &str| EndpointKind::read_slots(body.as_bytes());
        assert_eq!(slots(r#"{"total_slots":4,"model_alias":"m"}"#), Some(4));
        assert_eq!([slots("{}"), slots(r#"{"total_slots":0}"#), slots("<html>")], [None; 3]);
        let ps = br#"{"models":[{"name":"qwen2.5:1.5b"},{"name":"smol:latest","size":1}]}"#;
        let loaded = |model| EndpointKind::read_loaded(ps, model);
        assert_eq!(["qwen2.5:1.5b", "smol", "qwen2.5"].map(loaded), [Some(true), Some(true), Some(false)]);
        assert_eq!(EndpointKind::read_loaded(b"[]", "m"), None);
    }

    #[test]
    fn health_pages_are_read_in_the_servers_own_terms() {
        use EndpointKind::{LlamaCpp, Ollama, OpenAi, Vllm};
        let loading = br#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#;
        for (kind, status, body, health) in [
            (LlamaCpp, 200, br#"{"status":"ok"}"#.as_slice(), Health::Ready),
            (LlamaCpp, 503, loading, Health::Loading),
            (LlamaCpp, 503, b"upstream connect error", Health::Down),
            (Vllm, 200, b"", Health::Ready),
            (Vllm, 503, b"", Health::Down),
            (Ollama, 200, br#"{"version":"0.33.0"}"#, Health::Ready),
            (Ollama, 404, b"404 page not found", Health::Down),
            (OpenAi, 200, br#"{"object":"list","data":[]}"#, Health::Ready),
            (OpenAi, 429, b"", Health::Busy),
            (OpenAi, 503, b"", Health::Loading),
            (OpenAi, 401, b"", Health::Down),
            (OpenAi, 404, b"", Health::Ready),
            (OpenAi, 405, b"", Health::Ready),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(kind.read_health(status, body), health, "{kind} {status}");
        }
        let paths = EndpointKind::ALL.iter().map(|kind| kind.health_path("/v1")).collect::<Vec<_>>();
        assert_eq!(paths, ["/health", "/api/version", "/health", "/v1/models"]);
    }

    #[test]
    fn ollama_gets_the_cap_under_the_name_it_knows() {
        for (body, expected) in [
            (r#"{"max_completion_tokens":5,"seed":1}"#, r#"{"max_tokens":5,"seed":1}"#),
            (
                r#"{"a":{"max_completion_tokens":1},"max_completion_tokens" : 5}"#,
                r#"{"a":{"max_completion_tokens":1},"max_tokens" : 5}"#,
            ),
            (
                r#"{"max_tokens":9,"max_completion_tokens":5}"#,
                r#"{"max_tokens":5,"max_completion_tokens":5}"#,
            ),
            (
                r#"{"max_completion_tokens":5,"max_tokens":null}"#,
                r#"{"max_completion_tokens":5,"max_tokens":5}"#,
            ),
            (
                r#"{"max_tokens":9,"max_completion_tokens":null}"#,
                r#"{"max_tokens":9,"max_completion_tokens":null}"#,
            ),
            (r#"{"user":"max_completion_tokens"}"#, r#"{"user":"max_completion_tokens"}"#),
            ("\u{feff}{\"max_completion_tokens\":5}", "\u{feff}{\"max_tokens\":5}"),
        ] {
            assert_eq!(prepared(EndpointKind::Ollama, body, false), (expected.to_owned(), false));
            assert_eq!(prepared(EndpointKind::Vllm, body, false).0, body);
        }
    }

    #[test]
    fn token_counts_are_asked_for_where_the_client_did_not() {
        const ASKED: &str = r#""stream_options":{"include_usage":true}"#;
        for (body, expected) in [
            (r#"{"model":"m","stream":true}"#, format!(r#"{{"model":"m","stream":true,{ASKED}}}"#)),
            ("{\"model\":\"m\" }\r\n", format!("{{\"model\":\"m\" ,{ASKED}}}\r\n")),
            (r#"{"stream_options":null,"n":1}"#, format!(r#"{{{ASKED},"n":1}}"#)),
            (r#"{"stream_options":{ }}"#, r#"{"stream_options":{ "include_usage":true}}"#.to_owned()),
            (r#"{"stream_options":{"include_usage":false}}"#, format!("{{{ASKED}}}")),
            (
                r#"{"stream_options":{"continuous_usage_stats":true},"n":1}"#,
                r#"{"stream_options":{"continuous_usage_stats":true,"include_usage":true},"n":1}"#.to_owned(),
            ),
            (r#"{"user":"stream_options"}"#, format!(r#"{{"user":"stream_options",{ASKED}}}"#)),
            (
                r#"{"messages":[{"content":"a \"stream_options\" b"}]}"#,
                format!(r#"{{"messages":[{{"content":"a \"stream_options\" b"}}],{ASKED}}}"#),
            ),
        ] {
            assert_eq!(prepared(EndpointKind::Vllm, body, true), (expected, true));
            assert_eq!(prepared(EndpointKind::Vllm, body, false), (body.to_owned(), false));
        }
        for own in [
            r#"{"stream_options":{"include_usage":true}}"#,
            r#"{"stream_options":{"include_usage":1}}"#,
            r#"{"stream_options":"yes"}"#,
            "[]",
        ] {
            assert_eq!(prepared(EndpointKind::Vllm, own, true), (own.to_owned(), false));
        }
    }

    proptest! {
        #[test]
        fn what_is_sent_differs_in_the_one_member_only(
            members in prop::collection::btree_map("[a-z]{1,8}", -5..5_i32, 0..6),
            options in prop::option::of(prop::collection::btree_map("[a-z]{1,8}", any::<bool>(), 0..3)),
        ) {
            let mut sent = serde_json::to_value(&members).unwrap();
            sent["model"] = "m".into();
            if let Some(options) = &options {
                sent["stream_options"] = serde_json::to_value(options).unwrap();
            }
            let (text, asks) = prepared(EndpointKind::OpenAi, &sent.to_string(), true);
            let mut got: serde_json::Value = serde_json::from_str(&text).unwrap();
            prop_assert!(asks);
            prop_assert_eq!(&got["stream_options"]["include_usage"], true);
            got["stream_options"].as_object_mut().unwrap().remove("include_usage");
            if options.is_none() {
                got.as_object_mut().unwrap().remove("stream_options");
            }
            prop_assert_eq!(got, sent);
        }
    }
}

//! A request, read for routing and never re-serialised.
//!
//! One pass over the body collects the few fields a decision needs; the body goes on byte for byte, only
//! the value of `model` is spliced. What an endpoint judges better (unknown fields, temperatures, roles) is
//! left to it. Of duplicate keys the last counts, as it does in servers.

use std::ops::Range;

use bytes::Bytes;
use serde::de::IgnoredAny;

use super::inputs::Inputs;
use super::messages::Messages;
use super::prompt::PromptSize;
use crate::domain::{ApiCall, Capabilities, PrefixChain};
use crate::endpoint::json;

/// Kept of the last user message or prompt; the embedder reads its last 128 tokens.
pub const TEXT_BYTES_MAX: usize = 8 << 10;

/// `model` keys in one body. More than one is a mistake already, many are an attack on the splice.
pub const MODEL_KEYS_MAX: usize = 8;

/// Choices one request may ask for per prompt, as in OpenAI's API.
pub const CHOICES_MAX: u32 = 128;

/// Why a request cannot be routed. All of these are the client's to mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestFault {
    /// No body.
    #[error("the request body is empty: send a JSON object")]
    Empty,
    /// The body is not text.
    #[error("the request body is not valid UTF-8 at byte {at}: send JSON encoded as UTF-8")]
    NotUtf8 {
        /// Offset of the first wrong byte.
        at: usize,
    },
    /// The body does not parse.
    #[error("the request body is not valid JSON: {detail}")]
    NotJson {
        /// What was wrong, with line and column.
        detail: String,
    },
    /// JSON, but no object.
    #[error("the request body must be a JSON object")]
    NotObject,
    /// A field that routing cannot do without.
    #[error("`{param}` is missing: {expected}")]
    Missing {
        /// The field.
        param: &'static str,
        /// What to send.
        expected: &'static str,
    },
    /// A field of another type.
    #[error("`{param}` has the wrong type: {expected}")]
    WrongType {
        /// The field.
        param: String,
        /// What to send.
        expected: &'static str,
    },
    /// A field of the right type with a value that cannot be.
    #[error("`{param}` has an invalid value: {expected}")]
    Invalid {
        /// The field.
        param: &'static str,
        /// What to send.
        expected: &'static str,
    },
    /// More than [`MODEL_KEYS_MAX`] `model` keys.
    #[error("the request body has more than {MODEL_KEYS_MAX} `model` keys: send one")]
    TooManyModels,
}

impl RequestFault {
    /// The field at fault.
    #[must_use]
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Missing { param, .. } | Self::Invalid { param, .. } => Some(param),
            Self::WrongType { param, .. } => Some(param),
            Self::TooManyModels => Some("model"),
            Self::Empty | Self::NotUtf8 { .. } | Self::NotJson { .. } | Self::NotObject => None,
        }
    }

    /// OpenAI's error code for it.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Empty | Self::NotUtf8 { .. } | Self::NotJson { .. } => "invalid_json",
            Self::NotObject | Self::WrongType { .. } => "invalid_type",
            Self::Missing { .. } => "missing_required_parameter",
            Self::Invalid { .. } | Self::TooManyModels => "invalid_value",
        }
    }
}

/// What routing reads of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiRequest {
    /// The call it makes.
    pub call: ApiCall,
    /// The model asked for.
    pub model: String,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// Whether the client asked for a usage event at the end of the stream.
    pub include_usage: bool,
    /// The client's cap on the completion, per choice: `max_completion_tokens`, else `max_tokens`.
    pub max_completion_tokens: Option<u64>,
    /// Completions asked for: choices (`n`, or `best_of` if that is more) for each prompt; at least 1.
    pub completions: u32,
    /// What the model must be able to do.
    pub needs: Capabilities,
    /// The last [`TEXT_BYTES_MAX`] of the last user message or of the last prompt; empty if there is none, and
    /// for embeddings, whose quality is not predicted.
    pub text: String,
    /// Size of the messages and tool definitions, or of all prompts.
    pub prompt: PromptSize,
    /// Size of the longest prompt; `prompt` where there is one.
    pub longest_prompt: PromptSize,
    /// The beginnings of a conversation; empty for prompts and inputs.
    pub prefixes: PrefixChain,
    /// Byte ranges of every top-level `model` value, ascending.
    model_spans: Vec<Range<usize>>,
}

impl ApiRequest {
    /// `body` (the one this was parsed from) asking for `upstream_model`; all other bytes are unchanged.
    #[must_use]
    pub fn splice_model(&self, body: &Bytes, upstream_model: &str) -> Bytes {
        json::splice(body, &self.model_spans, upstream_model)
    }
}

/// Reads the body of `call`.
///
/// # Errors
/// If the body is not a JSON object with a model and at least one message, prompt or input, or a field that
/// routing reads has a type or value that no endpoint could accept.
pub fn parse_request(call: ApiCall, body: &Bytes) -> Result<ApiRequest, RequestFault> {
    let text =
        std::str::from_utf8(body).map_err(|error| RequestFault::NotUtf8 { at: error.valid_up_to() })?;
    // RFC 8259 lets a reader ignore a byte-order mark; it stays in the body that is sent on.
    let document = text.strip_prefix('\u{feff}').unwrap_or(text);
    if document.trim_ascii().is_empty() {
        return Err(RequestFault::Empty);
    }
    match Fields::read(call, document) {
        Ok(fields) => fields.into_request(text),
        // The slower reader knows what is wrong, and where.
        Err(json::Malformed) => Err(match serde_json::from_str::<IgnoredAny>(document) {
            Ok(_) => RequestFault::NotObject,
            Err(error) => RequestFault::NotJson { detail: error.to_string() },
        }),
    }
}

/// The top-level members routing reads, as raw values.
struct Fields<'a> {
    call: ApiCall,
    /// Of those beyond [`MODEL_KEYS_MAX`] the first only.
    models: Vec<&'a str>,
    messages: Option<Messages<'a>>,
    /// `prompt` or `input`.
    inputs: Option<&'a str>,
    stream: Option<&'a str>,
    stream_options: Option<&'a str>,
    max_tokens: Option<&'a str>,
    max_completion_tokens: Option<&'a str>,
    n: Option<&'a str>,
    best_of: Option<&'a str>,
    tools: Option<&'a str>,
    functions: Option<&'a str>,
    response_format: Option<&'a str>,
}

/// What the prompts of a request are, whichever call it makes.
struct Content {
    needs: Capabilities,
    text: String,
    prompt: PromptSize,
    longest: PromptSize,
    prefixes: PrefixChain,
    count: usize,
}

impl<'a> Fields<'a> {
    fn read(call: ApiCall, document: &'a str) -> Result<Self, json::Malformed> {
        let mut fields = Self::new(call);
        json::whole(document, |cursor| {
            cursor.object(|key, value| {
                if key == "messages" && call == ApiCall::Chat {
                    fields.messages = Some(Messages::read(value)?);
                } else {
                    fields.take(key, value.value()?);
                }
                Some(())
            })
        })?;
        Ok(fields)
    }

    fn take(&mut self, key: &str, value: &'a str) {
        let field = match key {
            "model" => {
                if self.models.len() <= MODEL_KEYS_MAX {
                    self.models.push(value);
                }
                return;
            }
            "prompt" if self.call == ApiCall::Completions => &mut self.inputs,
            "input" if self.call == ApiCall::Embeddings => &mut self.inputs,
            "best_of" if self.call == ApiCall::Completions => &mut self.best_of,
            "stream" => &mut self.stream,
            "stream_options" => &mut self.stream_options,
            "max_tokens" => &mut self.max_tokens,
            "max_completion_tokens" => &mut self.max_completion_tokens,
            "n" => &mut self.n,
            "tools" => &mut self.tools,
            "functions" => &mut self.functions,
            "response_format" => &mut self.response_format,
            _ => return,
        };
        *field = Some(value);
    }

    fn new(call: ApiCall) -> Self {
        Self {
            call,
            models: Vec::with_capacity(1),
            messages: None,
            inputs: None,
            stream: None,
            stream_options: None,
            max_tokens: None,
            max_completion_tokens: None,
            n: None,
            best_of: None,
            tools: None,
            functions: None,
            response_format: None,
        }
    }

    fn into_request(self, text: &'a str) -> Result<ApiRequest, RequestFault> {
        let model = self.model()?;
        let content = match self.call {
            ApiCall::Chat => self.chat()?,
            ApiCall::Completions => self.inputs("prompt")?,
            ApiCall::Embeddings => Content { text: String::new(), ..self.inputs("input")? },
        };
        let generates = self.call != ApiCall::Embeddings;
        Ok(ApiRequest {
            call: self.call,
            model,
            stream: generates && self.stream()?,
            include_usage: self
                .stream_options
                .is_some_and(|options| json::member(options, "include_usage") == Some("true")),
            max_completion_tokens: if generates { self.token_cap()? } else { None },
            completions: if generates { self.completions(content.count)? } else { 1 },
            needs: content.needs,
            text: content.text,
            prompt: content.prompt,
            longest_prompt: content.longest,
            prefixes: content.prefixes,
            model_spans: self.models.iter().map(|raw| json::span(text, raw)).collect(),
        })
    }

    fn chat(&self) -> Result<Content, RequestFault> {
        const EXPECTED: &str = "send an array with at least one message";
        let messages =
            self.messages.as_ref().ok_or(RequestFault::Missing { param: "messages", expected: EXPECTED })?;
        if let Some(wrong) = messages.wrong {
            let expected = "send an array of message objects";
            return Err(RequestFault::WrongType { param: wrong.param(), expected });
        }
        let mut prompt = messages.prompt;
        if prompt.messages == 0 {
            return Err(RequestFault::Invalid { param: "messages", expected: EXPECTED });
        }
        let mut needs = self.needs();
        let tools = [self.tools, self.functions].map(|tools| tools.filter(|tools| json::is_truthy(tools)));
        let mut tools_size = PromptSize::default();
        for tools in tools.into_iter().flatten() {
            needs = needs.with(Capabilities::TOOLS);
            tools_size.add_raw(tools);
        }
        prompt.add(tools_size);
        let prefixes = messages.chain.finish(tools, &tools_size);
        if prompt.images > 0 {
            needs = needs.with(Capabilities::VISION);
        }
        let text = messages.last_user_text(TEXT_BYTES_MAX);
        Ok(Content { needs, text, prompt, longest: prompt, prefixes, count: 1 })
    }

    fn inputs(&self, param: &'static str) -> Result<Content, RequestFault> {
        const EXPECTED: &str = "send a string, an array of strings, or token ids";
        let raw = self.inputs.ok_or(RequestFault::Missing { param, expected: EXPECTED })?;
        let inputs = Inputs::read(raw)
            .ok_or_else(|| RequestFault::WrongType { param: param.into(), expected: EXPECTED })?;
        if inputs.count == 0 {
            return Err(RequestFault::Invalid { param, expected: "send at least one element" });
        }
        Ok(Content {
            needs: self.needs(),
            text: inputs.last_text(TEXT_BYTES_MAX),
            prompt: inputs.size,
            longest: inputs.longest,
            prefixes: PrefixChain::default(),
            count: inputs.count,
        })
    }

    fn needs(&self) -> Capabilities {
        let needs = self.call.needs();
        let generates = self.call != ApiCall::Embeddings;
        if generates && self.response_format.is_some_and(wants_json) {
            needs.with(Capabilities::JSON)
        } else {
            needs
        }
    }

    fn token_cap(&self) -> Result<Option<u64>, RequestFault> {
        match self.max_completion_tokens.filter(|raw| *raw != "null") {
            Some(raw) => token_cap("max_completion_tokens", raw),
            None => self.max_tokens.map_or(Ok(None), |raw| token_cap("max_tokens", raw)),
        }
    }

    fn model(&self) -> Result<String, RequestFault> {
        const EXPECTED: &str = "send the name of a model, see GET /v1/models";
        if self.models.len() > MODEL_KEYS_MAX {
            return Err(RequestFault::TooManyModels);
        }
        let raw = self.models.last().ok_or(RequestFault::Missing { param: "model", expected: EXPECTED })?;
        let model = json::string(raw)
            .ok_or_else(|| RequestFault::WrongType { param: "model".into(), expected: EXPECTED })?;
        if model.is_empty() {
            return Err(RequestFault::Invalid { param: "model", expected: EXPECTED });
        }
        Ok(model.into_owned())
    }

    fn stream(&self) -> Result<bool, RequestFault> {
        match self.stream {
            None | Some("null" | "false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => {
                Err(RequestFault::WrongType { param: "stream".into(), expected: "send true or false" })
            }
        }
    }

    fn completions(&self, prompts: usize) -> Result<u32, RequestFault> {
        let choices = choices("n", self.n)?.max(choices("best_of", self.best_of)?);
        Ok(choices.saturating_mul(u32::try_from(prompts).unwrap_or(u32::MAX)))
    }
}

fn wants_json(response_format: &str) -> bool {
    json::member(response_format, "type")
        .is_some_and(|kind| json::string_is(kind, "json_object") || json::string_is(kind, "json_schema"))
}

/// A number of choices; 1 where there is none.
fn choices(param: &'static str, raw: Option<&str>) -> Result<u32, RequestFault> {
    let Some(raw) = raw.filter(|raw| *raw != "null") else { return Ok(1) };
    let number = number(raw)
        .ok_or_else(|| RequestFault::WrongType { param: param.into(), expected: "send a whole number" })?;
    if number.fract() != 0.0 || !(1.0..=f64::from(CHOICES_MAX)).contains(&number) {
        return Err(RequestFault::Invalid { param, expected: "send a whole number from 1 to 128" });
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked: 1 to 128")]
    Ok(number as u32)
}

/// A cap on completion tokens. Negative caps mean "no limit" to llama.cpp and are refused by vLLM: no cap here.
/// More than any context holds: a larger cap on the completion counts as this one.
const TOKEN_CAP_MAX: f64 = 1e9;

fn token_cap(param: &'static str, raw: &str) -> Result<Option<u64>, RequestFault> {
    if raw == "null" {
        return Ok(None);
    }
    let cap = number(raw)
        .ok_or_else(|| RequestFault::WrongType { param: param.into(), expected: "send a whole number" })?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded; not negative")]
    Ok((cap >= 0.0).then_some(cap.min(TOKEN_CAP_MAX) as u64))
}

fn number(raw: &str) -> Option<f64> {
    // Rust reads more than JSON does ("inf", "nan"), but `raw` is valid JSON: only numbers start like this.
    raw.starts_with(|first: char| first == '-' || first.is_ascii_digit()).then(|| raw.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn parse(body: impl AsRef<[u8]>) -> Result<ApiRequest, RequestFault> {
        parse_request(ApiCall::Chat, &Bytes::copy_from_slice(body.as_ref()))
    }

    fn with(fields: &str) -> Result<ApiRequest, RequestFault> {
        parse(format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}]{fields}}}"#))
    }

    fn fault(body: impl AsRef<[u8]>) -> (Option<String>, &'static str, String) {
        let fault = parse(body).unwrap_err();
        (fault.param().map(str::to_owned), fault.code(), fault.to_string())
    }

    #[test]
    fn reads_what_routing_needs() {
        let request = parse(
            r#" {"messages":[{"role":"system","content":"be kind"},{"role":"user","content":"first"},
                {"role":"assistant","content":null,"tool_calls":[{"id":"1"}]},{"role":"tool","content":"42"},
                {"role":"user","content":"last \"one\"\n"}],
                "model":"acme\/x","stream":true,"stream_options":{"include_usage":true},"n":2,"seed":12345678901234567890123,
                "max_tokens":7,"max_completion_tokens":9,"tools":[{"type":"function"}],
                "response_format":{"type":"json_schema","json_schema":{}}} "#,
        )
        .unwrap();
        assert_eq!(request.model, "acme/x");
        assert!(request.stream && request.include_usage);
        assert_eq!((request.completions, request.max_completion_tokens), (2, Some(9)));
        let needs = Capabilities::CHAT.with(Capabilities::TOOLS).with(Capabilities::JSON);
        assert_eq!(request.needs, needs);
        assert_eq!(request.text, "last \"one\"\n");
        assert_eq!(request.prompt.messages, 5);
        // 7 + 5 + 12 (tool_calls as they stand) + 2 + 11 + 21 (tools).
        assert_eq!(request.prompt.bytes(), 58);
    }

    #[test]
    fn defaults_are_those_of_the_api() {
        let request = with("").unwrap();
        assert!(!request.stream && !request.include_usage);
        assert_eq!((request.completions, request.max_completion_tokens), (1, None));
        assert_eq!(request.needs, Capabilities::CHAT);
        // 2 bytes, one message, one request.
        assert!((request.prompt.tokens().get() - 7.5).abs() < 1e-12);
        let nulls = with(
            r#","stream":null,"n":null,"max_tokens":null,"max_completion_tokens":null,"tools":null,
               "stream_options":null,"response_format":null,"stop":null,"user":"""#,
        );
        assert_eq!(nulls.unwrap(), request);
    }

    #[test]
    fn caps_take_the_newer_name_and_leave_odd_values_to_the_endpoint() {
        let cap = |fields| with(fields).unwrap().max_completion_tokens;
        assert_eq!(cap(r#","max_tokens":5"#), Some(5));
        assert_eq!(cap(r#","max_completion_tokens":null,"max_tokens":5"#), Some(5));
        assert_eq!(cap(r#","max_completion_tokens":3,"max_tokens":"junk""#), Some(3));
        assert_eq!(cap(r#","max_tokens":-1"#), None);
        assert_eq!(cap(r#","max_tokens":18446744073709551615"#), Some(1_000_000_000));
        assert_eq!(cap(r#","max_tokens":16.0"#), Some(16));
        assert_eq!(cap(r#","max_tokens":99999999999999999999999"#), Some(1_000_000_000));
    }

    #[test]
    fn capabilities_follow_the_request() {
        let needs = |fields| with(fields).unwrap().needs;
        assert_eq!(
            needs(r#","tools":[],"functions":[ ],"response_format":{"type":"text"}"#),
            Capabilities::CHAT
        );
        assert_eq!(needs(r#","functions":[{}]"#), Capabilities::CHAT.with(Capabilities::TOOLS));
        assert_eq!(
            needs(r#","response_format":{"type":"json_object"}"#),
            Capabilities::CHAT.with(Capabilities::JSON)
        );
        let request = parse(
            r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"what"},
               {"type":"image_url","image_url":{"url":"data:image/png;base64,AAAAAAAAAAAAAAAA"}},
               {"type":"text","text":"is it?"}]}]}"#,
        )
        .unwrap();
        assert_eq!(request.needs, Capabilities::CHAT.with(Capabilities::VISION));
        assert_eq!(request.text, "what\nis it?");
        assert_eq!((request.prompt.images, request.prompt.bytes()), (1, 10));
    }

    #[test]
    fn completions_are_read_by_their_prompt() {
        let body = r#"{"model":"m","prompt":["first","last \ud800"],"n":2,"best_of":3,"max_tokens":7,"stream":true,
                       "messages":"not a field of this call","tools":[1]}"#;
        let request = parse_request(ApiCall::Completions, &Bytes::from(body)).unwrap();
        assert_eq!((request.completions, request.max_completion_tokens, request.stream), (6, Some(7), true));
        assert_eq!((request.text.as_str(), request.needs), ("last \u{fffd}", Capabilities::CHAT));
        // 5 and 8 bytes: the lone surrogate counts as one character of four.
        assert!((request.prompt.tokens().get() - 4.5).abs() < 1e-12);
        assert!((request.longest_prompt.tokens().get() - 3.25).abs() < 1e-12);
        let fault = |fields: &str| {
            let body = Bytes::from(format!(r#"{{"model":"m"{fields}}}"#));
            let fault = parse_request(ApiCall::Completions, &body).unwrap_err();
            (fault.param().unwrap_or_default().to_owned(), fault.code())
        };
        assert_eq!(fault(""), ("prompt".into(), "missing_required_parameter"));
        assert_eq!(fault(r#","prompt":null"#), ("prompt".into(), "invalid_type"));
        assert_eq!(fault(r#","prompt":[]"#), ("prompt".into(), "invalid_value"));
        assert_eq!(fault(r#","prompt":"x","best_of":"2""#), ("best_of".into(), "invalid_type"));
    }

    #[test]
    fn embeddings_generate_nothing() {
        let body = r#"{"model":"e","input":[[1,2,3],[4]],"stream":"odd","n":0,"max_tokens":"odd",
                       "response_format":{"type":"json_object"}}"#;
        let request = parse_request(ApiCall::Embeddings, &Bytes::from(body)).unwrap();
        assert_eq!((request.stream, request.max_completion_tokens, request.completions), (false, None, 1));
        assert_eq!((request.text.as_str(), request.needs), ("", Capabilities::EMBEDDING));
        let tokens = (request.prompt.tokens().get(), request.longest_prompt.tokens().get());
        assert!((tokens.0 - 4.0).abs() < 1e-12 && (tokens.1 - 3.0).abs() < 1e-12);
    }

    #[test]
    fn faults_name_the_field_and_what_to_send() {
        let named = |body: &str| {
            let (param, code, _) = fault(body);
            (param.unwrap_or_default(), code)
        };
        let messages = r#""messages":[{"role":"user","content":"hi"}]"#;
        for (body, param, code) in [
            (String::new(), "", "invalid_json"),
            (" \n".into(), "", "invalid_json"),
            ("[1]".into(), "", "invalid_type"),
            ("\"text\"".into(), "", "invalid_type"),
            ("nonsense".into(), "", "invalid_json"),
            (format!("{{{messages}}}"), "model", "missing_required_parameter"),
            (format!(r#"{{"model":null,{messages}}}"#), "model", "invalid_type"),
            (format!(r#"{{"model":7,{messages}}}"#), "model", "invalid_type"),
            (format!(r#"{{"model":"",{messages}}}"#), "model", "invalid_value"),
            (format!(r#"{{{}"model":"m",{messages}}}"#, r#""model":1,"#.repeat(8)), "model", "invalid_value"),
            (r#"{"model":"m"}"#.into(), "messages", "missing_required_parameter"),
            (r#"{"model":"m","messages":[]}"#.into(), "messages", "invalid_value"),
            (r#"{"model":"m","messages":"hello"}"#.into(), "messages", "invalid_type"),
            (r#"{"model":"m","messages":null}"#.into(), "messages", "invalid_type"),
            (r#"{"model":"m","messages":[{},"x"]}"#.into(), "messages[1]", "invalid_type"),
            (format!(r#"{{"model":"m",{messages},"stream":"true"}}"#), "stream", "invalid_type"),
            (format!(r#"{{"model":"m",{messages},"n":0}}"#), "n", "invalid_value"),
            (format!(r#"{{"model":"m",{messages},"n":129}}"#), "n", "invalid_value"),
            (format!(r#"{{"model":"m",{messages},"n":1.5}}"#), "n", "invalid_value"),
            (format!(r#"{{"model":"m",{messages},"n":"1"}}"#), "n", "invalid_type"),
            (format!(r#"{{"model":"m",{messages},"max_tokens":"9"}}"#), "max_tokens", "invalid_type"),
            (
                format!(r#"{{"model":"m",{messages},"max_completion_tokens":true}}"#),
                "max_completion_tokens",
                "invalid_type",
            ),
            (format!(r#"{{"model":"m",{messages}}} trailing"#), "", "invalid_json"),
        ] {
            assert_eq!(named(&body), (param.to_owned(), code), "{body}");
        }
        let (_, _, message) = fault(r#"{"model":"m","messages":[{"role":"#);
        assert!(message.contains("line 1 column 33"), "{message}");
        let (_, _, message) = fault(b"{\"model\":\"m\xff\"}");
        assert!(message.contains("not valid UTF-8 at byte 11"), "{message}");
    }

    #[test]
    fn odd_but_valid_bodies_pass() {
        // Lone surrogates in values and keys, duplicate keys, a byte-order mark, numbers beyond f64.
        let body = "\u{feff}{\"model\":1,\"\\ud800\":\"\\udfff\",\"mod\\u0065l\":\"m\",\"x\":1e999,\"messages\":[{\"role\":\"\\u0075ser\",\"content\":\"a\\ud83dz\"}],\"n\":7,\"n\":1}";
        let request = parse(body).unwrap();
        assert_eq!((request.model.as_str(), request.completions), ("m", 1));
        assert_eq!(request.text, "a\u{fffd}z");
        let spliced = request.splice_model(&Bytes::from(body), "up");
        assert_eq!(spliced, body.replace("\"model\":1", "\"model\":\"up\"").replace(":\"m\"", ":\"up\""));
    }

    #[test]
    fn messages_of_unknown_shape_are_left_to_the_endpoint() {
        for content in ["null", "7", "{}", "[7,\"x\",{\"type\":\"input_audio\"}]", "[{\"text\":7}]"] {
            let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":{content}}}]}}"#);
            assert_eq!(parse(&body).unwrap().text, "", "{body}");
        }
        assert_eq!(parse(r#"{"model":"m","messages":[{}]}"#).unwrap().text, "");
    }

    #[test]
    fn depth_bombs_do_not_exhaust_the_stack() {
        let bomb = "[".repeat(1_000_000);
        assert_eq!(fault(&bomb).1, "invalid_json");
        assert_eq!(fault(format!(r#"{{"model":"m","messages":{bomb}"#)).1, "invalid_json");
        assert_eq!(fault(format!(r#"{{"model":"m","x":{bomb}"#)).1, "invalid_json");
        let closed = format!("{bomb}{}", "]".repeat(1_000_000));
        assert_eq!(fault(&closed).1, "invalid_type");
        assert_eq!(
            fault(format!(r#"{{"model":"m","messages":{closed}}}"#)).0.as_deref(),
            Some("messages[0]")
        );
        let request = parse(format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":{closed}}}],"x":{closed},"tools":{closed}}}"#
        ))
        .unwrap();
        assert_eq!(request.needs, Capabilities::CHAT.with(Capabilities::TOOLS));
    }

    #[test]
    fn ten_megabytes_are_read_without_copying_them() {
        let text = "lorem ipsum \\u00e9 ".repeat(600_000);
        let body =
            Bytes::from(format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}end"}}]}}"#));
        let request = parse_request(ApiCall::Chat, &body).unwrap();
        assert!(request.text.ends_with("lorem ipsum é end"));
        assert!(request.text.len() <= TEXT_BYTES_MAX);
        assert!(request.text.capacity() <= 7 * TEXT_BYTES_MAX);
        assert_eq!(request.prompt.bytes(), 600_000 * 15 + 3);
        assert_eq!(request.splice_model(&body, "m").as_ptr(), body.as_ptr());
    }

    /// Raw JSON as clients and fuzzers write it: numbers and strings that no typed parse would keep.
    fn raw_json() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("null".to_owned()),
            Just("true".to_owned()),
            prop::sample::select(vec!["1.0", "-0", "1e999", "123456789012345678901234567890", "1E-7"])
                .prop_map(str::to_owned),
            any::<String>().prop_map(|text| Value::from(text).to_string()),
            prop::sample::select(vec![r#""\ud800""#, r#""\/""#, r#""\u0000""#, r#""model""#])
                .prop_map(str::to_owned),
        ];
        leaf.prop_recursive(3, 24, 5, |inner| {
            let key = prop::sample::select(vec![r#""model""#, r#""b""#, r#""a""#, r#""\ud83d""#, r#""""#]);
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5)
                    .prop_map(|items| format!("[ {} ]", items.join(" ,"))),
                prop::collection::vec((key, inner), 0..5).prop_map(|members| {
                    let members: Vec<_> = members.iter().map(|(k, v)| format!("{k}:{v}")).collect();
                    format!("{{{}}}", members.join(", "))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn splicing_changes_the_models_and_nothing_else(
            before in prop::collection::vec(raw_json(), 0..4),
            between in prop::collection::vec(raw_json(), 0..4),
            model in "[^\"\\\\\u{0}-\u{1f}]{1,12}",
            doubled in any::<bool>(),
            upstream in any::<String>().prop_filter("a name", |name| !name.is_empty()),
        ) {
            let members = |values: &[String]| -> String {
                values.iter().enumerate().map(|(idx, value)| format!("\"k{}\" : {value} ,", idx % 2)).collect()
            };
            let render = |first: &str, last: &str| {
                let first = if doubled { format!("\"model\": {first},") } else { String::new() };
                format!(
                    "{{{}{first}\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}],{}\"model\"\t:{last}}}",
                    members(&before), members(&between),
                )
            };
            let body = Bytes::from(render("null", &format!("\"{model}\"")));
            let request = parse_request(ApiCall::Chat, &body).unwrap();
            prop_assert_eq!(&request.model, &model);
            let spliced = request.splice_model(&body, &upstream);
            let quoted = Value::from(upstream.as_str()).to_string();
            prop_assert_eq!(&spliced, &Bytes::from(render(&quoted, &quoted)));
            prop_assert_eq!(parse_request(ApiCall::Chat, &spliced).unwrap().model, upstream);
        }

        #[test]
        fn any_bytes_get_an_answer(body in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Err(fault) = parse(body) {
                prop_assert!(!fault.to_string().is_empty());
            }
        }
    }
}

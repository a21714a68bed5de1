//! Reading answers as they pass: what an event says, what a whole body says, how many tokens it took.
//!
//! A 200 is not yet a success: servers put errors, `null` and empty lists behind it. Nothing is changed here.

use super::json::{self, Cursor};
use super::upstream_error::{UpstreamError, first_element};
use crate::domain::ApiCall;
use crate::units::{Seconds, Tokens};

/// Token counts as the endpoint reports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt, cached part included.
    pub prompt_tokens: u64,
    /// Completion, all choices, reasoning included.
    pub completion_tokens: u64,
    /// Part of the prompt that the endpoint's prefix cache held, where it tells.
    pub cached_tokens: Option<u64>,
}

impl Usage {
    /// Reads the value of `usage`, at which `cursor` is, and steps over it; `read` is `None` if it counts nothing.
    fn read(cursor: &mut Cursor<'_>, read: &mut Option<Self>) -> Option<()> {
        *read = None;
        if !cursor.is_at_object() {
            return cursor.value().map(|_| ());
        }
        let mut usage = Self::default();
        let mut counted = false;
        cursor.object(|key, value| {
            let value = value.value()?;
            match key {
                "prompt_tokens" | "completion_tokens" => {
                    if let Some(count) = count(value) {
                        counted = true;
                        let is_prompt = key == "prompt_tokens";
                        *(if is_prompt { &mut usage.prompt_tokens } else { &mut usage.completion_tokens }) =
                            count;
                    }
                }
                "prompt_tokens_details" => {
                    usage.cached_tokens = json::member(value, "cached_tokens").and_then(count);
                }
                _ => {}
            }
            Some(())
        })?;
        *read = counted.then_some(usage);
        Some(())
    }

    /// Reads llama.cpp's `timings`: the prompt is what was read and what was cached of it.
    fn from_timings(raw: &str) -> Option<Self> {
        let number = |key| json::member(raw, key).and_then(count);
        let cached_tokens = number("cache_n");
        Some(Self {
            prompt_tokens: number("prompt_n")? + cached_tokens.unwrap_or_default(),
            completion_tokens: number("predicted_n")?,
            cached_tokens,
        })
    }
}

/// What an engine says of the time that one choice took it: the `timings` of llama.cpp.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timings {
    /// Prompt tokens that were read, without those found in a cache, and the time of that.
    pub prompt: (Tokens, Seconds),
    /// Tokens that were generated, and the time of that.
    pub completion: (Tokens, Seconds),
}

impl Timings {
    fn read(raw: &str) -> Option<Self> {
        let number = |key| {
            let number: f64 = serde_json::from_str(json::member(raw, key)?).ok()?;
            (number >= 0.0 && number.is_finite()).then_some(number)
        };
        let time = |key| number(key).map(Seconds::from_ms);
        Some(Self {
            prompt: (Tokens(number("prompt_n")?), time("prompt_ms")?),
            completion: (Tokens(number("predicted_n")?), time("predicted_ms")?),
        })
    }
}

/// What an answer in one piece says of the work that it was.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Accounts {
    /// Token counts, where the endpoint gave them.
    pub usage: Option<Usage>,
    /// Its clocks, where it has them.
    pub timings: Option<Timings>,
}

/// What one event of a chat or completion stream is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// Choices that say nothing yet: a role, an empty or null content.
    Preamble,
    /// A choice says something: text, reasoning, a refusal, a tool call.
    ///
    /// Any member of a delta other than `role` that is not empty counts, since servers invent new ones.
    Content,
    /// A choice ends without saying more.
    Finish,
    /// No choices, only token counts.
    Usage,
    /// The endpoint failed after its 200.
    Error(UpstreamError),
    /// Anything else.
    Other,
}

/// What one event says.
#[derive(Debug, Clone, PartialEq)]
pub struct EventFacts {
    /// What it is.
    pub kind: EventKind,
    /// Token counts so far; with continuous usage every event has them.
    pub usage: Option<Usage>,
    /// Token counts of one choice, as llama.cpp gives them in the `timings` of the choice's last event.
    pub timed: Option<Usage>,
    /// What the same `timings` say of time.
    pub timings: Option<Timings>,
    /// A choice gives its finish reason, in a [`EventKind::Content`] event or a [`EventKind::Finish`] one.
    pub finished: bool,
    /// Which choices it has, one bit for each index below 64.
    pub choices: u64,
    /// Which of them give their finish reason.
    pub ended: u64,
}

/// Reads the data of one stream event.
#[must_use]
pub fn classify_event(data: &[u8]) -> EventFacts {
    let mut facts = EventFacts {
        kind: EventKind::Other,
        usage: None,
        timed: None,
        timings: None,
        finished: false,
        choices: 0,
        ended: 0,
    };
    let Some(answer) = std::str::from_utf8(data).ok().and_then(Answer::read) else { return facts };
    if let Some(error) = answer.error {
        facts.kind = EventKind::Error(error);
        return facts;
    }
    facts.usage = answer.usage;
    facts.timed = answer.timings.and_then(Usage::from_timings);
    facts.timings = answer.timings.and_then(Timings::read);
    let choices = answer.choices;
    facts.finished = choices.finished;
    (facts.choices, facts.ended) = (choices.seen, choices.ended);
    facts.kind = match (choices.said, choices.finished, choices.count) {
        (true, ..) => EventKind::Content,
        (_, true, _) => EventKind::Finish,
        (_, _, 1..) => EventKind::Preamble,
        _ if facts.usage.is_some() => EventKind::Usage,
        _ => EventKind::Other,
    };
    facts
}

/// Reads the body of a 200 to `call` that is not a stream: what it says of the work it was.
///
/// # Errors
/// If it is no answer: an error in a 200, empty, not JSON (an HTML page), or without a choice or embedding.
pub fn inspect_complete(call: ApiCall, body: &[u8]) -> Result<Accounts, UpstreamError> {
    let text = std::str::from_utf8(body).unwrap_or_default().trim_ascii();
    if body.trim_ascii().is_empty() {
        return Err(UpstreamError::unusable("answered with an empty body"));
    }
    let Some(answer) = Answer::read(text) else {
        return Err(UpstreamError::unusable("answered with a body that is not a JSON object"));
    };
    if let Some(error) = answer.error {
        return Err(error);
    }
    let (has_parts, lacking) = match call {
        ApiCall::Chat | ApiCall::Completions => (answer.choices.count > 0, "answered without a choice"),
        ApiCall::Embeddings => (answer.data.is_some_and(is_filled_array), "answered without an embedding"),
    };
    if !has_parts {
        return Err(UpstreamError::unusable(lacking));
    }
    let timings = answer.timings.and_then(Timings::read);
    Ok(Accounts { usage: answer.usage, timings })
}

/// The members of an answer or stream event that matter here.
#[derive(Default)]
struct Answer<'a> {
    choices: Choices,
    data: Option<&'a str>,
    usage: Option<Usage>,
    timings: Option<&'a str>,
    error: Option<UpstreamError>,
}

impl<'a> Answer<'a> {
    /// `None` if `text` is neither a JSON object nor an array that begins with an error.
    fn read(text: &'a str) -> Option<Self> {
        if text.starts_with('[') {
            let error = UpstreamError::in_band(first_element(text)?)?;
            return Some(Self { error: Some(error), ..Self::default() });
        }
        let mut answer = Self::default();
        let mut may_be_error = false;
        json::whole(text, |cursor| {
            cursor.object(|key, value| {
                match key {
                    "choices" => answer.choices = Choices::read(value)?,
                    "data" => answer.data = Some(value.value()?),
                    "usage" => Usage::read(value, &mut answer.usage)?,
                    "timings" => answer.timings = Some(value.value()?),
                    "error" | "object" => {
                        let value = value.value()?;
                        may_be_error |= key == "error" || json::string_is(value, "error");
                    }
                    _ => _ = value.value()?,
                }
                Some(())
            })
        })
        .ok()?;
        if may_be_error {
            answer.error = UpstreamError::in_band(text);
        }
        Some(answer)
    }
}

fn is_filled_array(raw: &str) -> bool {
    raw.starts_with('[') && json::is_truthy(raw)
}

#[derive(Default)]
struct Choices {
    count: usize,
    said: bool,
    finished: bool,
    seen: u64,
    ended: u64,
}

impl Choices {
    /// Reads the value of `choices`, at which `cursor` is, and steps over it; a value of another type has none.
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        let mut choices = Self::default();
        if !cursor.is_at_array() {
            cursor.value()?;
            return Some(choices);
        }
        cursor.array(|choice| {
            choices.count += 1;
            choices.add(choice)
        })?;
        Some(choices)
    }

    /// A choice that is no object has nothing to say.
    fn add(&mut self, cursor: &mut Cursor<'_>) -> Option<()> {
        let (mut index, mut ends) = (0, false);
        if cursor.is_at_object() {
            cursor.object(|key, value| {
                match key {
                    "index" => index = count(value.value()?).unwrap_or_default(),
                    "delta" | "message" => self.said |= says_something(value)?,
                    "text" => self.said |= json::is_truthy(value.value()?),
                    "finish_reason" => ends = json::is_truthy(value.value()?),
                    _ => _ = value.value()?,
                }
                Some(())
            })?;
        } else {
            cursor.value()?;
        }
        let bit = u32::try_from(index).ok().and_then(|index| 1_u64.checked_shl(index)).unwrap_or_default();
        self.finished |= ends;
        self.seen |= bit;
        self.ended |= if ends { bit } else { 0 };
        Some(())
    }
}

/// Whether the delta or message at which `cursor` is, which it steps over, says something.
fn says_something(cursor: &mut Cursor<'_>) -> Option<bool> {
    if !cursor.is_at_object() {
        cursor.value()?;
        return Some(false);
    }
    let mut said = false;
    cursor.object(|key, value| {
        said |= json::is_truthy(value.value()?) && key != "role";
        Some(())
    })?;
    Some(said)
}

/// A token count; some servers write them as floats.
fn count(raw: &str) -> Option<u64> {
    // As counts are written; what is JSON without being a plain number follows.
    if let Ok(count) = raw.parse::<u32>() {
        return Some(u64::from(count));
    }
    let count: f64 = serde_json::from_str(raw).ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked; saturates")]
    (count >= 0.0).then_some(count as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(choices: &str) -> EventKind {
        classify_event(format!(r#"{{"id":"x","model":"m","choices":{choices}}}"#).as_bytes()).kind
    }

    #[test]
    fn a_role_is_no_content_yet() {
        for choices in [
            r#"[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]"#,
            r#"[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}]"#,
            r#"[{"delta":{}}]"#,
            r#"[{"delta":{"content":null,"tool_calls":[],"function_call":null}}]"#,
            r#"[{"text":"","finish_reason":""}]"#,
            "[7]",
        ] {
            assert_eq!(kind(choices), EventKind::Preamble, "{choices}");
        }
    }

    #[test]
    fn whatever_a_choice_says_is_content() {
        for delta in [
            r#""content":"a""#,
            r#""content":" ""#,
            r#""role":"assistant","content":[{"type":"text"}]"#,
            r#""content":"","reasoning_content":"hm""#,
            r#""reasoning":"hm""#,
            r#""refusal":"no""#,
            r#""content":null,"tool_calls":[{"index":0}]"#,
            r#""function_call":{"name":"f"}"#,
            r#""thinking_blocks":[1]"#,
        ] {
            assert_eq!(kind(&format!(r#"[{{"delta":{{{delta}}}}}]"#)), EventKind::Content, "{delta}");
        }
        assert_eq!(kind(r#"[{"text":"a"}]"#), EventKind::Content);
        assert_eq!(kind(r#"[{"delta":{}},{"index":1,"delta":{"content":"b"}}]"#), EventKind::Content);
        let last = classify_event(br#"{"choices":[{"delta":{"content":"m"},"finish_reason":"length"}]}"#);
        assert_eq!((last.kind, last.finished), (EventKind::Content, true));
        assert_eq!(kind(r#"[{"delta":{},"finish_reason":"stop"}]"#), EventKind::Finish);
    }

    #[test]
    fn usage_and_errors_are_told_apart() {
        let usage = classify_event(
            br#"{"choices":[],"model":"m","usage":{"completion_tokens":5,"prompt_tokens":33,"total_tokens":38,"prompt_tokens_details":{"cached_tokens":32}}}"#,
        );
        let expected = Usage { prompt_tokens: 33, completion_tokens: 5, cached_tokens: Some(32) };
        assert_eq!((usage.kind, usage.usage), (EventKind::Usage, Some(expected)));

        let running = classify_event(
            br#"{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":3.0,"completion_tokens":1,"prompt_tokens_details":null}}"#,
        );
        let expected = Usage { prompt_tokens: 3, completion_tokens: 1, cached_tokens: None };
        assert_eq!((running.kind, running.usage), (EventKind::Content, Some(expected)));

        let failed = classify_event(br#"{"error":{"message":"overloaded","code":503},"choices":[]}"#);
        assert!(matches!(&failed.kind, EventKind::Error(e) if e.message == "overloaded" && e.status == 503));
        let listed = classify_event(br#"[{"error":{"message":"quota","code":429}}]"#);
        assert!(matches!(&listed.kind, EventKind::Error(e) if e.message == "quota" && e.status == 429));
        for other in [
            "",
            "hello",
            "null",
            "[]",
            r#"{"choices":[],"usage":null}"#,
            r#"{"usage":{}}"#,
            "{\"a\":\"\u{1}\"}",
        ] {
            assert_eq!(classify_event(other.as_bytes()).kind, EventKind::Other, "{other}");
        }
        assert_eq!(classify_event(b"{\"a\":\"\xff\"}").kind, EventKind::Other);
    }

    #[test]
    fn captured_answers_are_complete() {
        for (capture, cached_tokens) in [
            (include_str!("../../tests/fixtures/wire/vllm-nonstream.txt"), None),
            (include_str!("../../tests/fixtures/wire/llamacpp-nonstream.txt"), Some(0)),
        ] {
            let (_, body) = capture.split_once("\n\n").unwrap();
            let usage = Usage { prompt_tokens: 33, completion_tokens: 8, cached_tokens };
            assert_eq!(inspect_complete(ApiCall::Chat, body.as_bytes()).unwrap().usage, Some(usage));
        }
    }

    #[test]
    fn the_engines_own_clocks_are_read_where_it_has_them() {
        let capture = include_str!("../../tests/fixtures/wire/llamacpp-nonstream.txt");
        let (_, body) = capture.split_once("\n\n").unwrap();
        let accounts = inspect_complete(ApiCall::Chat, body.as_bytes()).unwrap();
        let value: serde_json::Value = serde_json::from_str(body).unwrap();
        let timings = accounts.timings.unwrap();
        assert_eq!(timings.completion.0, Tokens(8.0));
        assert!(
            (timings.completion.1.0 * 1e3 - value["timings"]["predicted_ms"].as_f64().unwrap()).abs() < 1e-9
        );
        assert!((timings.prompt.1.0 * 1e3 - value["timings"]["prompt_ms"].as_f64().unwrap()).abs() < 1e-9);
        let half = br#"{"choices":[{}],"timings":{"prompt_n":3,"prompt_ms":1.5,"predicted_n":2}}"#;
        assert_eq!(inspect_complete(ApiCall::Chat, half), Ok(Accounts::default()));
    }

    #[test]
    fn a_200_without_an_answer_is_a_failure() {
        // decolua/9router#3242, mnfst/llm-gateway#2709.
        for (body, message) in [
            ("", "the endpoint answered with an empty body"),
            (" \n", "the endpoint answered with an empty body"),
            ("null", "the endpoint answered with a body that is not a JSON object"),
            ("<html></html>", "the endpoint answered with a body that is not a JSON object"),
            (r#"{"choices":[{}]"#, "the endpoint answered with a body that is not a JSON object"),
            (r#"{"choices":[]}"#, "the endpoint answered without a choice"),
            (r#"{"choices":null}"#, "the endpoint answered without a choice"),
            ("{}", "the endpoint answered without a choice"),
            (r#"{"error":{"message":"overloaded","code":503}}"#, "overloaded"),
            (r#"{"error":"busy","choices":[{}]}"#, "busy"),
        ] {
            assert_eq!(
                inspect_complete(ApiCall::Chat, body.as_bytes()).unwrap_err().message,
                message,
                "{body}"
            );
        }
        assert_eq!(inspect_complete(ApiCall::Chat, b"\xff\xfe{}").unwrap_err().status, 502);
        let body = br#" {"error":null,"choices":[{"message":{"content":null}}]} "#;
        assert!(inspect_complete(ApiCall::Chat, body).is_ok());
    }

    #[test]
    fn each_call_has_its_own_parts() {
        let embeddings = br#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":"AAA="}],"model":"e","usage":{"prompt_tokens":8,"total_tokens":8}}"#;
        let usage = Usage { prompt_tokens: 8, completion_tokens: 0, cached_tokens: None };
        assert_eq!(inspect_complete(ApiCall::Embeddings, embeddings).unwrap().usage, Some(usage));
        for call in [ApiCall::Chat, ApiCall::Completions] {
            let error = inspect_complete(call, embeddings).unwrap_err();
            assert_eq!(error.message, "the endpoint answered without a choice");
        }
        for body in [r#"{"data":[]}"#, r#"{"data":"x"}"#, r#"{"data":{"a":1}}"#, r#"{"choices":[{}]}"#] {
            let error = inspect_complete(ApiCall::Embeddings, body.as_bytes()).unwrap_err();
            assert_eq!(error.message, "the endpoint answered without an embedding", "{body}");
        }
        assert!(inspect_complete(ApiCall::Completions, br#"{"choices":[{"text":""}]}"#).is_ok());
    }
}

//! What of a stream does not pass as it came: the token counts a client did not ask for, an endpoint's
//! address or key and a model's name that clients are not to see in an error event, and errors in a form that OpenAI's SDKs do not take for one.
//!
//! Events pass whole, so that a stream that is cut leaves none open with a client. Every other byte passes
//! as it came.

use std::sync::{Arc, LazyLock};

use bytes::{Bytes, BytesMut};
use memchr::memchr2;
use memchr::memmem::{self, Finder};

use super::answer::{EventKind, classify_event};
use super::json;
use super::meter::may_be_error;
use super::sse::{data_value, error_value, names_error};
use super::upstream_error::{Renamed, UpstreamError};

static USAGE_KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"usage\""));

/// Longest open event that is held from one push to the next; a longer one passes unread as it comes.
const HELD_BYTES_MAX: usize = 64 << 10;

/// Filters the events of one stream. Takes them in whole lines, as [`WholeLines`] and [`ModelEcho`] give
/// them; a line too long to be held comes in parts and passes unread.
///
/// [`WholeLines`]: super::whole_lines::WholeLines
/// [`ModelEcho`]: super::echo::ModelEcho
#[derive(Debug)]
pub struct EventFilter {
    /// Whether the event with the token counts is the router's own affair.
    swallows_usage: bool,
    secrets: Arc<[String]>,
    renamed: Option<Renamed>,
    /// The lines of the open event.
    event: BytesMut,
    /// The open event was too long: its start has passed and so does the rest.
    is_passing: bool,
    /// The last line has not ended yet.
    is_inside_line: bool,
    /// The last line ended with CR: an LF that follows belongs to it and shares its fate.
    after_cr: Option<Fate>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Held,
    Passed,
    Swallowed,
}

impl EventFilter {
    /// A filter at the start of a stream. `secrets` are what must not be read in its error events, `renamed` is
    /// what they call the model.
    #[must_use]
    pub fn new(swallows_usage: bool, secrets: Arc<[String]>, renamed: Option<Renamed>) -> Self {
        Self {
            swallows_usage,
            secrets,
            renamed,
            event: BytesMut::new(),
            is_passing: false,
            is_inside_line: false,
            after_cr: None,
        }
    }

    /// Takes the next lines and returns what passes, possibly nothing. Whole events are not copied where
    /// all do.
    pub fn push(&mut self, lines: Bytes) -> Bytes {
        if lines.is_empty() {
            return lines;
        }
        if self.passes_all(&lines) {
            self.after_cr = lines.ends_with(b"\r").then_some(Fate::Passed);
            return lines;
        }
        let mut passed = BytesMut::with_capacity(self.event.len() + lines.len());
        let mut rest = &lines[..];
        while !rest.is_empty() {
            let end = memchr2(b'\n', b'\r', rest).map_or(rest.len(), |at| at + 1);
            let (line, after) = rest.split_at(end);
            rest = after;
            self.take(line, &mut passed);
        }
        if self.event.len() > HELD_BYTES_MAX {
            self.is_passing = true;
            passed.extend_from_slice(&std::mem::take(&mut self.event));
            self.after_cr = self.after_cr.map(|_| Fate::Passed);
        }
        passed.freeze()
    }

    /// The end of the stream: what passes of an event that it leaves open.
    pub fn finish(&mut self) -> Bytes {
        let mut passed = BytesMut::new();
        self.end_event(&mut passed);
        passed.freeze()
    }

    /// What must come before an event of ours: most often nothing, since events pass whole. A blank line too
    /// many is an empty event to SDKs.
    #[must_use]
    pub fn fresh_line(&self) -> &'static str {
        match (self.is_passing, self.is_inside_line && self.event.is_empty()) {
            (true, true) => "\n\n",
            (true, false) if self.after_cr.is_some() => "\n\n",
            (true, false) | (false, true) => "\n",
            (false, false) => "",
        }
    }

    fn passes_all(&self, lines: &[u8]) -> bool {
        let is_between = self.event.is_empty()
            && !(self.is_passing || self.is_inside_line || self.after_cr == Some(Fate::Swallowed));
        let may_count = || self.swallows_usage && USAGE_KEY.find(lines).is_some();
        is_between && ends_event(lines) && !may_be_error(lines) && !may_count()
    }

    /// Takes one line, or a part of one.
    fn take(&mut self, line: &[u8], passed: &mut BytesMut) {
        if line == b"\n"
            && let Some(fate) = self.after_cr.take()
        {
            match fate {
                Fate::Held => self.event.extend_from_slice(line),
                Fate::Passed => passed.extend_from_slice(line),
                Fate::Swallowed => {}
            }
            return;
        }
        let is_blank = !self.is_inside_line && matches!(line, b"\n" | b"\r");
        // What is no part of an event, such as a comment that keeps the connection alive, does not wait.
        let is_outside = self.event.is_empty() && (self.is_inside_line || is_blank || line.starts_with(b":"));
        let fate = if self.is_passing || is_outside {
            passed.extend_from_slice(line);
            self.is_passing &= !is_blank;
            Fate::Passed
        } else {
            self.event.extend_from_slice(line);
            if is_blank { self.end_event(passed) } else { Fate::Held }
        };
        self.is_inside_line = !matches!(line.last(), Some(b'\n' | b'\r'));
        self.after_cr = line.ends_with(b"\r").then_some(fate);
    }

    /// Decides on the event that is held.
    fn end_event(&mut self, passed: &mut BytesMut) -> Fate {
        let event = std::mem::take(&mut self.event);
        let may_count = self.swallows_usage && USAGE_KEY.find(&event).is_some();
        if !may_count && !may_be_error(&event) {
            passed.extend_from_slice(&event);
            return Fate::Passed;
        }
        let (data, is_named_error) = read_event(&event);
        match classify_event(&data).kind {
            EventKind::Usage if self.swallows_usage => {
                let comments = lines_of(&event).filter(|line| line.starts_with(b":"));
                comments.for_each(|comment| passed.extend_from_slice(comment));
                return Fate::Swallowed;
            }
            EventKind::Error(error) if !is_openai_error(&data) || self.is_disguised(&error, &event) => {
                self.put_error(error, passed)
            }
            EventKind::Error(_) => passed.extend_from_slice(&self.reworded(&event)),
            _ if is_named_error && data != b"[DONE]" => {
                self.put_error(UpstreamError::from_event(&data), passed)
            }
            _ => passed.extend_from_slice(&event),
        }
        Fate::Passed
    }

    /// Passes `error` as OpenAI's SDKs read it.
    fn put_error(&self, mut error: UpstreamError, passed: &mut BytesMut) {
        self.secrets.iter().for_each(|secret| error.redact(secret));
        if let Some(renamed) = &self.renamed {
            error.rename_model(renamed);
        }
        let UpstreamError { message, kind, param, code, .. } = error;
        let body =
            serde_json::json!({"error": {"message": message, "type": kind, "param": param, "code": code}});
        passed.extend_from_slice(format!("data: {body}\n\n").as_bytes());
    }

    /// Whether a secret is spelled with escapes, or in a field that is no event of OpenAI's.
    fn is_disguised(&self, error: &UpstreamError, event: &[u8]) -> bool {
        let is_spelled_out = |secret: &String| memmem::find(event, secret.as_bytes()).is_some();
        self.secrets.iter().any(|secret| error.message.contains(secret) && !is_spelled_out(secret))
    }

    fn reworded(&self, event: &[u8]) -> Vec<u8> {
        let names_secret = self.secrets.iter().any(|secret| memmem::find(event, secret.as_bytes()).is_some());
        if !names_secret && self.renamed.as_ref().is_none_or(|renamed| !renamed.is_in(event)) {
            return event.to_vec();
        }
        let text = String::from_utf8_lossy(event).into_owned();
        let text = self.secrets.iter().fold(text, |text, secret| text.replace(secret, "(endpoint)"));
        match &self.renamed {
            Some(renamed) => renamed.in_json(&text).into_bytes(),
            None => text.into_bytes(),
        }
    }
}

/// Whether `lines` end with a blank line that is seen to be one by itself.
fn ends_event(lines: &[u8]) -> bool {
    [b"\n\n".as_slice(), b"\r\n\r\n", b"\r\r"].iter().any(|end| lines.ends_with(end))
}

/// The lines of `event` with their ends.
fn lines_of(event: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = event;
    std::iter::from_fn(move || {
        let end = memchr2(b'\n', b'\r', rest).map_or(rest.len(), |at| at + 1);
        let end = if rest[..end].ends_with(b"\r") && rest[end..].starts_with(b"\n") { end + 1 } else { end };
        let (line, after) = rest.split_at(end);
        rest = after;
        (!line.is_empty()).then_some(line)
    })
}

/// The data of `event` and whether it is called `error`.
fn read_event(event: &[u8]) -> (Vec<u8>, bool) {
    let mut data: Option<Vec<u8>> = None;
    let mut is_named_error = false;
    for line in lines_of(event) {
        let line = line.trim_ascii_end();
        let error = error_value(line);
        if let Some(value) = data_value(line).or(error) {
            match &mut data {
                Some(data) => data.extend_from_slice(&[b"\n", value].concat()),
                None => data = Some(value.to_vec()),
            }
        }
        is_named_error |= error.is_some() || names_error(line);
    }
    (data.unwrap_or_default(), is_named_error)
}

/// Whether `data` has an `error` that says something: OpenAI's SDKs raise on it.
fn is_openai_error(data: &[u8]) -> bool {
    let text = std::str::from_utf8(data).unwrap_or_default();
    json::member(text, "error").is_some_and(json::is_truthy)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::endpoint::whole_lines::WholeLines;

    const USAGE: &str =
        r#"data: {"id":"x","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#;
    const CHUNK: &str =
        r#"data: {"id":"x","choices":[{"delta":{"content":"\"usage\" 10.0.0.7:8000 up:7b"}}],"usage":null}"#;
    const RUNNING: &str =
        r#"data: {"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}"#;
    const ERROR: &str =
        r#"data: {"error":{"message":"lost up:7b at http://10.0.0.7:8000/v1 with sk-1","code":500}}"#;

    fn filtered<'a>(swallows_usage: bool, chunks: impl IntoIterator<Item = &'a [u8]>) -> String {
        let secrets = Arc::from(["10.0.0.7:8000", "sk-1"].map(str::to_owned));
        let renamed = Renamed { upstream: "up:7b".into(), asked: "auto".into() };
        let mut filter = EventFilter::new(swallows_usage, secrets, Some(renamed));
        let mut lines = WholeLines::default();
        let mut passed = Vec::new();
        for chunk in chunks {
            passed.extend_from_slice(&filter.push(lines.push(Bytes::copy_from_slice(chunk))));
        }
        passed.extend_from_slice(&filter.push(lines.finish()));
        passed.extend_from_slice(&filter.finish());
        String::from_utf8(passed).unwrap()
    }

    #[test]
    fn errors_of_older_llama_cpp_servers_become_openai_s() {
        let stream = format!(
            "{CHUNK}\n\nerror: {{\"code\":400,\"message\":\"no slot at 10.0.0.7:8000\"}}\n\n{CHUNK}\n\n"
        );
        let passed = filtered(false, stream.as_bytes().chunks(9));
        let (before, after) = passed.split_once("\n\n").unwrap();
        assert_eq!(before, CHUNK);
        let (error, after) = after.split_once("\n\n").unwrap();
        assert!(error.starts_with("data: {\"error\":{"), "{error}");
        assert!(error.contains("no slot at (endpoint)"), "{error}");
        assert_eq!(after, format!("{CHUNK}\n\n"));
    }

    #[test]
    fn a_secret_spelled_with_escapes_does_not_pass() {
        let stream = "data: {\"error\":{\"message\":\"bad key sk\\u002d1\",\"code\":401}}\n\n";
        let passed = filtered(false, [stream.as_bytes()]);
        assert!(passed.contains("bad key (endpoint)") && !passed.contains("u002d"), "{passed}");
    }

    #[test]
    fn the_usage_event_goes_and_nothing_else() {
        for end in ["\n", "\r\n", "\r"] {
            let events = |events: &[&str]| -> String {
                events.iter().map(|event| format!("{event}{end}{end}")).collect()
            };
            let all = events(&[": hi", CHUNK, RUNNING, USAGE, "data: [DONE]"]);
            let expected = events(&[": hi", CHUNK, RUNNING, "data: [DONE]"]);
            for size in [1, 2, 7, 50, all.len()] {
                assert_eq!(filtered(true, all.as_bytes().chunks(size)), expected, "{end:?} {size}");
                assert_eq!(filtered(false, all.as_bytes().chunks(size)), all);
            }
        }
        let open = format!("{CHUNK}\n\n{USAGE}\n: ping\n\ndata: [DONE]\n\n");
        assert_eq!(filtered(true, [open.as_bytes()]), format!("{CHUNK}\n\n: ping\ndata: [DONE]\n\n"));
    }

    #[test]
    fn a_usage_event_over_several_data_lines_goes_as_well() {
        let split = USAGE.replace("\"usage\"", "\ndata: \"usage\"");
        for end in ["\n", "\r\n"] {
            let split = split.replace('\n', end);
            let stream = format!("{CHUNK}{end}{end}id: 7{end}{split}{end}{end}data: [DONE]{end}{end}");
            let expected = format!("{CHUNK}{end}{end}data: [DONE]{end}{end}");
            for size in [1, 3, 40, stream.len()] {
                assert_eq!(filtered(true, stream.as_bytes().chunks(size)), expected, "{end:?} {size}");
                assert_eq!(filtered(false, stream.as_bytes().chunks(size)), stream);
            }
        }
    }

    #[test]
    fn errors_that_sdks_would_take_for_chunks_are_put_as_openai_puts_them() {
        let flat = r#"{"object":"error","message":"lost 10.0.0.7:8000","type":"InternalServerError","param":null,"code":500}"#;
        let put = r#"data: {"error":{"code":"500","message":"lost (endpoint)","param":null,"type":"InternalServerError"}}"#;
        let untold = r#"data: {"error":{"code":null,"message":"the endpoint answered with status 502 and no message","param":null,"type":"server_error"}}"#;
        let good = r#"data: {"error":{"message":"m"}}"#;
        for (event, expected) in [
            (format!("data: {flat}\n\n"), format!("{put}\n\n")),
            (format!("id: 3\nevent: error\ndata: {flat}\n\n"), format!("{put}\n\n")),
            ("event:error\ndata: oh no\n\n".to_owned(), format!("{untold}\n\n")),
            (format!("event: error\n{good}\n\n"), format!("event: error\n{good}\n\n")),
            (format!("event: errors\n{CHUNK}\n\n"), format!("event: errors\n{CHUNK}\n\n")),
        ] {
            for size in [1, 9, event.len()] {
                let stream = format!("{CHUNK}\n\n{event}");
                let expected = format!("{CHUNK}\n\n{expected}");
                assert_eq!(filtered(false, stream.as_bytes().chunks(size)), expected, "{size}");
            }
        }
    }

    #[test]
    fn an_event_of_ours_may_follow_at_once_unless_a_giant_is_open() {
        let mut filter = EventFilter::new(false, Arc::from([]), None);
        for (lines, passed, fresh_line) in [
            ("id: 1\n", "", ""),
            ("data: a\n", "", ""),
            ("\n", "id: 1\ndata: a\n\n", ""),
            (": ping\n", ": ping\n", ""),
        ] {
            assert_eq!(filter.push(Bytes::from_static(lines.as_bytes())), passed);
            assert_eq!(filter.fresh_line(), fresh_line, "{lines}");
        }
        let giant = format!("data: {}", "x".repeat(HELD_BYTES_MAX));
        for (part, fresh_line) in
            [(giant.as_str(), "\n\n"), ("x", "\n\n"), ("x\n", "\n"), ("id: 2\r", "\n\n"), ("\n\n", "")]
        {
            assert_eq!(filter.push(Bytes::copy_from_slice(part.as_bytes())), part);
            assert_eq!(filter.fresh_line(), fresh_line);
        }
    }

    #[test]
    fn an_error_event_loses_address_and_key_and_no_other_event_does() {
        let stream = format!("{CHUNK}\n\n{ERROR}\n\n");
        let expected = format!(
            "{CHUNK}\n\ndata: {{\"error\":{{\"message\":\"lost auto at http://(endpoint)/v1 with (endpoint)\",\"code\":500}}}}\n\n"
        );
        for size in [1, 9, stream.len()] {
            assert_eq!(filtered(false, stream.as_bytes().chunks(size)), expected);
        }
        let harmless = "data: {\"error\":{\"message\":\"overloaded\"}}\n\n";
        assert_eq!(filtered(false, [harmless.as_bytes()]), harmless);
    }

    #[test]
    fn what_is_not_touched_is_not_copied() {
        let mut filter = EventFilter::new(true, Arc::from(["10.0.0.7:8000".to_owned()]), None);
        let event = Bytes::from_static(b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n");
        assert_eq!(filter.push(event.clone()).as_ptr(), event.as_ptr());
    }

    proptest! {
        #[test]
        fn all_other_bytes_pass_however_the_stream_is_split(
            events in prop::collection::vec(
                prop_oneof![
                    Just(USAGE), Just(CHUNK), Just(RUNNING), Just(": ping"), Just("id: 1"), Just("data: [DONE]"),
                    Just("data: {\"choices\":[],\"usage\":null}"), Just("data: \"usage\"")
                ],
                0..12,
            ),
            ends in prop::collection::vec(prop::sample::select(vec!["\n\n", "\r\n\r\n", "\r\r", "\n\r\n"]), 12),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let with = |keep: fn(&str) -> bool| -> String {
                let kept = events.iter().zip(&ends).filter(|(event, _)| keep(event));
                kept.map(|(event, end)| format!("{event}{end}")).collect()
            };
            let stream = with(|_| true);
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            at.extend([0, stream.len()]);
            at.sort_unstable();
            let chunks = || at.windows(2).map(|cut| &stream.as_bytes()[cut[0]..cut[1]]);
            prop_assert_eq!(filtered(true, chunks()), with(|event| event != USAGE));
            prop_assert_eq!(filtered(false, chunks()), stream.clone());
        }
    }
}

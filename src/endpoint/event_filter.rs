//! What of a stream does not pass as it came: the token counts a client did not ask for and, in an error event,
//! an endpoint's address or key and a model's name that clients are not to see.

use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use memchr::memchr2;
use memchr::memmem::{self, Finder};

use super::answer::{EventKind, classify_event};
use super::sse::data_value;
use super::upstream_error::Renamed;

static USAGE_KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"usage\""));
static ERROR_KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"error\""));

/// Filters the events of one stream. Takes them in whole lines, as [`WholeLines`] and [`ModelEcho`] give
/// them; a line too long to be held comes in parts and passes unread.
///
/// [`WholeLines`]: super::whole_lines::WholeLines
/// [`ModelEcho`]: super::echo::ModelEcho
#[derive(Debug)]
pub struct EventFilter {
    /// Whether the event with the token counts is the router's own affair.
    swallows_usage: bool,
    secrets: Vec<String>,
    renamed: Option<Renamed>,
    /// The last line has not ended yet.
    is_inside_line: bool,
    /// It ended with CR: an LF that follows belongs to it and shares its fate.
    after_cr: Option<Fate>,
    /// The rest of the event is to go: its blank line.
    is_swallowing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Passed,
    Swallowed,
}

impl EventFilter {
    /// A filter at the start of a stream. `secrets` are what must not be read in its error events, `renamed` is
    /// what they call the model.
    pub fn new(
        swallows_usage: bool,
        secrets: impl IntoIterator<Item = String>,
        renamed: Option<Renamed>,
    ) -> Self {
        let secrets = secrets.into_iter().filter(|secret| !secret.is_empty()).collect();
        Self { swallows_usage, secrets, renamed, is_inside_line: false, after_cr: None, is_swallowing: false }
    }

    /// Takes the next lines and returns those that pass, possibly none. Nothing is copied where all do.
    pub fn push(&mut self, lines: Bytes) -> Bytes {
        if lines.is_empty() || self.passes_all(&lines) {
            self.note_end(&lines, Fate::Passed);
            return lines;
        }
        let mut passed = BytesMut::with_capacity(lines.len());
        let mut rest = &lines[..];
        while !rest.is_empty() {
            let end = memchr2(b'\n', b'\r', rest).map_or(rest.len(), |at| at + 1);
            let (line, after) = rest.split_at(end);
            rest = after;
            let fate = self.judge(line, &mut passed);
            self.note_end(line, fate);
        }
        passed.freeze()
    }

    fn passes_all(&self, lines: &[u8]) -> bool {
        let may_count = self.swallows_usage && USAGE_KEY.find(lines).is_some();
        let may_tell = ERROR_KEY.find(lines).is_some() && self.tells(lines);
        let is_amid = self.is_swallowing || self.after_cr == Some(Fate::Swallowed);
        !(is_amid || may_count || may_tell)
    }

    /// Decides on one line, or on a part of one, and passes what may pass of it.
    fn judge(&mut self, line: &[u8], passed: &mut BytesMut) -> Fate {
        if line == b"\n"
            && let Some(fate) = self.after_cr
        {
            if fate == Fate::Passed {
                passed.extend_from_slice(line);
            }
            return fate;
        }
        if !self.is_inside_line {
            let is_blank = matches!(line, b"\n" | b"\r");
            let value = data_value(line);
            if std::mem::take(&mut self.is_swallowing) {
                if is_blank {
                    return Fate::Swallowed;
                }
                // A comment may come before the blank line.
                self.is_swallowing = value.is_none();
            }
            match value.map(classify) {
                Some(Some(EventKind::Usage)) if self.swallows_usage => {
                    self.is_swallowing = true;
                    return Fate::Swallowed;
                }
                Some(Some(EventKind::Error(_))) if self.tells(line) => {
                    passed.extend_from_slice(self.reworded(line).as_bytes());
                    return Fate::Passed;
                }
                _ => {}
            }
        }
        passed.extend_from_slice(line);
        Fate::Passed
    }

    fn note_end(&mut self, line: &[u8], fate: Fate) {
        if let Some(last) = line.last() {
            self.is_inside_line = !matches!(last, b'\n' | b'\r');
            self.after_cr = (*last == b'\r').then_some(fate);
        }
    }

    /// Whether something in it is not for clients.
    fn tells(&self, bytes: &[u8]) -> bool {
        self.secrets.iter().any(|secret| memmem::find(bytes, secret.as_bytes()).is_some())
            || self.renamed.as_ref().is_some_and(|renamed| renamed.is_in(bytes))
    }

    fn reworded(&self, line: &[u8]) -> String {
        let text = String::from_utf8_lossy(line).into_owned();
        let text = self.secrets.iter().fold(text, |text, secret| text.replace(secret, "(endpoint)"));
        match &self.renamed {
            Some(renamed) => renamed.in_json(&text),
            None => text,
        }
    }
}

/// What the event of one data line is; `None` where it can be neither counts nor an error.
fn classify(value: &[u8]) -> Option<EventKind> {
    let has = |key: &Finder<'_>| key.find(value).is_some();
    (has(&USAGE_KEY) || has(&ERROR_KEY)).then(|| classify_event(value).kind)
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
        let secrets = ["10.0.0.7:8000", "sk-1", ""].map(str::to_owned);
        let renamed = Renamed { upstream: "up:7b".into(), asked: "auto".into() };
        let mut filter = EventFilter::new(swallows_usage, secrets, Some(renamed));
        let mut lines = WholeLines::default();
        let mut passed = Vec::new();
        for chunk in chunks {
            passed.extend_from_slice(&filter.push(lines.push(Bytes::copy_from_slice(chunk))));
        }
        passed.extend_from_slice(&filter.push(lines.finish()));
        String::from_utf8(passed).unwrap()
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
        let mut filter = EventFilter::new(true, ["10.0.0.7:8000".to_owned()], None);
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

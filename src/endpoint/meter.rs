//! Metering a stream as it passes: when content begins, tokens, the finish, an error in band.
//!
//! Until content begins every event is read whole, since the first ones decide on fail-over. After that a
//! search for three keys decides whether an event is worth reading.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::answer::{EventFacts, EventKind, Timings, Usage, classify_event};
use super::sse::{Scanner, SseEvent};
use super::upstream_error::UpstreamError;

static USAGE_KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"usage\""));
static ERROR_WORD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("error"));
static FINISH_KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"finish_reason\""));

/// Observes one answer stream. The same bytes give the same readings however they are split.
#[derive(Debug, Default)]
pub struct StreamMeter {
    scanner: Scanner,
    tally: Tally,
}

#[derive(Debug, Default)]
struct Tally {
    has_content: bool,
    content_events: u64,
    is_finished: bool,
    /// The choices seen in the events that were read, and those that have ended; a bit for each.
    choices: u64,
    ended: u64,
    is_done: bool,
    usage: Option<Usage>,
    /// Where there is no usage: the prompt, and the completions of all choices that have ended.
    timed: Option<Usage>,
    timings: Option<Timings>,
    /// Boxed: hardly any stream has one, and every stream has room for it.
    error: Option<Box<UpstreamError>>,
}

impl StreamMeter {
    /// A meter at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Observes the next bytes.
    pub fn push(&mut self, chunk: &[u8]) {
        self.scanner.push(chunk, &mut |event| self.tally.observe(event));
    }

    /// Observes the end of the stream, which closes an open event.
    pub fn finish(&mut self) {
        self.scanner.finish(&mut |event| self.tally.observe(event));
    }

    /// Whether content has begun, before any error: from then on the answer belongs to the client.
    #[must_use]
    pub fn has_content(&self) -> bool {
        self.tally.has_content
    }

    /// Whether every choice seen gave its finish reason: the answer is whole even without `[DONE]`.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.tally.is_finished && self.tally.choices & !self.tally.ended == 0
    }

    /// Whether `[DONE]` came.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.tally.is_done
    }

    /// The first error in band. Without content before it, another endpoint may still answer.
    #[must_use]
    pub fn error(&self) -> Option<&UpstreamError> {
        self.tally.error.as_deref()
    }

    /// The latest token counts of the endpoint.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.tally.usage()
    }

    /// Completion tokens: the endpoint's count, else the events with content, which servers send one per
    /// token or so.
    #[must_use]
    pub fn completion_tokens(&self) -> u64 {
        self.tally.usage().map_or(self.tally.content_events, |usage| usage.completion_tokens)
    }

    /// Events with content.
    #[must_use]
    pub fn content_events(&self) -> u64 {
        self.tally.content_events
    }

    /// The endpoint's own clocks, of the choice that ended last.
    #[must_use]
    pub fn timings(&self) -> Option<Timings> {
        self.tally.timings
    }

    /// Whether the stream so far ends with a complete event, so that one of ours may follow.
    #[must_use]
    pub fn is_between_events(&self) -> bool {
        self.scanner.is_between_events()
    }
}

impl Tally {
    fn usage(&self) -> Option<Usage> {
        self.usage.or(self.timed)
    }

    fn observe(&mut self, event: SseEvent<'_>) {
        if self.is_done || self.error.is_some() {
            return;
        }
        match event {
            SseEvent::Comment => {}
            SseEvent::Done => self.is_done = true,
            SseEvent::Oversized => self.count_content(),
            SseEvent::Error(data) => self.error = Some(Box::new(UpstreamError::from_event(data))),
            SseEvent::Data(data) if self.has_content && !is_worth_reading(data) => self.count_content(),
            SseEvent::Data(data) => self.record(classify_event(data)),
        }
    }

    fn record(&mut self, facts: EventFacts) {
        match facts.kind {
            EventKind::Error(error) => self.error = Some(Box::new(error)),
            EventKind::Content => self.count_content(),
            EventKind::Finish => self.has_content = true,
            EventKind::Preamble | EventKind::Usage | EventKind::Other => {}
        }
        self.is_finished |= facts.finished;
        self.choices |= facts.choices;
        self.ended |= facts.ended;
        self.usage = facts.usage.or(self.usage);
        self.timings = facts.timings.or(self.timings);
        if let Some(choice) = facts.timed.filter(|_| facts.finished) {
            let earlier = self.timed.map_or(0, |earlier| earlier.completion_tokens);
            let completion_tokens = earlier + choice.completion_tokens;
            self.timed = Some(Usage { completion_tokens, ..choice });
        }
    }

    fn count_content(&mut self) {
        self.has_content = true;
        self.content_events += 1;
    }
}

fn is_worth_reading(data: &[u8]) -> bool {
    may_be_error(data) || [&USAGE_KEY, &FINISH_KEY].into_iter().any(|key| has_value(data, key))
}

/// Whether there may be an error in these bytes of a stream: `"error":…`, `"object":"error"`, `event: error` or a line
/// `error: …`.
pub(super) fn may_be_error(bytes: &[u8]) -> bool {
    ERROR_WORD.find_iter(bytes).any(|at| {
        let (before, after) = (&bytes[..at], &bytes[at + ERROR_WORD.needle().len()..]);
        match (before.strip_suffix(b"\""), after.strip_prefix(b"\"")) {
            (Some(before), Some(after)) => is_followed_by_value(after) || ends_with_object_key(before),
            _ if after.starts_with(b":") => matches!(before.last(), None | Some(b'\n' | b'\r')),
            _ => before.trim_ascii_end().ends_with(b"event:"),
        }
    })
}

fn ends_with_object_key(before: &[u8]) -> bool {
    let key = before.trim_ascii_end().strip_suffix(b":");
    key.is_some_and(|key| key.trim_ascii_end().ends_with(b"\"object\""))
}

/// Whether `data` has the key with another value than null. Inside a JSON string its quotes were escaped.
fn has_value(data: &[u8], key: &Finder<'_>) -> bool {
    key.find_iter(data).any(|at| is_followed_by_value(&data[at + key.needle().len()..]))
}

fn is_followed_by_value(after_key: &[u8]) -> bool {
    let value = after_key.trim_ascii_start().strip_prefix(b":");
    value.is_some_and(|value| !value.trim_ascii_start().starts_with(b"null"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Readings of a stream, taken after every chunk and compared at the end.
    fn meter<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> StreamMeter {
        let mut meter = StreamMeter::new();
        for chunk in chunks {
            meter.push(chunk);
        }
        meter.finish();
        meter
    }

    type Readings = (u64, Option<Usage>, bool, bool, bool, Option<String>);

    fn readings(meter: &StreamMeter) -> Readings {
        (
            meter.tally.content_events,
            meter.usage(),
            meter.has_content(),
            meter.is_finished(),
            meter.is_done(),
            meter.error().map(|error| error.message.clone()),
        )
    }

    const VLLM: &str = include_str!("../../tests/fixtures/wire/vllm-stream.txt");
    const VLLM_USAGE: &str = include_str!("../../tests/fixtures/wire/vllm-stream-usage-continuous.txt");
    const VLLM_TOOLS: &str = include_str!("../../tests/fixtures/wire/vllm-tool-required-stream.txt");
    const VLLM_SIGTERM: &str = include_str!("../../tests/fixtures/wire/vllm-sigterm-midstream.txt");
    const LLAMACPP: &str = include_str!("../../tests/fixtures/wire/llamacpp-stream-usage.txt");
    const LLAMACPP_TIMED: &str = include_str!("../../tests/fixtures/wire/llamacpp-stream.txt");
    const LLAMACPP_CHOICES: &str = include_str!("../../tests/fixtures/wire/llamacpp-n2-stream.txt");
    const LLAMACPP_KILLED: &str = include_str!("../../tests/fixtures/wire/llamacpp-killed-midstream.txt");

    fn stream_of(capture: &str) -> &[u8] {
        capture.split_once("\n\n").unwrap().1.as_bytes()
    }

    #[test]
    fn captured_streams_are_read_whatever_the_chunks() {
        let usage = |prompt_tokens, completion_tokens, cached_tokens| {
            Some(Usage { prompt_tokens, completion_tokens, cached_tokens })
        };
        let failure = "EngineCore encountered an issue. See stack trace (above) for the root cause.";
        let expected: [(&str, Readings); 8] = [
            (VLLM, (5, None, true, true, true, None)),
            (VLLM_USAGE, (3, usage(33, 3, None), true, true, true, None)),
            (VLLM_TOOLS, (4, None, true, true, true, None)),
            (VLLM_SIGTERM, (3, None, true, false, false, Some(failure.to_owned()))),
            (LLAMACPP, (5, usage(33, 5, Some(32)), true, true, true, None)),
            // Its `timings` count where there is no `usage`.
            (LLAMACPP_TIMED, (5, usage(33, 5, Some(32)), true, true, true, None)),
            (LLAMACPP_CHOICES, (7, usage(33, 6, Some(32)), true, true, true, None)),
            (LLAMACPP_KILLED, (3, None, true, false, false, None)),
        ];
        for (capture, expected) in expected {
            let stream = stream_of(capture);
            for size in [1, 7, 100, stream.len()] {
                let meter = meter(stream.chunks(size));
                assert_eq!(readings(&meter), expected, "chunks of {size}");
            }
        }
        let timings = meter([stream_of(LLAMACPP_TIMED)]).timings().unwrap();
        assert!(timings.completion.1.0 > 0.0 && (timings.completion.0.0 - 5.0).abs() < 1e-9);
        assert_eq!(meter([stream_of(VLLM)]).timings(), None);
        assert_eq!(meter([stream_of(VLLM)]).completion_tokens(), 5);
        assert_eq!(meter([stream_of(LLAMACPP)]).completion_tokens(), 5);
    }

    #[test]
    fn content_begins_with_the_first_event_that_says_something() {
        let mut meter = StreamMeter::new();
        for quiet in [
            ": OPENROUTER PROCESSING\n\n",
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
            "data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"日",
        ] {
            meter.push(quiet.as_bytes());
            assert!(!meter.has_content(), "{quiet}");
        }
        assert!(!meter.is_between_events());
        meter.push("\"}}]}\n\n".as_bytes());
        assert!(meter.has_content() && meter.is_between_events());
    }

    #[test]
    fn an_error_first_is_no_content_and_hides_what_follows() {
        // openclaw/clawrouter#101, also after comments.
        let stream = b": a\n\n: b\n\ndata: {\"error\":{\"message\":\"overloaded\",\"code\":503}}\n\ndata: {\"choices\":[{\"text\":\"x\"}]}\n\ndata: [DONE]\n\n";
        let meter = meter([stream.as_slice()]);
        assert_eq!(readings(&meter), (0, None, false, false, false, Some("overloaded".into())));
    }

    #[test]
    fn an_error_in_another_form_is_one_after_content_too() {
        let content = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
        for (error, message) in [
            ("data: {\"object\": \"error\",\"message\":\"died\"}\n\n", "died"),
            ("event: error\ndata: {\"message\":\"died\"}\n\n", "died"),
            ("event:error\ndata: oh\n\n", "the endpoint answered with status 502 and no message"),
        ] {
            let stream = format!("{content}{error}");
            for size in [1, 9, stream.len()] {
                let meter = meter(stream.as_bytes().chunks(size));
                assert_eq!(meter.error().map(|error| error.message.as_str()), Some(message), "{error}");
            }
        }
        let harmless = format!("event: errors\n{content}{content}");
        assert!(meter([harmless.as_bytes()]).error().is_none());
    }

    #[test]
    fn text_about_usage_and_errors_is_only_text() {
        let content = |text: &str| {
            let quoted = serde_json::Value::from(text);
            format!(
                "data: {{\"usage\":null,\"error\" : null,\"choices\":[{{\"delta\":{{\"content\":{quoted}}},\"finish_reason\":null}}]}}\n\n"
            )
        };
        let stream = [
            "a",
            "\"usage\":{\"prompt_tokens\":9}",
            "\"error\":{\"message\":\"x\"}",
            "\"finish_reason\":\"stop\"",
        ]
        .map(content)
        .concat();
        let meter = meter([stream.as_bytes()]);
        assert_eq!(readings(&meter), (4, None, true, false, false, None));
    }

    #[test]
    fn an_event_too_large_to_read_counts_as_content() {
        let mut meter = StreamMeter::new();
        meter.push(b"data: ");
        for _ in 0..5 {
            meter.push(&vec![b'x'; 1 << 18]);
        }
        assert!(meter.has_content());
        assert_eq!(meter.completion_tokens(), 1);
    }

    #[test]
    fn an_answer_is_whole_when_every_choice_has_ended() {
        let event = |index: u64, finish: &str| {
            format!(
                "data: {{\"choices\":[{{\"index\":{index},\"delta\":{{}},\"finish_reason\":{finish}}}]}}\n\n"
            )
        };
        for (events, is_whole) in [
            ([event(0, "null"), event(1, "null"), event(0, "\"stop\"")], false),
            ([event(0, "null"), event(1, "\"stop\""), event(0, "\"length\"")], true),
            ([event(0, "null"), event(0, "null"), event(1, "\"stop\"")], false),
            ([event(0, "null"), event(70, "\"stop\""), event(0, "\"stop\"")], true),
        ] {
            let events = events.concat();
            assert_eq!(meter([events.as_bytes()]).is_finished(), is_whole, "{events}");
        }
    }

    #[test]
    fn a_stream_that_only_finishes_is_an_answer() {
        let meter =
            meter([b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n".as_slice()]);
        assert_eq!(readings(&meter), (0, None, true, true, false, None));
    }

    proptest! {
        #[test]
        fn readings_do_not_depend_on_how_the_stream_is_split(
            which in 0..6_usize,
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let captures = [VLLM, VLLM_USAGE, VLLM_TOOLS, VLLM_SIGTERM, LLAMACPP, LLAMACPP_KILLED];
            let stream = stream_of(captures[which]);
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            at.extend([0, stream.len()]);
            at.sort_unstable();
            let split = meter(at.windows(2).map(|cut| &stream[cut[0]..cut[1]]));
            prop_assert_eq!(readings(&split), readings(&meter([stream])));
        }
    }
}

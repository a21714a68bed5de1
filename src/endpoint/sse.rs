//! An incremental scanner of server-sent events that only observes.
//!
//! The bytes go to the client as they came; this says what passed. Chunks may be split anywhere, inside a
//! UTF-8 character or between CR and LF: the reported events depend on the bytes alone. An event that lies
//! inside one chunk is not copied.

use memchr::memchr2;

/// Longest line and longest event that is kept for reading; larger ones are reported as opaque.
pub const EVENT_BYTES_MAX: usize = 1 << 20;

/// Capacity a stream keeps between events. More, left by one large event, is given back.
const KEPT_CAPACITY_BYTES: usize = 8 << 10;

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// What a [`Scanner`] saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SseEvent<'a> {
    /// A comment line, as servers send to keep a connection alive.
    Comment,
    /// A complete event: its `data` lines joined with LF.
    Data(&'a [u8]),
    /// The same of an event called `error`: no answer, whatever its data.
    Error(&'a [u8]),
    /// The event `[DONE]` that ends an OpenAI stream.
    Done,
    /// An event or line beyond [`EVENT_BYTES_MAX`], reported once, as soon as it is too large.
    Oversized,
}

/// The state of one event stream.
#[derive(Debug, Default)]
pub struct Scanner {
    /// The unfinished line that earlier chunks began.
    line: Vec<u8>,
    /// The `data` lines of the open event that earlier chunks or lines brought.
    data: Vec<u8>,
    open: Open,
    /// The open event is called `error`.
    is_error: bool,
    /// The unfinished line is too large: what is left of it is skipped.
    skipping: bool,
    /// The last byte was a CR, so an LF now belongs to it.
    after_cr: bool,
    /// A line has ended, so a byte-order mark may no longer come.
    begun: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Open {
    /// The open event has no `data` line yet.
    #[default]
    Empty,
    /// It has, in [`Scanner::data`].
    Data,
    /// It was too large and has been reported.
    Oversized,
}

impl Scanner {
    /// A scanner at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the next bytes of the stream and reports every event that they complete.
    pub fn push(&mut self, chunk: &[u8], on: &mut impl FnMut(SseEvent<'_>)) {
        let mut rest = chunk;
        if self.after_cr && !rest.is_empty() {
            self.after_cr = false;
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        // The single data line of the open event while it still lies in `chunk`.
        let mut held: Option<&[u8]> = None;
        while let Some(end) = memchr2(b'\n', b'\r', rest) {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            self.after_cr = rest[end] == b'\r' && after.is_empty();
            rest = if rest[end] == b'\r' { after.strip_prefix(b"\n").unwrap_or(after) } else { after };
            if self.skipping || !self.line.is_empty() {
                self.extend_line(line, on);
                self.end_kept_line(on);
            } else {
                self.end_line(line, &mut held, on);
            }
        }
        if let Some(value) = held {
            self.keep(value);
        }
        self.extend_line(rest, on);
    }

    /// Reports the event that the end of the stream leaves open, if there is one.
    ///
    /// openai-python drops such an event, openai-node reads it.
    pub fn finish(&mut self, on: &mut impl FnMut(SseEvent<'_>)) {
        if self.skipping || !self.line.is_empty() {
            self.end_kept_line(on);
        }
        self.end_line(b"", &mut None, on);
        // No LF comes any more.
        self.after_cr = false;
    }

    /// Whether the stream so far ends with a complete event, so that another may follow: not between CR and LF.
    #[must_use]
    pub fn is_between_events(&self) -> bool {
        self.line.is_empty() && !self.skipping && self.open == Open::Empty && !self.after_cr
    }

    /// Keeps the start of a line whose end has not come yet.
    fn extend_line(&mut self, part: &[u8], on: &mut impl FnMut(SseEvent<'_>)) {
        if self.skipping {
            return;
        }
        if self.line.len() + part.len() <= EVENT_BYTES_MAX {
            self.line.extend_from_slice(part);
            return;
        }
        self.skipping = true;
        let head_len = (BOM.len() + 1).saturating_sub(self.line.len()).min(part.len());
        self.line.extend_from_slice(&part[..head_len]);
        if !is_comment(self.without_bom(&self.line)) {
            self.report_oversized(on);
        }
        self.line.truncate(BOM.len() + 1);
    }

    /// Ends the line kept in `self.line`.
    fn end_kept_line(&mut self, on: &mut impl FnMut(SseEvent<'_>)) {
        let mut line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.skipping) {
            if is_comment(self.without_bom(&line)) {
                on(SseEvent::Comment);
            }
            self.begun = true;
        } else {
            let mut held = None;
            self.end_line(&line, &mut held, on);
            if let Some(value) = held {
                self.keep(value);
            }
        }
        line.clear();
        line.shrink_to(KEPT_CAPACITY_BYTES);
        self.line = line;
    }

    /// Ends a line that lies in one piece outside of `self`.
    fn end_line<'a>(
        &mut self,
        line: &'a [u8],
        held: &mut Option<&'a [u8]>,
        on: &mut impl FnMut(SseEvent<'_>),
    ) {
        let whole_len = line.len();
        let line = self.without_bom(line);
        self.begun = true;
        if line.is_empty() {
            self.end_event(held.take(), on);
        } else if is_comment(line) {
            on(SseEvent::Comment);
        } else if whole_len > EVENT_BYTES_MAX {
            *held = None;
            self.report_oversized(on);
        } else if let Some(value) = data_value(line).or_else(|| error_value(line)) {
            self.is_error |= line.starts_with(b"error");
            match (self.open, held.take()) {
                (Open::Empty, None) => *held = Some(value),
                (Open::Oversized, _) => {}
                (_, earlier) => {
                    if let Some(earlier) = earlier {
                        self.keep(earlier);
                    }
                    self.data.push(b'\n');
                    self.data.extend_from_slice(value);
                    if self.data.len() > EVENT_BYTES_MAX {
                        self.report_oversized(on);
                    }
                }
            }
        } else if names_error(line) {
            self.is_error = true;
        }
    }

    fn end_event(&mut self, held: Option<&[u8]>, on: &mut impl FnMut(SseEvent<'_>)) {
        let is_error = std::mem::take(&mut self.is_error);
        match (held, std::mem::take(&mut self.open)) {
            (Some(data), _) => report(data, is_error, on),
            (None, Open::Data) => report(&self.data, is_error, on),
            (None, Open::Empty | Open::Oversized) => {}
        }
        self.data.clear();
        self.data.shrink_to(KEPT_CAPACITY_BYTES);
    }

    /// Copies the first data line of an event that does not end in this chunk.
    fn keep(&mut self, value: &[u8]) {
        self.open = Open::Data;
        self.data.extend_from_slice(value);
    }

    fn report_oversized(&mut self, on: &mut impl FnMut(SseEvent<'_>)) {
        self.data = Vec::new();
        if self.open != Open::Oversized {
            self.open = Open::Oversized;
            on(SseEvent::Oversized);
        }
    }

    fn without_bom<'a>(&self, line: &'a [u8]) -> &'a [u8] {
        if self.begun { line } else { line.strip_prefix(BOM).unwrap_or(line) }
    }
}

fn is_comment(line: &[u8]) -> bool {
    line.first() == Some(&b':')
}

/// Whether the line names its event `error`.
pub(super) fn names_error(line: &[u8]) -> bool {
    line.strip_prefix(b"event:").is_some_and(|name| name.trim_ascii() == b"error")
}

/// The value of a `data` field; other fields mean nothing to an OpenAI stream.
pub(super) fn data_value(line: &[u8]) -> Option<&[u8]> {
    match line.strip_prefix(b"data")? {
        [] => Some(&[]),
        [b':', value @ ..] => Some(value.strip_prefix(b" ").unwrap_or(value)),
        _ => None,
    }
}

/// The value of a field `error`, in which llama.cpp servers up to the middle of 2025 sent what `event: error` and `data`
/// say elsewhere.
pub(super) fn error_value(line: &[u8]) -> Option<&[u8]> {
    line.strip_prefix(b"error:").map(|value| value.strip_prefix(b" ").unwrap_or(value))
}

fn report(data: &[u8], is_error: bool, on: &mut impl FnMut(SseEvent<'_>)) {
    on(match is_error {
        _ if data.starts_with(b"[DONE]") => SseEvent::Done,
        true => SseEvent::Error(data),
        false => SseEvent::Data(data),
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq)]
    enum Seen {
        Comment,
        Data(Vec<u8>),
        Done,
        Oversized,
        Error(Vec<u8>),
    }

    fn scan<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<Seen> {
        let mut seen = Vec::new();
        let mut on = |event: SseEvent<'_>| {
            seen.push(match event {
                SseEvent::Comment => Seen::Comment,
                SseEvent::Data(data) => Seen::Data(data[..data.len().min(200)].to_vec()),
                SseEvent::Done => Seen::Done,
                SseEvent::Oversized => Seen::Oversized,
                SseEvent::Error(data) => Seen::Error(data.to_vec()),
            });
        };
        let mut scanner = Scanner::new();
        for chunk in chunks {
            scanner.push(chunk, &mut on);
        }
        scanner.finish(&mut on);
        seen
    }

    #[test]
    fn a_field_called_error_is_an_error() {
        let stream = b"data: {}\n\nerror: {\"code\":400}\n\nerror\n\nerrors: x\n\ndata: [DONE]\n\n";
        let expected = [data("{}"), Seen::Error(br#"{"code":400}"#.to_vec()), Seen::Done];
        for size in [1, 7, stream.len()] {
            assert_eq!(scan(stream.chunks(size)), expected, "chunks of {size}");
        }
    }

    fn data(text: &str) -> Seen {
        Seen::Data(text.as_bytes().to_vec())
    }

    #[test]
    fn reads_the_forms_of_the_event_stream_format() {
        let stream: &[u8] = b"\xEF\xBB\xBF: hello\n\ndata: a\n\ndata:b\r\n\r\ndata:  c\r\rdata: 1\ndata\ndata: 2\n\nid: 7\nevent: x\n\n\n\ndatum: no\n\ndata: [DONE]\n\n";
        let expected = [Seen::Comment, data("a"), data("b"), data(" c"), data("1\n\n2"), Seen::Done];
        assert_eq!(scan([stream]), expected);
        assert_eq!(scan(stream.chunks(1)), expected);
    }

    #[test]
    fn json_text_that_looks_like_framing_stays_inside_its_event() {
        // BerriAI/litellm#30224: the escaped blank line is no blank line.
        let stream = b"data: {\"c\":\"a\\\"}\\n\\n{\\\"b data: x\"}\n\n";
        for size in [1, 7, stream.len()] {
            assert_eq!(scan(stream.chunks(size)), [data("{\"c\":\"a\\\"}\\n\\n{\\\"b data: x\"}")]);
        }
    }

    #[test]
    fn a_carriage_return_at_a_chunk_end_ends_the_line_at_once() {
        let mut scanner = Scanner::new();
        let mut events = 0;
        scanner.push(b"data: a\r", &mut |_| events += 1);
        scanner.push(b"\n", &mut |_| events += 1);
        assert_eq!(events, 0);
        scanner.push(b"\r", &mut |event| {
            assert_eq!(event, SseEvent::Data(b"a"));
            events += 1;
        });
        scanner.push(b"", &mut |_| events += 1);
        scanner.push(b"\ndata: b\n\n", &mut |event| {
            assert_eq!(event, SseEvent::Data(b"b"));
            events += 1;
        });
        assert_eq!(events, 2);
    }

    #[test]
    fn knows_whether_an_event_is_open() {
        let mut scanner = Scanner::new();
        for (chunk, between) in
            [("", true), ("data: a\n", false), ("\n", true), (": pi", false), ("ng\n", true), ("da", false)]
        {
            scanner.push(chunk.as_bytes(), &mut |_| ());
            assert_eq!(scanner.is_between_events(), between, "{chunk:?}");
        }
    }

    #[test]
    fn a_stream_that_ended_waits_for_no_line_feed() {
        for stream in ["data: [DONE]\r\r", "data: a\r", "\r"] {
            let mut scanner = Scanner::new();
            scanner.push(stream.as_bytes(), &mut |_| {});
            assert!(!scanner.is_between_events(), "{stream:?}: a line feed may come");
            scanner.finish(&mut |_| {});
            assert!(scanner.is_between_events(), "{stream:?}");
        }
    }

    #[test]
    fn an_open_event_is_reported_at_the_end_only() {
        assert_eq!(scan([b"data: a\n".as_slice()]), [data("a")]);
        assert_eq!(scan([b"data: a".as_slice()]), [data("a")]);
        assert_eq!(scan([b"".as_slice()]), []);
    }

    #[test]
    fn events_inside_one_chunk_are_not_copied() {
        let chunk = b": ping\n\ndata: one\n\ndata: two\n\n";
        let mut scanner = Scanner::new();
        scanner.push(chunk, &mut |event| {
            if let SseEvent::Data(data) = event {
                assert!(chunk.as_ptr_range().contains(&data.as_ptr()));
            }
        });
        assert_eq!(scanner.line.capacity() + scanner.data.capacity(), 0);
    }

    #[test]
    fn giant_lines_are_opaque_and_not_kept() {
        // A line, a comment, an event of many lines, and a stream without any newline.
        let giant = vec![b'x'; EVENT_BYTES_MAX + 1];
        let mut stream = b"data: ".to_vec();
        stream.extend_from_slice(&giant);
        stream.extend_from_slice(b"\ndata: more\n\ndata: a\n\n: ");
        stream.extend_from_slice(&giant);
        stream.extend_from_slice(b"\n\ndata: 0123456789\ndata: ");
        stream.extend_from_slice(&giant[..EVENT_BYTES_MAX - 6]);
        stream.extend_from_slice(b"\ndata: c\n\ndata: d\n\n");
        stream.extend_from_slice(&giant);
        let expected =
            [Seen::Oversized, data("a"), Seen::Comment, Seen::Oversized, data("d"), Seen::Oversized];
        for size in [stream.len(), 65_536, 4_093] {
            assert_eq!(scan(stream.chunks(size)), expected, "chunks of {size}");
        }

        let mut scanner = Scanner::new();
        let mut reports = 0;
        for _ in 0..64 {
            scanner.push(&giant, &mut |_| reports += 1);
            assert!(scanner.line.capacity() <= 2 * EVENT_BYTES_MAX);
        }
        assert_eq!(reports, 1);
        scanner.push(b"\n\n", &mut |_| reports += 1);
        assert!(scanner.line.capacity() + scanner.data.capacity() <= 2 * KEPT_CAPACITY_BYTES);
        assert_eq!(reports, 1);
    }

    fn piece() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            4 => "(data: ?|data:|: ping|id: 1|event: e|\u{feff}|d|[a-z{}\"é🙂]{0,6})".prop_map(String::into_bytes),
            4 => prop::sample::select(vec!["\n", "\r\n", "\r", "\n\n", "\r\n\r\n", "\r\r"])
                .prop_map(|end| end.as_bytes().to_vec()),
            1 => Just(b"data: [DONE]\n\n".to_vec()),
        ]
    }

    proptest! {
        #[test]
        fn events_do_not_depend_on_how_the_stream_is_split(
            pieces in prop::collection::vec(piece(), 0..40),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let stream = pieces.concat();
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            at.extend([0, stream.len()]);
            at.sort_unstable();
            let whole = scan([stream.as_slice()]);
            prop_assert_eq!(&scan(at.windows(2).map(|cut| &stream[cut[0]..cut[1]])), &whole);
            prop_assert_eq!(&scan(stream.chunks(1)), &whole);
        }
    }
}

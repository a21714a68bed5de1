//! Where requests begin and end in the bytes of a connection.
//!
//! hyper drops `Content-Length` from a request that has `Transfer-Encoding` as well, so a service cannot
//! tell that there were two lengths; a request with two lengths is how requests are smuggled past proxies
//! (RFC 9112, 6.1). This follows the same bytes hyper reads, keeps none of them, and says which request it was.
//!
//! It takes a superset of what hyper takes: whatever hyper refuses ends the connection anyway.

use memchr::memchr;

/// A line of a head longer than this is followed no further; hyper refuses such a head.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Follows the framing of the requests of one connection.
#[derive(Debug, Default)]
pub struct FramingTracker {
    place: Place,
    head: HeadSoFar,
    /// The start of a line of a head, where it came in pieces.
    partial: Vec<u8>,
    heads: u32,
    two_lengths: Option<u32>,
}

/// What the next byte is part of.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    Head,
    /// A body with so many bytes to come.
    Sized(u64),
    /// The line with a chunk's size; extensions follow the digits.
    ChunkSize { size: u64, in_digits: bool },
    /// A chunk with so many bytes to come.
    ChunkData(u64),
    /// The end of a chunk's line.
    ChunkEnd,
    /// The trailer section; whether the line has bytes so far.
    Trailer { in_line: bool },
    /// Not followed any more: hyper ends the connection after this request or at once.
    Lost,
}

/// What is known of a head that has begun.
#[derive(Debug, Default)]
struct HeadSoFar {
    has_request_line: bool,
    has_content_length: bool,
    content_length: Option<u64>,
    has_transfer_encoding: bool,
}

impl FramingTracker {
    /// Takes the next bytes of the connection.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = match self.place {
                Place::Head => self.head(bytes),
                Place::Sized(left) => {
                    let (left, rest) = skipped(left, bytes);
                    self.place = if left == 0 { Place::Head } else { Place::Sized(left) };
                    rest
                }
                Place::ChunkSize { size, in_digits } => self.chunk_size(size, in_digits, bytes),
                Place::ChunkData(left) => {
                    let (left, rest) = skipped(left, bytes);
                    self.place = if left == 0 { Place::ChunkEnd } else { Place::ChunkData(left) };
                    rest
                }
                Place::ChunkEnd => after_line(bytes).map_or(&[][..], |rest| {
                    self.place = Place::ChunkSize { size: 0, in_digits: true };
                    rest
                }),
                Place::Trailer { in_line } => self.trailer(in_line, bytes),
                Place::Lost => return,
            };
        }
    }

    /// Heads that have come whole.
    #[must_use]
    pub const fn heads(&self) -> u32 {
        self.heads
    }

    /// Whether a head has begun and not ended.
    #[must_use]
    pub const fn is_in_head(&self) -> bool {
        matches!(self.place, Place::Head) && (self.head.has_request_line || !self.partial.is_empty())
    }

    /// Number, from 0, of the first request with both `Content-Length` and `Transfer-Encoding`.
    #[must_use]
    pub const fn two_lengths(&self) -> Option<u32> {
        self.two_lengths
    }

    fn head<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let end = memchr(b'\n', bytes);
        let (piece, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
        if self.partial.len() + piece.len() > LINE_BYTES_MAX {
            self.place = Place::Lost;
            return &[];
        }
        if end.is_none() {
            self.partial.extend_from_slice(piece);
            return &[];
        }
        if self.partial.is_empty() {
            self.line(piece);
        } else {
            let mut line = std::mem::take(&mut self.partial);
            line.extend_from_slice(piece);
            self.line(&line);
        }
        &rest[1..]
    }

    /// One line of a head, without its LF.
    fn line(&mut self, line: &[u8]) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let head = &mut self.head;
        if line.is_empty() {
            // Empty lines before a request are passed over.
            if head.has_request_line {
                self.head_ended();
            }
        } else if !head.has_request_line {
            head.has_request_line = true;
        } else if let Some(value) = value_of(line, b"content-length") {
            head.has_content_length = true;
            head.content_length = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
        } else if value_of(line, b"transfer-encoding").is_some() {
            head.has_transfer_encoding = true;
        }
    }

    fn head_ended(&mut self) {
        let head = std::mem::take(&mut self.head);
        self.place = match (head.has_transfer_encoding, head.has_content_length) {
            (true, true) => {
                self.two_lengths.get_or_insert(self.heads);
                Place::Lost
            }
            (true, false) => Place::ChunkSize { size: 0, in_digits: true },
            (false, _) => match head.content_length {
                None | Some(0) => Place::Head,
                Some(length) => Place::Sized(length),
            },
        };
        self.heads = self.heads.saturating_add(1);
    }

    fn chunk_size<'a>(&mut self, mut size: u64, in_digits: bool, bytes: &'a [u8]) -> &'a [u8] {
        let mut n_digits = 0;
        if in_digits {
            for byte in bytes {
                let Some(digit) = char::from(*byte).to_digit(16) else { break };
                size = size.saturating_mul(16).saturating_add(u64::from(digit));
                n_digits += 1;
            }
        }
        let after = &bytes[n_digits..];
        let Some(rest) = after_line(after) else {
            self.place = Place::ChunkSize { size, in_digits: in_digits && after.is_empty() };
            return &[];
        };
        self.place = if size == 0 { Place::Trailer { in_line: false } } else { Place::ChunkData(size) };
        rest
    }

    fn trailer<'a>(&mut self, in_line: bool, bytes: &'a [u8]) -> &'a [u8] {
        let end = memchr(b'\n', bytes);
        let (piece, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
        let in_line = in_line || piece.iter().any(|byte| *byte != b'\r');
        let Some(rest) = rest.get(1..) else {
            self.place = Place::Trailer { in_line };
            return &[];
        };
        self.place = if in_line { Place::Trailer { in_line: false } } else { Place::Head };
        rest
    }
}

/// What is left of `left` bytes to come, and what comes after them.
fn skipped(left: u64, bytes: &[u8]) -> (u64, &[u8]) {
    let n = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
    (left - n as u64, &bytes[n..])
}

/// What comes after the next LF.
fn after_line(bytes: &[u8]) -> Option<&[u8]> {
    memchr(b'\n', bytes).map(|at| &bytes[at + 1..])
}

/// The value of a header line if it is the header `name`, which is in lower case.
fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (given, rest) = line.split_at_checked(name.len())?;
    let value = rest.strip_prefix(b":")?;
    given.eq_ignore_ascii_case(name).then_some(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: &str = "GET / HTTP/1.1\r\nhost: t\r\n\r\n";

    fn tracked(text: &str) -> FramingTracker {
        let mut tracker = FramingTracker::default();
        tracker.push(text.as_bytes());
        tracker
    }

    #[track_caller]
    fn assert_requests(text: &str, n: u32) {
        let tracker = tracked(text);
        assert_eq!((tracker.heads(), tracker.two_lengths()), (n, None), "{text:?}");
        assert_eq!((tracker.place, tracker.is_in_head()), (Place::Head, false), "{text:?}");
    }

    #[test]
    fn requests_end_where_their_framing_says() {
        assert_requests(&PLAIN.repeat(3), 3);
        assert_requests("GET / HTTP/1.1\nhost: t\n\nGET / HTTP/1.0\n\n", 2);
        assert_requests("\r\n\nGET / HTTP/1.1\r\n\r\n\r\n", 1);
        let body = "POST / HTTP/1.1\r\nContent-Length:\t 20 \r\n\r\nGET / HTTP/1.1\r\n\r\n\r\n";
        assert_requests(&format!("{body}{PLAIN}"), 2);
        assert_requests("POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n", 1);
        let chunked = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n\
                       5;a=\"b\"\r\n\r\n\r\n!\r\n1A \r\nabcdefghijklmnopqrstuvwxyz\r\n000\r\nx-sum: 1\r\n\r\n";
        assert_requests(&format!("{chunked}{chunked}{PLAIN}"), 3);
        assert_requests("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 1);
    }

    #[test]
    fn two_lengths_are_found_in_either_order() {
        for (first, second) in [
            ("Content-Length: 4", "Transfer-Encoding: chunked"),
            ("transfer-encoding:chunked", "CONTENT-LENGTH:4"),
            ("transfer-encoding: chunked", "content-length: +4x"),
        ] {
            let bad = format!("POST / HTTP/1.1\r\n{first}\r\nhost: t\r\n{second}\r\n\r\n");
            assert_eq!(tracked(&bad).two_lengths(), Some(0));
            let lines = bad.replace("\r\n", "\n");
            assert_eq!(tracked(&format!("{PLAIN}{PLAIN}{lines}")).two_lengths(), Some(2));
        }
    }

    #[test]
    fn names_that_only_resemble_are_left_alone() {
        let near = "x-content-length: 4\r\ncontent-lengths: 5\r\ntransfer-encoding-x: a\r\ncontent: 1\r\ntransfer: b";
        assert_requests(&format!("GET /content-length: HTTP/1.1\r\n{near}\r\n\r\n"), 1);
        // They may stand in a body or a trailer.
        let inner = "content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_requests(
            &format!("POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n{inner}{PLAIN}", inner.len()),
            2,
        );
        assert_requests(
            &format!("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n{inner}{PLAIN}"),
            2,
        );
    }

    #[test]
    fn a_head_that_has_begun_is_known() {
        let mut tracker = FramingTracker::default();
        for (bytes, is_in_head) in
            [("\r\n", false), ("G", true), ("ET / HTTP/1.1\r\n", true), ("a: b\r\n\r", true), ("\n", false)]
        {
            tracker.push(bytes.as_bytes());
            assert_eq!(tracker.is_in_head(), is_in_head, "after {bytes:?}");
        }
        let endless = "x".repeat(LINE_BYTES_MAX + 1);
        let tracker = tracked(&endless);
        assert_eq!((tracker.place, tracker.partial.len()), (Place::Lost, 0));
    }

    /// A legal request.
    fn request() -> impl Strategy<Value = String> {
        let end = prop_oneof![Just("\r\n"), Just("\n")];
        let headers = proptest::collection::vec(("[a-z][a-z-]{0,20}", "[ -~]{0,30}"), 0..6);
        let body = prop_oneof![
            Just((None, String::new())),
            "[ -~\r\n]{0,80}".prop_map(|body| (Some(format!("content-length: {}", body.len())), body)),
            proptest::collection::vec(("[ -~\r\n]{1,40}", "(;[a-z]{1,5}(=[a-z]{1,5})?)?"), 0..4).prop_map(
                |chunks| {
                    let text: String = chunks
                        .iter()
                        .map(|(data, extension)| format!("{:x}{extension}\r\n{data}\r\n", data.len()))
                        .collect();
                    (Some("Transfer-Encoding: chunked".to_owned()), format!("{text}0\r\nx-t: 1\r\n\r\n"))
                }
            ),
        ];
        (end, headers, body).prop_map(|(end, headers, (length, body))| {
            let mut lines = vec!["POST /v1/x HTTP/1.1".to_owned()];
            let is_free = |name: &str| name != "content-length" && name != "transfer-encoding";
            lines.extend(
                headers.into_iter().filter(|(name, _)| is_free(name)).map(|(n, v)| format!("{n}: {v}")),
            );
            lines.extend(length);
            lines.extend([String::new(), String::new()]);
            format!("{}{body}", lines.join(end))
        })
    }

    proptest! {
        #[test]
        fn how_bytes_are_split_changes_nothing(
            requests in proptest::collection::vec(request(), 1..5),
            cuts in proptest::collection::vec(1_usize..40, 1..60),
        ) {
            let text = requests.concat();
            let mut heads_at = Vec::new();
            let mut tracker = FramingTracker::default();
            let (mut rest, mut at) = (text.as_bytes(), 0);
            let mut cuts = cuts.into_iter().cycle();
            // Every request begins where the one before it ends.
            let mut starts: Vec<usize> = requests.iter().scan(0, |at, r| { *at += r.len(); Some(*at) }).collect();
            starts.pop();
            while !rest.is_empty() {
                let next_start = starts.iter().find(|start| **start > at).map_or(usize::MAX, |start| start - at);
                let len = cuts.next().unwrap_or(1).min(rest.len()).min(next_start);
                let (piece, after) = rest.split_at(len);
                tracker.push(piece);
                (rest, at) = (after, at + len);
                if starts.contains(&at) {
                    prop_assert!(tracker.place == Place::Head && !tracker.is_in_head());
                    heads_at.push(tracker.heads());
                }
            }
            prop_assert_eq!(tracker.heads() as usize, requests.len());
            prop_assert_eq!(heads_at, (1..requests.len() as u32).collect::<Vec<_>>());
            prop_assert_eq!(tracker.two_lengths(), None);
            prop_assert_eq!(tracker.place, Place::Head);
            let whole = tracked(&text);
            prop_assert_eq!((whole.heads(), whole.place), (tracker.heads(), tracker.place));
        }

        #[test]
        fn a_request_with_two_lengths_is_named_however_it_is_split(
            before in proptest::collection::vec(request(), 0..4),
            cuts in proptest::collection::vec(1_usize..40, 1..60),
        ) {
            let bad = "POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n";
            let text = format!("{}{bad}0\r\n\r\n{PLAIN}", before.concat());
            let mut tracker = FramingTracker::default();
            let mut rest = text.as_bytes();
            for cut in cuts.into_iter().cycle() {
                if rest.is_empty() { break }
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                tracker.push(piece);
                rest = after;
            }
            prop_assert_eq!(tracker.two_lengths(), Some(before.len() as u32));
        }

        #[test]
        fn any_bytes_are_followed_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut tracker = FramingTracker::default();
            tracker.push(&bytes);
            prop_assert!(tracker.partial.len() <= LINE_BYTES_MAX);
        }
    }
}

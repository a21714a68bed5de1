//! Passing a stream on in whole lines, so that one that is cut never leaves half an event with a client.
//!
//! Clients cannot use a line before its end, and servers write events whole: next to nothing is delayed.

use bytes::{Bytes, BytesMut};
use memchr::memrchr2;

/// Longest unfinished line that is held; a longer one passes as it comes.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Holds the unfinished line of one stream.
#[derive(Debug, Default)]
pub struct WholeLines {
    line: BytesMut,
}

impl WholeLines {
    /// Takes the next bytes of the stream and returns those that may be sent on, possibly none. Bytes that
    /// end with a line are not copied.
    pub fn push(&mut self, mut chunk: Bytes) -> Bytes {
        let end = memrchr2(b'\n', b'\r', &chunk).map_or(0, |last| last + 1);
        let rest = chunk.split_off(end);
        if self.line.len() + rest.len() > LINE_BYTES_MAX {
            return [&self.line.split()[..], &chunk, &rest].concat().into();
        }
        let ended = if chunk.is_empty() || self.line.is_empty() {
            chunk
        } else {
            self.line.extend_from_slice(&chunk);
            self.line.split().freeze()
        };
        self.line.extend_from_slice(&rest);
        ended
    }

    /// The end of the stream: what is still held.
    pub fn finish(&mut self) -> Bytes {
        self.line.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_is_held_until_it_is_complete() {
        let mut lines = WholeLines::default();
        let whole = Bytes::from_static(b"data: a\n\n");
        assert_eq!(lines.push(whole.clone()).as_ptr(), whole.as_ptr());
        assert_eq!(lines.push(Bytes::from_static(b"data: b\r\ndata: ")), "data: b\r\n");
        assert_eq!(lines.push(Bytes::from_static(b"half")), "");
        assert_eq!(lines.push(Bytes::from_static(b"\n\nx")), "data: half\n\n");
        assert_eq!(lines.finish(), "x");
    }

    #[test]
    fn giant_lines_are_not_held() {
        let mut lines = WholeLines::default();
        let giant = Bytes::from(vec![b'x'; LINE_BYTES_MAX]);
        assert_eq!(lines.push(Bytes::from_static(b"data: ")), "");
        assert_eq!(lines.push(giant.clone()).len(), LINE_BYTES_MAX + 6);
        assert_eq!(lines.push(giant).len(), 0);
        assert_eq!(lines.push(Bytes::from_static(b"y")).len(), LINE_BYTES_MAX + 1);
    }

    proptest! {
        #[test]
        fn every_byte_passes_in_order_and_nothing_passes_inside_a_line(
            stream in "[ab\n\r]{0,60}",
            size in 1..9_usize,
        ) {
            let mut lines = WholeLines::default();
            let mut passed = Vec::new();
            for chunk in stream.as_bytes().chunks(size) {
                let sent = lines.push(Bytes::copy_from_slice(chunk));
                prop_assert!(sent.is_empty() || sent.ends_with(b"\n") || sent.ends_with(b"\r"));
                passed.extend_from_slice(&sent);
            }
            passed.extend_from_slice(&lines.finish());
            prop_assert_eq!(passed, stream.as_bytes());
        }
    }
}

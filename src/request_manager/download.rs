//! How fast an answer in one piece came.

use http::{HeaderMap, header};
use tokio::time::Instant;

use crate::profiler::network::TRANSFER_MIN;
use crate::units::{Bytes, Seconds};

/// Clocks the body of an answer: from its first piece on, without that, to its last. Only where its length was told
/// before is it known to have been there whole; one that was made while it came tells the pace of its making.
#[derive(Debug, Clone, Copy)]
pub(super) struct Download {
    is_clean: bool,
    /// When the first piece came, and the last.
    span: Option<(Instant, Instant)>,
    n_bytes: usize,
}

impl Download {
    /// The body of an answer with this head.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        let length = length.and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
        // What is decoded here is not what came over the wire.
        let is_plain = !headers.contains_key(header::CONTENT_ENCODING);
        Self { is_clean: is_plain && Bytes(length) >= TRANSFER_MIN, span: None, n_bytes: 0 }
    }

    /// A piece of `n_bytes` came.
    pub(super) fn came(&mut self, n_bytes: usize, now: Instant) {
        match &mut self.span {
            Some((_, last)) => {
                *last = now;
                self.n_bytes += n_bytes;
            }
            None => self.span = Some((now, now)),
        }
    }

    /// Bytes and time, where they say something of the path.
    pub(super) fn seen(&self) -> Option<(Bytes, Seconds)> {
        let (first, last) = self.span.filter(|_| self.is_clean)?;
        Some((Bytes(self.n_bytes as f64), Seconds(last.duration_since(first).as_secs_f64())))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_first_piece_starts_the_clock_and_does_not_count() {
        let now = Instant::now();
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("600000"));
        let mut download = Download::of(&headers);
        assert_eq!(download.seen(), None);
        for n in 0..4 {
            download.came(150_000, now + n * Duration::from_millis(100));
        }
        let (bytes, time) = download.seen().unwrap();
        assert!((bytes.0 - 450_000.0).abs() < 1e-9 && (time.0 - 0.3).abs() < 1e-9);
    }

    #[test]
    fn small_compressed_and_unmeasured_bodies_say_nothing() {
        for (name, value) in [
            (header::CONTENT_LENGTH, "1000"),
            (header::TRANSFER_ENCODING, "chunked"),
            (header::CONTENT_LENGTH, "x"),
        ] {
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
            assert!(!Download::of(&headers).is_clean, "{value}");
        }
        let mut headers =
            HeaderMap::from_iter([(header::CONTENT_LENGTH, HeaderValue::from_static("600000"))]);
        assert!(Download::of(&headers).is_clean);
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert!(!Download::of(&headers).is_clean);
    }
}

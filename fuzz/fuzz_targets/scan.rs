//! What the scanner says of a stream in chunks.

use cema_router::endpoint::sse::{Scanner, SseEvent};

/// What a scanner reports of `chunks`, and whether it was between events at their end.
pub fn scan(chunks: &[&[u8]]) -> (Vec<(u8, Vec<u8>)>, bool) {
    let mut seen = Vec::new();
    let mut on = |event: SseEvent<'_>| {
        seen.push(match event {
            SseEvent::Comment => (0, Vec::new()),
            SseEvent::Data(data) => (1, data.to_vec()),
            SseEvent::Done => (2, Vec::new()),
            SseEvent::Oversized => (3, Vec::new()),
            SseEvent::Error(data) => (4, data.to_vec()),
        });
    };
    let mut scanner = Scanner::new();
    chunks.iter().for_each(|chunk| scanner.push(chunk, &mut on));
    let is_between = scanner.is_between_events();
    scanner.finish(&mut on);
    assert!(scanner.is_between_events());
    (seen, is_between)
}

//! One stream in chunks of many sizes, and what the scanner says of it.

use cema_router::endpoint::sse::{Scanner, SseEvent};

/// `stream` in chunks, the lengths of which `cuts` gives in turn, in `unit`s; 0 is an empty chunk.
pub fn cut<'a>(mut stream: &'a [u8], cuts: &[u8; 8], unit: usize) -> Vec<&'a [u8]> {
    let mut chunks = Vec::new();
    for len in cuts.iter().cycle().map(|len| usize::from(*len)) {
        let len = len * unit;
        let (chunk, rest) = stream.split_at(len.min(stream.len()));
        chunks.push(chunk);
        stream = rest;
        if cuts.iter().all(|len| *len == 0) {
            chunks.push(std::mem::take(&mut stream));
        }
        if stream.is_empty() {
            return chunks;
        }
    }
    unreachable!("`cycle` does not end")
}

/// What a scanner reports of `chunks`, and whether it was between events at their end.
pub fn scan(chunks: &[&[u8]]) -> (Vec<(u8, Vec<u8>)>, bool) {
    let mut seen = Vec::new();
    let mut on = |event: SseEvent<'_>| {
        seen.push(match event {
            SseEvent::Comment => (0, Vec::new()),
            SseEvent::Data(data) => (1, data.to_vec()),
            SseEvent::Done => (2, Vec::new()),
            SseEvent::Oversized => (3, Vec::new()),
        });
    };
    let mut scanner = Scanner::new();
    chunks.iter().for_each(|chunk| scanner.push(chunk, &mut on));
    let is_between = scanner.is_between_events();
    scanner.finish(&mut on);
    assert!(scanner.is_between_events());
    (seen, is_between)
}

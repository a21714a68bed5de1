//! A stream with one line or event beyond the scanner's limit: the same reports for every split.
//!
//! Input: eight bytes that say where to cut, one that says where the giant is, one that says by how much it is
//! beyond the limit or below it, then the stream around it. Apart from `sse_scanner`, since this one is slow.
#![no_main]

mod cut;
mod scan;

use cema_router::endpoint::sse::EVENT_BYTES_MAX;
use cut::cut;
use libfuzzer_sys::fuzz_target;
use scan::scan;

fuzz_target!(|data: &[u8]| {
    let Some((cuts, rest)) = data.split_first_chunk::<8>() else { return };
    let Some(([at, beyond], stream)) = rest.split_first_chunk::<2>() else { return };
    let at = usize::from(*at).min(stream.len());
    let giant_len = EVENT_BYTES_MAX - 128 + usize::from(*beyond);
    let stream = [&stream[..at], &vec![b'x'; giant_len], &stream[at..]].concat();
    let whole = scan(&[&stream]);
    // Chunks of few bytes where it matters, around the giant's ends, would cost too much everywhere else.
    let (head, tail) = (&stream[..at + 8], &stream[at + giant_len - 64..]);
    let mut chunks = cut(head, cuts, 1);
    chunks.extend(cut(&stream[head.len()..stream.len() - tail.len()], cuts, 4096));
    chunks.extend(cut(tail, cuts, 1));
    assert!(whole == scan(&chunks), "a split changes what is reported");
});

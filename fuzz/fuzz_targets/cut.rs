//! One stream in chunks of many sizes.

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

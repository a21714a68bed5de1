//! An event stream of any bytes in any chunks: the same readings for every split, no byte lost or moved, and an
//! echo that changes `model` alone.
//!
//! Input: eight bytes that say where to cut, then the stream.
#![no_main]

mod cut;
mod oracle;
mod scan;

use bytes::Bytes;
use cema_router::endpoint::echo::ModelEcho;
use cema_router::endpoint::meter::StreamMeter;
use cema_router::endpoint::whole_lines::WholeLines;
use cut::cut;
use libfuzzer_sys::fuzz_target;
use scan::scan;

const MODEL: &str = "cema/\"auto\"";
const MODEL_KEYS_MAX: usize = 8;

fuzz_target!(|data: &[u8]| {
    let Some((cuts, stream)) = data.split_first_chunk::<8>() else { return };
    let chunks = cut(stream, cuts, 1);
    assert_eq!(scan(&[stream]), scan(&chunks), "scanner");
    assert_eq!(meter(&[stream]), meter(&chunks), "meter");
    whole_lines(stream, &chunks);
    let echoed = echo(&chunks);
    assert_eq!(echo(&[stream]), echoed, "echo");
    assert_eq!(echoed, expected_echo(stream));
});

fn meter(chunks: &[&[u8]]) -> impl PartialEq + std::fmt::Debug {
    let mut meter = StreamMeter::new();
    chunks.iter().for_each(|chunk| meter.push(chunk));
    meter.finish();
    (
        (meter.has_content(), meter.is_finished(), meter.is_done(), meter.is_between_events()),
        meter.error().cloned(),
        meter.usage(),
        meter.completion_tokens(),
        meter.model().map(str::to_owned),
    )
}

fn whole_lines(stream: &[u8], chunks: &[&[u8]]) {
    let mut lines = WholeLines::default();
    let mut passed = Vec::new();
    for chunk in chunks {
        let sent = lines.push(Bytes::copy_from_slice(chunk));
        assert!(sent.is_empty() || sent.ends_with(b"\n") || sent.ends_with(b"\r"), "half a line passed");
        passed.extend_from_slice(&sent);
    }
    passed.extend_from_slice(&lines.finish());
    assert!(passed == stream, "bytes lost or moved");
}

fn echo(chunks: &[&[u8]]) -> Vec<u8> {
    let mut echo = ModelEcho::new(MODEL.into());
    let mut sent: Vec<u8> = chunks.iter().flat_map(|chunk| echo.push(chunk)).collect();
    sent.extend_from_slice(&echo.finish());
    sent
}

/// Line by line, from the specification of [`ModelEcho`]; what follows the last line end stays.
fn expected_echo(stream: &[u8]) -> Vec<u8> {
    let lines = stream.split_inclusive(|byte| matches!(byte, b'\n' | b'\r'));
    lines.flat_map(|line| expected_line(line).unwrap_or_else(|| line.to_vec())).collect()
}

fn expected_line(line: &[u8]) -> Option<Vec<u8>> {
    let value = line.strip_prefix(b"data:")?;
    let value = value.strip_prefix(b" ").unwrap_or(value);
    if !line.ends_with(b"\n") && !line.ends_with(b"\r") {
        return None;
    }
    let value = std::str::from_utf8(value).ok().filter(|value| value.contains("\"model\""))?;
    let head = &line[..line.len() - value.len()];
    let spliced = oracle::with_model(value, MODEL, MODEL_KEYS_MAX)?;
    // A name that is spelled with escapes stays as it is if it is the right one.
    let is_same = oracle::with_model(value, MODEL, 1) == Some(spliced.clone()) && names(value);
    Some(if is_same { line.to_vec() } else { [head, spliced.as_bytes()].concat() })
}

fn names(value: &str) -> bool {
    let object: Result<serde_json::Map<String, serde_json::Value>, _> = serde_json::from_str(value);
    object.is_ok_and(|object| object.get("model").is_some_and(|model| model == MODEL))
}

//! `response_model: echo`: answers name the model that the client asked for.
//!
//! Only the value of the top-level `model` changes; all other bytes pass as they came.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use memchr::{memchr2, memmem};

use super::json;
use super::sse::{EVENT_BYTES_MAX, data_value};

/// `model` keys of one answer that are rewritten; servers write one.
const MODEL_KEYS_MAX: usize = 8;

/// The whole answer `body` with `model` in place of the endpoint's name; as it is if it is no JSON object.
#[must_use]
pub fn echo_model(body: &Bytes, model: &str) -> Bytes {
    let spans = std::str::from_utf8(body).ok().and_then(|text| json::model_spans(text, MODEL_KEYS_MAX).ok());
    json::splice(body, &spans.unwrap_or_default(), model)
}

/// Rewrites the model name in a stream of server-sent events.
///
/// A line is held until it is complete, which a client must await as well; lines beyond
/// [`EVENT_BYTES_MAX`] pass unread. An event whose JSON spans several `data` lines keeps its name: no
/// server known writes such.
#[derive(Debug)]
pub struct ModelEcho {
    model: Arc<str>,
    line: BytesMut,
    is_passing: bool,
}

impl ModelEcho {
    /// Puts `model` into every event.
    #[must_use]
    pub fn new(model: Arc<str>) -> Self {
        Self { model, line: BytesMut::new(), is_passing: false }
    }

    /// Takes the next bytes of the stream and returns those that may be sent on, possibly none.
    pub fn push(&mut self, chunk: &[u8]) -> Bytes {
        let mut sent = BytesMut::with_capacity(self.line.len() + chunk.len());
        let mut rest = chunk;
        while let Some(end) = memchr2(b'\n', b'\r', rest) {
            let (line, after) = rest.split_at(end + 1);
            rest = after;
            if std::mem::take(&mut self.is_passing) {
                sent.extend_from_slice(line);
            } else if self.line.is_empty() {
                self.append_line(line, &mut sent);
            } else {
                self.line.extend_from_slice(line);
                let line = self.line.split();
                self.append_line(&line, &mut sent);
            }
        }
        if self.is_passing || self.line.len() + rest.len() > EVENT_BYTES_MAX {
            self.is_passing = true;
            sent.extend_from_slice(&self.line.split());
            sent.extend_from_slice(rest);
        } else {
            self.line.extend_from_slice(rest);
        }
        sent.freeze()
    }

    /// The end of the stream: what is still held, unread, since a client drops an event that is not closed.
    pub fn finish(&mut self) -> Bytes {
        self.line.split().freeze()
    }

    fn append_line(&self, line: &[u8], sent: &mut BytesMut) {
        let Some(value) = data_value(line).filter(|value| memmem::find(value, b"\"model\"").is_some()) else {
            sent.extend_from_slice(line);
            return;
        };
        let head_len = line.len() - value.len();
        sent.extend_from_slice(&line[..head_len]);
        sent.extend_from_slice(&echo_model(&Bytes::copy_from_slice(value), &self.model));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &str = include_str!("../../tests/fixtures/wire/vllm-stream-usage-continuous.txt");

    fn echo<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> String {
        let mut echo = ModelEcho::new("cema/auto".into());
        let mut sent: Vec<u8> = chunks.into_iter().flat_map(|chunk| echo.push(chunk)).collect();
        sent.extend_from_slice(&echo.finish());
        String::from_utf8(sent).unwrap()
    }

    #[test]
    fn a_body_changes_in_its_model_only() {
        let body = Bytes::from_static(
            br#"{"id":1.0,"model" : "qwen2.5:7b","x":{"model":"in"},"seed":18446744073709551617}"#,
        );
        assert_eq!(
            echo_model(&body, "cema-auto"),
            r#"{"id":1.0,"model" : "cema-auto","x":{"model":"in"},"seed":18446744073709551617}"#
        );
        for other in ["<html>\"model\"</html>", "{\"choices\":[]}", "null", "{\"model\":\"cema-auto\"}"] {
            assert_eq!(echo_model(&Bytes::from(other), "cema-auto"), other);
        }
    }

    #[test]
    fn every_event_names_the_model_asked_for() {
        // BerriAI/litellm#5569, router-for-me/CLIProxyAPI#3965.
        let stream = STREAM.split_once("\n\n").unwrap().1;
        let expected = stream.replace("\"smollm2-135m-instruct\"", "\"cema/auto\"");
        assert_eq!(expected.matches("cema/auto").count(), 5);
        for size in [1, 9, 300, stream.len()] {
            assert_eq!(echo(stream.as_bytes().chunks(size)), expected, "chunks of {size}");
        }
        let crlf = stream.replace('\n', "\r\n");
        assert_eq!(echo(crlf.as_bytes().chunks(5)), expected.replace('\n', "\r\n"));
    }

    #[test]
    fn giant_lines_pass_unread_and_are_not_held() {
        let mut echo = ModelEcho::new("m".into());
        let giant = vec![b'x'; EVENT_BYTES_MAX];
        assert_eq!(echo.push(b"data: ").len(), 0);
        assert_eq!(echo.push(&giant).len(), EVENT_BYTES_MAX + 6);
        assert_eq!(echo.push(&giant).len(), EVENT_BYTES_MAX);
        assert_eq!(echo.push(b"\ndata: {\"model\":\"a\"}\n"), "\ndata: {\"model\":\"m\"}\n");
    }

    proptest! {
        #[test]
        fn streams_without_a_model_pass_byte_for_byte(
            stream in "(data: |\\{\"model\":|\n|\r|: ping|[a-z\"é🙂]){0,30}",
            size in 1..20_usize,
        ) {
            prop_assume!(!stream.contains('}'));
            prop_assert_eq!(echo(stream.as_bytes().chunks(size)), stream);
        }
    }
}

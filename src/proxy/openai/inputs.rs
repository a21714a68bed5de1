//! The `prompt` of a text completion and the `input` of an embedding: a string, token ids, or an array of either.

use super::prompt::{PromptSize, push_tail};
use crate::endpoint::json;

/// What is read of `prompt` or `input`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Inputs<'a> {
    /// Prompts; a flat array of token ids is one.
    pub(super) count: usize,
    /// Size of all of them.
    pub(super) size: PromptSize,
    /// Size of the longest one.
    pub(super) longest: PromptSize,
    /// Inside of the last string, escaped.
    last_text: Option<&'a str>,
}

impl<'a> Inputs<'a> {
    /// Reads them; `None` if `raw` is neither a string nor an array. Elements of other types are the endpoint's
    /// to judge and count as prompts without text.
    pub(super) fn read(raw: &'a str) -> Option<Self> {
        let mut inputs = Self::default();
        if let Some(text) = json::string_body(raw) {
            inputs.add_text(text);
            return Some(inputs);
        }
        let mut ids = PromptSize::default();
        json::elements(raw, |element| match element.as_bytes()[0] {
            b'"' => inputs.add_text(json::string_body(element).unwrap_or_default()),
            b'[' => inputs.add(ids_in(element)),
            b'-' | b'0'..=b'9' => ids.token_ids += 1,
            _ => inputs.add(PromptSize::default()),
        })
        .ok()?;
        if ids.token_ids > 0 {
            inputs.add(ids);
        }
        Some(inputs)
    }

    /// The last `bytes_max` of the last string; empty if there is none.
    pub(super) fn last_text(&self, bytes_max: usize) -> String {
        let mut text = String::new();
        push_tail(&mut text, self.last_text.unwrap_or_default(), bytes_max);
        text
    }

    fn add_text(&mut self, text: &'a str) {
        let mut size = PromptSize::default();
        size.add_raw(text);
        self.last_text = Some(text);
        self.add(size);
    }

    fn add(&mut self, size: PromptSize) {
        self.count += 1;
        self.size.add(size);
        if size.tokens() > self.longest.tokens() {
            self.longest = size;
        }
    }
}

fn ids_in(ids: &str) -> PromptSize {
    let mut size = PromptSize::default();
    // An error here is no array: it has no ids.
    _ = json::elements(ids, |_| size.token_ids += 1);
    size
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prompts, tokens of all and of the longest (ASCII: a quarter per byte), tail of the last text.
    fn read(raw: &str) -> Option<(usize, f64, f64, String)> {
        let inputs = Inputs::read(raw)?;
        Some((inputs.count, inputs.size.tokens().get(), inputs.longest.tokens().get(), inputs.last_text(4)))
    }

    #[test]
    fn every_form_of_the_api_is_read() {
        for (raw, expected) in [
            (r#""12345678""#, (1, 2.0, 2.0, "5678")),
            (r#"["1234","12345678","12"]"#, (3, 3.5, 2.0, "12")),
            ("[1, 2,3]", (1, 3.0, 3.0, "")),
            ("[[1,2],[3,4,5],[]]", (3, 5.0, 3.0, "")),
            (r#"["\ud800x",[1]]"#, (2, 3.25, 2.25, "\u{fffd}x")),
            ("[]", (0, 0.0, 0.0, "")),
            (r#"[{"image":"data:"},null]"#, (2, 0.0, 0.0, "")),
        ] {
            let (count, all, longest, text) = expected;
            assert_eq!(read(raw), Some((count, all, longest, text.to_owned())), "{raw}");
        }
        for wrong in ["null", "7", "true", "{}"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}

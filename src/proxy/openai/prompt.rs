//! The size of a prompt and the tail of its text, read from raw JSON strings.

use crate::endpoint::json;
use crate::units::Tokens;

/// ASCII bytes per token: the rule of thumb of byte-pair vocabularies on English text and code.
const ASCII_BYTES_PER_TOKEN: f64 = 4.0;
/// Tokens per character of two UTF-8 bytes (Latin accents, Greek, Cyrillic, Hebrew, Arabic).
const TOKENS_PER_2_BYTE_CHAR: f64 = 0.5;
/// Tokens per character of three UTF-8 bytes (Chinese, Japanese, Korean, Indic scripts).
const TOKENS_PER_3_BYTE_CHAR: f64 = 1.0;
/// Tokens per character of four UTF-8 bytes (emoji, rare ideographs).
const TOKENS_PER_4_BYTE_CHAR: f64 = 2.0;
/// Role and separators that a chat template puts around each message.
const TOKENS_PER_MESSAGE: f64 = 4.0;
/// The start of the answer that a chat template appends.
const TOKENS_PER_REQUEST: f64 = 3.0;
/// An image of about 1024 × 1024 pixels at OpenAI's high detail.
const TOKENS_PER_IMAGE: f64 = 765.0;

/// Raw bytes that one decoded byte can take (`\u0041`), and the most an escape can straddle a cut.
const RAW_BYTES_PER_DECODED_MAX: usize = 6;
const ESCAPE_SLACK_BYTES: usize = 16;

/// How much text a prompt holds, by what its characters cost in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromptSize {
    /// Messages.
    pub messages: usize,
    /// Image parts; their data is not text.
    pub images: usize,
    /// Tokens the client counted itself by sending their ids.
    pub token_ids: usize,
    /// Characters that take one, two, three and four bytes in UTF-8.
    pub chars_by_width: [usize; 4],
}

impl PromptSize {
    /// Adds the text of a JSON value as it stands, or inside of a JSON string, escapes decoded.
    pub(super) fn add_raw(&mut self, raw: &str) {
        let [ascii, two, three, four] = &mut self.chars_by_width;
        if raw.is_ascii() {
            *ascii += raw.len();
        } else {
            for byte in raw.bytes() {
                *ascii += usize::from(byte < 0x80);
                *two += usize::from(byte & 0xE0 == 0xC0);
                *three += usize::from(byte & 0xF0 == 0xE0);
                *four += usize::from(byte & 0xF8 == 0xF0);
            }
        }
        let mut rest = raw;
        while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
            let escape = &rest[at..];
            let Some(unit) = json::unicode_escape(escape) else {
                *ascii = ascii.saturating_sub(1);
                // The escaped character is ASCII in valid JSON; `get` keeps the cut on a boundary.
                rest = escape.get(2..).unwrap_or_default();
                continue;
            };
            *ascii = ascii.saturating_sub(6);
            match unit {
                0..0x80 => *ascii += 1,
                0x80..0x800 => *two += 1,
                // A pair is one character: counted at its first half.
                0xD800..0xDC00 => *four += 1,
                0xDC00..0xE000 => {}
                _ => *three += 1,
            }
            rest = &escape[6..];
        }
    }

    /// Adds another prompt.
    pub(super) fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.images += other.images;
        self.token_ids += other.token_ids;
        for (chars, more) in self.chars_by_width.iter_mut().zip(other.chars_by_width) {
            *chars += more;
        }
    }

    /// The text in UTF-8 bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.chars_by_width.iter().zip(1..).map(|(chars, width)| chars * width).sum()
    }

    /// Estimated prompt length, before an endpoint counts it: a quarter token per ASCII byte, ½, 1 and 2
    /// per character of two, three and four bytes, 1 per token id, 765 per image; with messages 4 for each and
    /// 3 for the request.
    ///
    /// An estimate, not a bound: vocabularies differ by a third either way.
    #[must_use]
    pub fn tokens(&self) -> Tokens {
        let request = if self.messages > 0 { TOKENS_PER_REQUEST } else { 0.0 };
        self.tokens_so_far() + Tokens(request)
    }

    /// The same of the beginning of a prompt: without the start of the answer.
    #[expect(clippy::cast_precision_loss, reason = "a prompt is far below 2^52 characters")]
    pub(super) fn tokens_so_far(&self) -> Tokens {
        let [ascii, two, three, four] = self.chars_by_width.map(|chars| chars as f64);
        let text = ascii / ASCII_BYTES_PER_TOKEN
            + two * TOKENS_PER_2_BYTE_CHAR
            + three * TOKENS_PER_3_BYTE_CHAR
            + four * TOKENS_PER_4_BYTE_CHAR;
        Tokens(
            text + self.token_ids as f64
                + self.messages as f64 * TOKENS_PER_MESSAGE
                + self.images as f64 * TOKENS_PER_IMAGE,
        )
    }
}

/// Appends the last `max_bytes` (or fewer, on a character boundary) of the string with inside `body`.
///
/// Costs no more than the tail, however long the string is.
pub(super) fn push_tail(text: &mut String, body: &str, max_bytes: usize) {
    let raw_bytes_max = RAW_BYTES_PER_DECODED_MAX * max_bytes + ESCAPE_SLACK_BYTES;
    let mut start = body.len().saturating_sub(raw_bytes_max);
    if start > 0 {
        start = ceil_char_boundary(body, start);
        // Inside `\n` the cut would turn text into an escape or an escape into text: step over it. Inside
        // `\uXXXX` it leaves digits at the front, which the slack keeps out of the tail.
        let backslashes = body[..start].bytes().rev().take_while(|byte| *byte == b'\\').count();
        start = ceil_char_boundary(body, start + backslashes % 2);
    }
    text.push_str(&json::unescape(&body[start..]));
    keep_tail(text, max_bytes);
}

/// Drops the front of `text` beyond `max_bytes`.
fn keep_tail(text: &mut String, max_bytes: usize) {
    if text.len() > max_bytes {
        text.drain(..ceil_char_boundary(text, text.len() - max_bytes));
    }
}

fn ceil_char_boundary(text: &str, at: usize) -> usize {
    (at..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn size_of(raw: &str) -> PromptSize {
        let mut size = PromptSize::default();
        size.add_raw(raw);
        size
    }

    #[test]
    fn characters_are_counted_as_they_decode() {
        assert_eq!(size_of(r#"ab\n\"\\ \u0041"#).chars_by_width, [7, 0, 0, 0]);
        assert_eq!(size_of("aé日🙂").chars_by_width, [1, 1, 1, 1]);
        assert_eq!(size_of(r"a\u00e9\u65e5\ud83d\ude42").chars_by_width, [1, 1, 1, 1]);
        assert_eq!(size_of("aé日🙂").bytes(), 10);
    }

    #[test]
    fn tokens_follow_the_stated_rule() {
        let size = PromptSize { messages: 2, images: 1, token_ids: 7, chars_by_width: [40, 6, 5, 2] };
        // 10 + 3 + 5 + 4 text, 7 ids, 2 × 4 messages, 3 request, 765 image.
        assert!((size.tokens().get() - 805.0).abs() < 1e-12);
        assert!((size_of("no template").tokens().get() - 2.75).abs() < 1e-12);
    }

    #[test]
    fn the_tail_of_a_long_string_is_exact_wherever_the_cut_falls() {
        for unit in [r"\\", r"\n", r"\u0041", r"\ud83d\ude42", "é", "🙂", r"\\n", "a"] {
            for pad in 0..14 {
                let raw = format!("{}{}", "x".repeat(pad), unit.repeat(400));
                let whole = json::unescape(&raw).into_owned();
                let mut tail = String::new();
                push_tail(&mut tail, &raw, 64);
                assert!(whole.ends_with(&tail) && (61..=64).contains(&tail.len()), "{unit} {pad} {tail}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_tail_is_a_suffix_of_the_text(text in ".{0,300}", max_bytes in 1..40_usize) {
            let quoted = json::quote(&text);
            let body = json::string_body(&quoted).unwrap();
            let mut tail = String::new();
            push_tail(&mut tail, body, max_bytes);
            prop_assert!(text.ends_with(&tail));
            prop_assert!(tail.len() <= max_bytes && tail.len() + 3 >= max_bytes.min(text.len()));
            prop_assert_eq!(size_of(body).bytes(), text.len());
        }
    }
}

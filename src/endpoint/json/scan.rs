//! Finding where JSON values end, without reading what they hold.
//!
//! Accepts what RFC 8259 has as JSON and nothing else. Strings, which most bytes of a prompt or an answer are
//! part of, are crossed at the speed of a memory search. Iterative: depth cannot exhaust the stack.

use memchr::memchr2;

use super::unescape;

/// Bytes of a string that are looked at a word at a time before a search is worth its start.
const SHORT_STRING: usize = 32;

/// A place in a JSON text. Where a step is not possible (`None`) the text is not what was expected there, and the
/// cursor is of no further use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// At the start of `text`.
    pub(crate) const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Whether the next value is an array.
    pub(crate) fn is_at_array(&mut self) -> bool {
        self.skip_space();
        self.peek() == Some(b'[')
    }

    /// Whether the next value is an object.
    pub(crate) fn is_at_object(&mut self) -> bool {
        self.skip_space();
        self.peek() == Some(b'{')
    }

    /// Steps over an object; `on` gets each key, decoded (lone surrogates become U+FFFD), and steps over its value.
    pub(crate) fn object(&mut self, mut on: impl FnMut(&str, &mut Self) -> Option<()>) -> Option<()> {
        self.sequence(Bracket::Object, |cursor| {
            let (key, is_escaped) = cursor.key()?;
            if is_escaped { on(&unescape(key), cursor) } else { on(key, cursor) }
        })
    }

    /// Steps over an array; `on` steps over each element.
    pub(crate) fn array(&mut self, on: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.sequence(Bracket::Array, on)
    }

    fn sequence(&mut self, bracket: Bracket, mut one: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        if !self.takes(bracket.opening()) {
            return None;
        }
        if self.takes(bracket.closing()) {
            return Some(());
        }
        loop {
            one(self)?;
            if !self.takes(b',') {
                return self.takes(bracket.closing()).then_some(());
            }
        }
    }

    /// Steps over white space and then over `byte`, if that comes next.
    fn takes(&mut self, byte: u8) -> bool {
        self.skip_space();
        let comes_next = self.peek() == Some(byte);
        self.at += usize::from(comes_next);
        comes_next
    }

    /// Steps over white space and the value behind it; `None` if there is none.
    pub(crate) fn value(&mut self) -> Option<&'a str> {
        self.skip_space();
        let start = self.at;
        self.skip_value()?;
        self.text.get(start..self.at)
    }

    /// Steps over white space and the object key behind it, with its colon. The key as it is written, without its
    /// quotes, and whether it has escapes.
    fn key(&mut self) -> Option<(&'a str, bool)> {
        self.skip_space();
        let start = self.at + 1;
        let is_escaped = self.skip_string()?;
        let key = self.text.get(start..self.at - 1)?;
        self.takes(b':').then_some((key, is_escaped))
    }

    /// Whether nothing but white space is left.
    pub(crate) fn is_at_end(mut self) -> bool {
        self.skip_space();
        self.at == self.text.len()
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn skip_value(&mut self) -> Option<()> {
        match self.peek()? {
            b'{' | b'[' => self.skip_nested(),
            _ => self.skip_scalar(),
        }
    }

    fn skip_nested(&mut self) -> Option<()> {
        let mut nesting = Nesting::default();
        loop {
            let bracket = match self.peek()? {
                b'{' => Some(Bracket::Object),
                b'[' => Some(Bracket::Array),
                _ => None,
            };
            match bracket {
                Some(bracket) => {
                    self.at += 1;
                    if !self.takes(bracket.closing()) {
                        nesting.open(bracket);
                        self.skip_to_element(bracket)?;
                        continue;
                    }
                }
                None => self.skip_scalar()?,
            }
            // Behind a value: everything that ends here ends, until one has another element.
            loop {
                let Some(bracket) = nesting.innermost() else { return Some(()) };
                if self.takes(b',') {
                    self.skip_to_element(bracket)?;
                    break;
                }
                if !self.takes(bracket.closing()) {
                    return None;
                }
                nesting.close();
            }
        }
    }

    /// From behind a bracket or comma to the value that comes next.
    fn skip_to_element(&mut self, bracket: Bracket) -> Option<()> {
        if bracket == Bracket::Object {
            self.key()?;
        }
        self.skip_space();
        Some(())
    }

    fn skip_scalar(&mut self) -> Option<()> {
        match self.peek()? {
            b'"' => self.skip_string().map(|_| ()),
            b't' => self.skip_word("true"),
            b'f' => self.skip_word("false"),
            b'n' => self.skip_word("null"),
            _ => self.skip_number(),
        }
    }

    fn skip_word(&mut self, word: &str) -> Option<()> {
        self.text.get(self.at..)?.starts_with(word).then(|| self.at += word.len())
    }

    /// Steps over a string and says whether it has escapes.
    #[inline]
    fn skip_string(&mut self) -> Option<bool> {
        let inside = self.text.as_bytes().get(self.at..)?.strip_prefix(b"\"")?;
        // Most are keys and short values.
        let length = plain_start(inside);
        if inside.get(length) == Some(&b'"') {
            self.at += length + 2;
            return Some(false);
        }
        self.skip_long_string(&inside[length..])
    }

    /// From `rest`, inside of a string, to behind it; whether there are escapes on the way. Out of line: short strings
    /// would pay for its frame.
    #[inline(never)]
    fn skip_long_string(&mut self, mut rest: &[u8]) -> Option<bool> {
        let mut is_escaped = false;
        let mut length = long_plain_length(rest);
        loop {
            rest = match &rest[length..] {
                [b'"', after @ ..] => {
                    self.at = self.text.len() - after.len();
                    return Some(is_escaped);
                }
                escape @ [b'\\', ..] => &escape[escape_length(escape)?..],
                _ => return None,
            };
            is_escaped = true;
            length = plain_length(rest);
        }
    }

    fn skip_number(&mut self) -> Option<()> {
        self.at += usize::from(self.peek() == Some(b'-'));
        // No zero before another digit.
        if let (b'0', 2..) = self.skip_digits()? {
            return None;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.skip_digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            self.skip_digits()?;
        }
        Some(())
    }

    /// Steps over digits, at least one; the first one and how many.
    fn skip_digits(&mut self) -> Option<(u8, usize)> {
        let rest = self.text.as_bytes().get(self.at..)?;
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        (count > 0).then(|| (rest[0], count))
    }
}

/// A word with `byte` at all its places.
const fn all(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// Where a word, the first byte lowest, has bytes that are no plain part of a string (a quote, a backslash, a control
/// character): the highest bit of each. Behind the first of them there may be more bits than such bytes.
const fn specials(word: u64) -> u64 {
    // A byte below what is taken from it borrows from its highest bit, and perhaps from the bytes behind it.
    let borrowed = word.wrapping_sub(all(0x20))
        | (word ^ all(b'"')).wrapping_sub(all(1))
        | (word ^ all(b'\\')).wrapping_sub(all(1));
    borrowed & !word & all(0x80)
}

/// How many bytes of the inside of a string precede the first that is no plain part of it, as far as a few words go.
#[inline]
fn plain_start(rest: &[u8]) -> usize {
    let (words, _) = rest[..rest.len().min(SHORT_STRING)].as_chunks();
    for (word, length) in words.iter().zip((0..).step_by(8)) {
        let specials = specials(u64::from_le_bytes(*word));
        if specials != 0 {
            return length + specials.trailing_zeros() as usize / 8;
        }
    }
    8 * words.len()
}

/// How many bytes of the inside of a string precede the first that is no plain part of it, if there is one.
fn plain_length(rest: &[u8]) -> usize {
    let start = plain_start(rest);
    match rest.get(start) {
        Some(b'"' | b'\\') => start,
        _ => start + long_plain_length(&rest[start..]),
    }
}

/// The same where there is much to come; 0 where a control character comes.
fn long_plain_length(rest: &[u8]) -> usize {
    let plain = &rest[..memchr2(b'"', b'\\', rest).unwrap_or(rest.len())];
    // Without an early exit, so that it is done in strides.
    let least = plain.iter().fold(u8::MAX, |least, byte| least.min(*byte));
    if least < 0x20 { 0 } else { plain.len() }
}

/// Length of the escape at the start of `rest`.
fn escape_length(rest: &[u8]) -> Option<usize> {
    match rest.get(1)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(2),
        b'u' => rest.get(2..6)?.iter().all(u8::is_ascii_hexdigit).then_some(6),
        _ => None,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bracket {
    Array,
    Object,
}

impl Bracket {
    const fn opening(self) -> u8 {
        match self {
            Self::Array => b'[',
            Self::Object => b'{',
        }
    }

    const fn closing(self) -> u8 {
        match self {
            Self::Array => b']',
            Self::Object => b'}',
        }
    }
}

/// The brackets that are open, a bit for each: 1 = object, the lowest one is the innermost.
#[derive(Debug, Default)]
struct Nesting {
    depth: usize,
    innermost: u64,
    /// Of what is open outside of the innermost 64.
    outer: Vec<u64>,
}

impl Nesting {
    fn open(&mut self, bracket: Bracket) {
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.outer.push(std::mem::take(&mut self.innermost));
        }
        self.innermost = (self.innermost << 1) | u64::from(bracket == Bracket::Object);
        self.depth += 1;
    }

    fn innermost(&self) -> Option<Bracket> {
        let innermost = if self.innermost & 1 == 1 { Bracket::Object } else { Bracket::Array };
        (self.depth > 0).then_some(innermost)
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.innermost >>= 1;
        if self.depth.is_multiple_of(64) {
            self.innermost = self.outer.pop().unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::de::IgnoredAny;

    use super::*;

    fn is_json(text: &str) -> bool {
        let mut cursor = Cursor::new(text);
        cursor.value().is_some() && cursor.is_at_end()
    }

    /// What another reader, which is known to be strict, says.
    fn is_json_to_serde(text: &str) -> bool {
        serde_json::from_str::<IgnoredAny>(text).is_ok()
    }

    #[test]
    fn takes_what_is_json_and_nothing_else() {
        for text in [
            "0",
            "-0",
            "-0.5e+10",
            "1E5",
            "true",
            "false",
            "null",
            "\"\"",
            " [ ] ",
            "{ }",
            "[1,2 , 3]",
            r#"{"a":{"b":[{}]},"c" : "\u00e9\"\\\/\b\f\n\r\t"}"#,
            r#""\ud800""#,
            "\"\u{7f}é\"",
        ] {
            assert!(is_json(text) && is_json_to_serde(text), "{text}");
        }
        for text in [
            "",
            " ",
            "00",
            "01",
            "-",
            "+1",
            ".5",
            "1.",
            "1e",
            "1e+",
            "tru",
            "nul",
            "True",
            "\"",
            "\"a",
            "\"\\\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\\u12",
            "\"a\nb\"",
            "[",
            "[1",
            "[1,",
            "[1,]",
            "[,1]",
            "[1 2]",
            "{",
            "{1:2}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{\"a\" 1}",
            "{\"a\":1]",
            "[1}",
            "1 2",
            "\u{feff}1",
            "[1]]",
            "NaN",
        ] {
            assert!(!is_json(text) && !is_json_to_serde(text), "{text}");
        }
    }

    #[test]
    fn strings_of_every_length_end_where_their_quote_is() {
        for length in 0..100 {
            let plain = format!("\"{}\"", "a".repeat(length));
            assert!(is_json(&plain), "{length}");
            assert!(!is_json(&plain[..plain.len() - 1]), "{length}");
            for at in 0..length {
                let mut broken = plain.clone().into_bytes();
                broken[1 + at] = b'\n';
                assert!(!is_json(&String::from_utf8(broken).unwrap()), "{length} {at}");
            }
        }
    }

    #[test]
    fn brackets_close_in_order_at_every_depth() {
        for depth in [1, 2, 63, 64, 65, 127, 128, 129, 1000] {
            let opening: String =
                (0..depth).map(|level| if level % 3 == 0 { "{\"a\":" } else { "[" }).collect();
            let closing: String =
                (0..depth).rev().map(|level| if level % 3 == 0 { "}" } else { "]" }).collect();
            assert!(is_json(&format!("{opening}1{closing}")), "{depth}");
            assert!(!is_json(&format!("{opening}1{}", &closing[1..])), "{depth}");
            for wrong in (0..depth).step_by(7) {
                let mut closing = closing.clone().into_bytes();
                closing[wrong] ^= b']' ^ b'}';
                let text = format!("{opening}1{}", String::from_utf8(closing).unwrap());
                assert!(!is_json(&text), "{depth} {wrong}");
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_another_reader(
            text in r#"[\[\]{}:, \n"\\a-e0-2.tunrlfasE+\-]{0,24}"#,
            pieces in prop::collection::vec(prop::sample::select(vec![
                "{", "}", "[", "]", ":", ",", "\"a\"", "\"\\u0061\"", "1", "-0.1e5", "true", "null", " ", "\"\\\\\"",
            ]), 0..16),
        ) {
            for text in [text, pieces.concat()] {
                prop_assert_eq!(is_json(&text), is_json_to_serde(&text), "{}", text);
            }
        }
    }
}

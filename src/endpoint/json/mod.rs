//! Reading and splicing JSON without re-serialising it: members as raw text, byte spans, strings.
//!
//! Bodies pass the router byte for byte, so nothing here builds a document: values stay slices of the
//! text they came from.

mod scan;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

use bytes::{Bytes, BytesMut};

pub(crate) use scan::Cursor;

/// The text is not exactly one JSON value of the kind that was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not JSON of the expected kind")]
pub(crate) struct Malformed;

/// Calls `on` with every member of the object `text`, duplicates included, in order: its key, decoded (lone
/// surrogates become U+FFFD), and its value as it is written.
///
/// # Errors
/// If `text` is not exactly one JSON object.
pub(crate) fn members<'a>(text: &'a str, mut on: impl FnMut(&str, &'a str)) -> Result<(), Malformed> {
    whole(text, |cursor| {
        cursor.object(|key, value| {
            on(key, value.value()?);
            Some(())
        })
    })
}

/// Calls `on` with every element of the array `text`, as it is written.
///
/// # Errors
/// If `text` is not exactly one JSON array.
pub(crate) fn elements<'a>(text: &'a str, mut on: impl FnMut(&'a str)) -> Result<(), Malformed> {
    whole(text, |cursor| {
        cursor.array(|element| {
            on(element.value()?);
            Some(())
        })
    })
}

/// Reads `text`, of which `read` must leave nothing.
///
/// # Errors
/// If it does, or finds something else than it expects.
pub(crate) fn whole<'a>(
    text: &'a str,
    read: impl FnOnce(&mut Cursor<'a>) -> Option<()>,
) -> Result<(), Malformed> {
    let mut cursor = Cursor::new(text);
    read(&mut cursor).filter(|()| cursor.is_at_end()).ok_or(Malformed)
}

/// The last member called `key` of the object `text`: of duplicates the last wins, as it does in servers.
pub(crate) fn member<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut found = None;
    members(text, |name, value| {
        if name == key {
            found = Some(value);
        }
    })
    .ok()?;
    found
}

/// Where `value`, a slice of `whole`, lies in it.
pub(crate) fn span(whole: &str, value: &str) -> Range<usize> {
    let start = value.as_ptr().addr() - whole.as_ptr().addr();
    start..start + value.len()
}

/// Spans of every top-level member called `model`, up to `at_most` of them.
///
/// # Errors
/// If `text` is not exactly one JSON object.
pub(crate) fn model_spans(text: &str, at_most: usize) -> Result<Vec<Range<usize>>, Malformed> {
    let mut spans = Vec::with_capacity(1);
    members(text, |key, value| {
        if key == "model" && spans.len() < at_most {
            spans.push(span(text, value));
        }
    })?;
    Ok(spans)
}

/// `body` with the values at `spans` (ascending, disjoint) replaced by the string `text`.
///
/// One copy; none at all where every span spells `text` already.
pub(crate) fn splice(body: &Bytes, spans: &[Range<usize>], text: &str) -> Bytes {
    let spells =
        |span: &Range<usize>| std::str::from_utf8(&body[span.clone()]).is_ok_and(|raw| string_is(raw, text));
    if spans.iter().all(spells) {
        return body.clone();
    }
    let quoted = quote(text);
    let mut spliced = BytesMut::with_capacity(body.len() + spans.len() * quoted.len());
    let mut copied = 0;
    for span in spans {
        spliced.extend_from_slice(&body[copied..span.start]);
        spliced.extend_from_slice(quoted.as_bytes());
        copied = span.end;
    }
    spliced.extend_from_slice(&body[copied..]);
    spliced.freeze()
}

/// `text` as a JSON string, quotes included.
pub(crate) fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Whether the value says something: it is not `null`, `""`, `[]`, `{}`, `false` or `0`.
pub(crate) fn is_truthy(raw: &str) -> bool {
    match raw.as_bytes() {
        b"null" | b"false" | b"0" => false,
        [b'"', inner @ .., b'"'] => !inner.is_empty(),
        [b'[', inner @ .., b']'] | [b'{', inner @ .., b'}'] => !inner.trim_ascii().is_empty(),
        _ => true,
    }
}

/// The text between the quotes of a valid JSON string, still escaped; `None` for other values.
pub(crate) fn string_body(raw: &str) -> Option<&str> {
    raw.strip_prefix('"')?.strip_suffix('"')
}

/// Whether `raw` is a JSON string that spells `text`, escaped or not.
pub(crate) fn string_is(raw: &str, text: &str) -> bool {
    // An escape is longer than what it stands for.
    string_body(raw).is_some_and(|body| match body.len().cmp(&text.len()) {
        Ordering::Less => false,
        Ordering::Equal => body == text && !text.contains('\\'),
        Ordering::Greater => unescape(body) == text,
    })
}

/// The string a JSON value holds; `None` for other values. Lone surrogates become U+FFFD.
pub(crate) fn string(raw: &str) -> Option<Cow<'_, str>> {
    string_body(raw).map(unescape)
}

/// Decodes the inside of a valid JSON string. Lone surrogates become U+FFFD, which serde_json would refuse.
pub(crate) fn unescape(body: &str) -> Cow<'_, str> {
    let Some(first) = memchr::memchr(b'\\', body.as_bytes()) else { return Cow::Borrowed(body) };
    let mut text = String::with_capacity(body.len());
    text.push_str(&body[..first]);
    let mut rest = &body[first..];
    while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
        text.push_str(&rest[..at]);
        let (decoded, used) = unescape_one(&rest[at..]);
        text.push(decoded);
        rest = &rest[at + used..];
    }
    text.push_str(rest);
    Cow::Owned(text)
}

/// The code unit of a `\uXXXX` at the start of `text`.
pub(crate) fn unicode_escape(text: &str) -> Option<u16> {
    let digits = text.as_bytes().strip_prefix(b"\\u")?.get(..4)?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Decodes the escape at the start of `text`; also says how many bytes it took.
fn unescape_one(text: &str) -> (char, usize) {
    if let Some(unit) = unicode_escape(text) {
        if (0xD800..0xDC00).contains(&unit)
            && let Some(low) = unicode_escape(&text[6..]).filter(|low| (0xDC00..0xE000).contains(low))
        {
            let code = 0x1_0000 + ((u32::from(unit) - 0xD800) << 10) + (u32::from(low) - 0xDC00);
            return (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 12);
        }
        return (char::from_u32(u32::from(unit)).unwrap_or(char::REPLACEMENT_CHARACTER), 6);
    }
    let Some(escaped) = text.chars().nth(1) else { return (char::REPLACEMENT_CHARACTER, text.len()) };
    let decoded = match escaped {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'b' => '\u{8}',
        'f' => '\u{c}',
        other => other,
    };
    (decoded, 1 + escaped.len_utf8())
}

/// `text` as far as it came, an object or array that was cut, with what is open closed: whole members stay, and
/// the start of a string that is a value. `None` for other texts.
pub(crate) fn mended(text: &str) -> Option<String> {
    if !text.starts_with(['{', '[']) {
        return None;
    }
    let mut open = Vec::new();
    // Up to where the text can be kept, and what is open there.
    let mut kept = (0, 0);
    let mut string_began = None;
    let mut is_escaped = false;
    let mut last_escape = 0;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if std::mem::take(&mut is_escaped) => {}
            b'"' if string_began.is_some() => string_began = None,
            b'\\' if string_began.is_some() => (is_escaped, last_escape) = (true, at),
            _ if string_began.is_some() => {}
            b'"' => string_began = Some(at),
            b'{' | b'[' => {
                open.push(if byte == b'{' { '}' } else { ']' });
                kept = (at + 1, open.len());
            }
            b'}' | b']' => {
                open.pop()?;
                kept = (at + 1, open.len());
            }
            b',' => kept = (at, open.len()),
            _ => {}
        }
    }
    let value = string_began.filter(|began| text[..*began].trim_ascii_end().ends_with(':'));
    let mut mended = match value {
        Some(began) => {
            // Two bytes long, or six: without one that lacks its end.
            let length = if text[last_escape..].starts_with("\\u") { 6 } else { 2 };
            let is_half = last_escape > began && text.len() < last_escape + length;
            format!("{}\"", if is_half { &text[..last_escape] } else { text })
        }
        None => {
            open.truncate(kept.1);
            text[..kept.0].to_owned()
        }
    };
    mended.extend(open.iter().rev());
    Some(mended)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn members_are_raw_and_duplicates_all_seen() {
        let text = r#"{"a":1.0e2,"a":18446744073709551617, "\u0061" : {"b":[1]}, "\ud800":"\udc00"}"#;
        let mut seen = Vec::new();
        members(text, |key, value| seen.push((key.to_owned(), value))).unwrap();
        let keys: Vec<_> = seen.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["a", "a", "a", "\u{fffd}"]);
        let values: Vec<_> = seen.iter().map(|(_, value)| *value).collect();
        assert_eq!(values, ["1.0e2", "18446744073709551617", r#"{"b":[1]}"#, r#""\udc00""#]);
        assert_eq!(member(text, "a"), Some(r#"{"b":[1]}"#));
        assert!(members("[1]", |_, _| ()).is_err());
        assert!(members("{} x", |_, _| ()).is_err());
        // Found by fuzzing: a key is as strict as any string.
        for key in ["a\n", "\u{1}", "\\u00e9\t", "\\x"] {
            assert!(members(&format!("{{\"{key}\":1}}"), |_, _| ()).is_err(), "{key:?}");
        }
    }

    #[test]
    fn strings_decode_with_every_escape() {
        assert_eq!(unescape(r#"a\n\t\r\b\f\/\\\"z"#), "a\n\t\r\u{8}\u{c}/\\\"z");
        assert_eq!(unescape(r"\u65e5\u672c \ud83d\ude42"), "日本 🙂");
        assert_eq!(unescape(r"\ud83d \ude42 \ud83d\u0041 \ud83d"), "\u{fffd} \u{fffd} \u{fffd}A \u{fffd}");
        assert!(matches!(unescape("plain é"), Cow::Borrowed("plain é")));
        assert!(string_is(r#""\u0061b""#, "ab") && string_is(r#""ab""#, "ab"));
        assert!(!string_is("ab", "ab") && !string_is(r#""a""#, "ab") && !string_is(r#""abc""#, "ab"));
        assert!(string_is(r#""a\\b""#, r"a\b") && !string_is(r#""a\\b""#, r"a\\b"));
    }

    #[test]
    fn empty_values_say_nothing() {
        for raw in ["null", "\"\"", "[]", "[ \n]", "{}", "{ }", "false", "0"] {
            assert!(!is_truthy(raw), "{raw}");
        }
        for raw in ["\" \"", "[0]", "{\"a\":0}", "true", "1", "-1"] {
            assert!(is_truthy(raw), "{raw}");
        }
    }

    #[test]
    fn a_million_levels_do_not_exhaust_the_stack() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(1_000_000), "]".repeat(1_000_000));
        let mut length = 0;
        members(&deep, |_, value| length = value.len()).unwrap();
        assert_eq!(length, 2_000_000);
        assert!(members(&deep[..1_000_000], |_, _| ()).is_err());
    }

    #[test]
    fn splicing_copies_only_when_something_changes() {
        let body = Bytes::from_static(br#"{"model":"a\/b","x":{"model":"a/b"},"model":7}"#);
        let spans = model_spans(std::str::from_utf8(&body).unwrap(), 8).unwrap();
        assert_eq!(splice(&body, &spans, "q\"é"), r#"{"model":"q\"é","x":{"model":"a/b"},"model":"q\"é"}"#);
        let same = splice(&body, &spans[..1], "a/b");
        assert_eq!(same.as_ptr(), body.as_ptr());
    }

    proptest! {
        #[test]
        fn a_cut_object_can_be_read(text in "[a-z\"\\\\é]{0,6}", cut in any::<prop::sample::Index>()) {
            let quoted = quote(&text);
            let escaped = format!("\"\\u00e9{}", &quoted[1..]);
            let whole = format!(r#"{{"a":{{"b":[1, {quoted}, {{"c":null}}], "d":{escaped}}},"e":true}}"#);
            members(&whole, |_, _| ()).unwrap();
            let mut end = 1 + cut.index(whole.len());
            while !whole.is_char_boundary(end) {
                end += 1;
            }
            let mended = mended(&whole[..end]).unwrap();
            prop_assert!(members(&mended, |_, _| ()).is_ok(), "{}", mended);
        }

        #[test]
        fn strings_survive_quoting_and_decoding(text in any::<String>()) {
            let quoted = quote(&text);
            prop_assert_eq!(string(&quoted).unwrap(), text.as_str());
            prop_assert!(string_is(&quoted, &text));
            let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
            prop_assert_eq!(unescape(&escaped), text.as_str());
        }
    }
}

//! The format of a message as 14 numbers: what tells a multiple-choice question from a coding task when
//! their topics are alike.
//!
//! The numbers and their order are part of the store's file format. Patterns follow Python's `str` and
//! `re` semantics (Unicode white space, `\d`, `\w`), because the reference estimator is written there.

use memchr::memmem;

/// How many format numbers a message has.
pub const FORMAT_NUMBERS: usize = 14;

/// Bytes of a message that are searched for patterns; lengths and line counts cover all of it.
pub const PATTERN_BYTES_MAX: usize = 256 * 1024;

/// First code points of Unicode's runs of ten decimal digits (general category Nd).
const DIGIT_ZEROS: [u32; 66] = [
    0x0030, 0x0660, 0x06F0, 0x07C0, 0x0966, 0x09E6, 0x0A66, 0x0AE6, 0x0B66, 0x0BE6, 0x0C66, 0x0CE6, 0x0D66,
    0x0DE6, 0x0E50, 0x0ED0, 0x0F20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90, 0x1B50,
    0x1BB0, 0x1C40, 0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10, 0x104A0, 0x10D30,
    0x11066, 0x110F0, 0x11136, 0x111D0, 0x112F0, 0x11450, 0x114D0, 0x11650, 0x116C0, 0x11730, 0x118E0,
    0x11950, 0x11C50, 0x11D50, 0x11DA0, 0x16A60, 0x16AC0, 0x16B50, 0x1D7CE, 0x1D7D8, 0x1D7E2, 0x1D7EC,
    0x1D7F6, 0x1E140, 0x1E2F0, 0x1E950, 0x1FBF0,
];

/// The format numbers of `text`: counts are logged or capped, flags are 0 or 1. All finite.
#[must_use]
pub fn format_numbers(text: &str) -> [f64; FORMAT_NUMBERS] {
    let head = &text[..text.floor_char_boundary(PATTERN_BYTES_MAX)];
    let contains = |needle: &str| memmem::find(head.as_bytes(), needle.as_bytes()).is_some();
    let choices = count_choices(head);
    let ends_as_question = text.trim_end_matches(is_space).ends_with('?');
    [
        count(choices.min(30)) / 5.0,
        flag(choices > 0),
        count(text.chars().count()).ln_1p(),
        count(memchr::memchr_iter(b'\n', text.as_bytes()).count()).ln_1p(),
        flag(ends_as_question),
        count(count_digit_runs(head)).ln_1p(),
        flag(looks_like_code(head)),
        flag(contains("function")),
        flag(contains("\\")),
        flag(contains("$")),
        flag(contains("boxed")),
        flag(text.chars().next().is_some_and(char::is_lowercase)),
        flag(has_blank(head)),
        flag(starts_with_question_word(head)),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "counts of characters stay far below 2^52")]
fn count(n: usize) -> f64 {
    n as f64
}

fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

/// `str.isspace` of Python, which also counts the four information separators.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn is_digit(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_digit();
    }
    let code = u32::from(c);
    let zero = DIGIT_ZEROS.partition_point(|zero| *zero <= code).checked_sub(1).map(|i| DIGIT_ZEROS[i]);
    zero.is_some_and(|zero| code - zero < 10)
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// Lines that start like an answer choice: `(?m)^\s*\(?[A-J][\).:]\s`.
fn count_choices(text: &str) -> usize {
    let mut choices = 0;
    let mut line_start = Some(0);
    while let Some(start) = line_start {
        // Leading white space may span lines, so the next attempt starts after whatever it consumed.
        let rest = text[start..].trim_start_matches(is_space);
        let at = text.len() - rest.len();
        let end = choice_len(rest).map(|len| at + len);
        choices += usize::from(end.is_some());
        line_start = match end {
            Some(end) if text.as_bytes()[end - 1] == b'\n' => Some(end),
            Some(end) => next_line(text, end),
            None => next_line(text, at),
        };
    }
    choices
}

fn next_line(text: &str, from: usize) -> Option<usize> {
    memchr::memchr(b'\n', &text.as_bytes()[from..]).map(|i| from + i + 1)
}

/// Length of a choice mark such as `(A) ` or `B.\n` at the start of `text`, white space included.
fn choice_len(text: &str) -> Option<usize> {
    let mut chars = text.char_indices();
    let (_, mut c) = chars.next()?;
    if c == '(' {
        c = chars.next()?.1;
    }
    let is_mark = ('A'..='J').contains(&c) && matches!(chars.next()?.1, ')' | '.' | ':');
    let (at, space) = chars.next()?;
    (is_mark && is_space(space)).then(|| at + space.len_utf8())
}

fn count_digit_runs(text: &str) -> usize {
    let mut runs = 0;
    let mut in_run = false;
    for c in text.chars() {
        let is_digit = is_digit(c);
        runs += usize::from(is_digit && !in_run);
        in_run = is_digit;
    }
    runs
}

/// `\bdef |\breturn\b|\bimport |;\n|\{\n|>>>`.
fn looks_like_code(text: &str) -> bool {
    let word = |needle: &str, closed: bool| {
        memmem::find_iter(text.as_bytes(), needle.as_bytes()).any(|at| {
            let opens = !text[..at].ends_with(is_word);
            opens && !(closed && text[at + needle.len()..].starts_with(is_word))
        })
    };
    let plain = |needle: &str| memmem::find(text.as_bytes(), needle.as_bytes()).is_some();
    word("def ", false)
        || word("return", true)
        || word("import ", false)
        || [";\n", "{\n", ">>>"].into_iter().any(plain)
}

/// A blank to fill in: a run of underscores with no word character beside it (`\b_+\b`).
fn has_blank(text: &str) -> bool {
    let mut from = 0;
    while let Some(at) = memchr::memchr(b'_', &text.as_bytes()[from..]).map(|i| from + i) {
        let rest = text[at..].trim_start_matches('_');
        if !text[..at].ends_with(is_word) && !rest.starts_with(is_word) {
            return true;
        }
        from = text.len() - rest.len();
    }
    false
}

fn starts_with_question_word(text: &str) -> bool {
    let starts = |word: &str| text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    ["who", "when", "where", "what", "which", "how"].into_iter().any(starts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn choices_are_counted_at_line_starts_only() {
        assert_eq!(count_choices("Pick one:\nA. red\n B) blue\n(C): no\n(D: x\nE.\n\n  F. y"), 5);
        assert_eq!(count_choices("A.B. C. at the end"), 0);
        assert_eq!(count_choices("A. B. C. on one line"), 1);
        assert_eq!(count_choices("K. beyond J\nA.x\nJ:"), 0);
        // The white space that ends one choice may end its line, so the next choice may follow at once.
        assert_eq!(count_choices("A.\nB.\nC.\n"), 3);
    }

    #[test]
    fn many_blank_lines_take_linear_time() {
        assert_eq!(count_choices(&"\n".repeat(PATTERN_BYTES_MAX)), 0);
    }

    #[test]
    fn digits_are_those_of_any_script() {
        assert_eq!(count_digit_runs("12 apples, 3½ pears, ٣٤ dates, ² no, x9"), 4);
    }

    #[test]
    fn code_needs_whole_words() {
        assert!(looks_like_code("def f(x)"));
        assert!(!looks_like_code("undef x"));
        assert!(looks_like_code("and return."));
        assert!(!looks_like_code("returned returns"));
        assert!(looks_like_code("a;\nb") && looks_like_code("{\n") && looks_like_code(">>> 1"));
        assert!(!looks_like_code("é\u{301}import"));
    }

    #[test]
    fn blanks_stand_alone() {
        assert!(has_blank("The sky is ___ today"));
        assert!(has_blank("_"));
        assert!(!has_blank("snake_case and __init__ and a_ _b"));
    }

    #[test]
    fn the_numbers_of_a_small_message() {
        // 31 characters, 2 line ends, 2 choices, ends with '?', digit runs 1 and 2.
        let numbers = format_numbers("What is 1+2\nA. one\nB. three  ? ");
        let expected = [
            0.4,
            1.0,
            f64::from(31).ln_1p(),
            f64::from(2).ln_1p(),
            1.0,
            f64::from(2).ln_1p(),
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            1.0,
        ];
        for (got, want) in numbers.iter().zip(expected) {
            assert!((got - want).abs() < 1e-12, "{numbers:?}");
        }
    }

    #[test]
    fn the_empty_message_is_all_zeros() {
        assert!(format_numbers("").iter().all(|n| n.abs() < 1e-12));
    }

    proptest! {
        #[test]
        fn always_finite_and_never_out_of_bounds(text in any::<String>()) {
            prop_assert!(format_numbers(&text).iter().all(|n| n.is_finite() && *n >= 0.0));
        }

        #[test]
        fn text_full_of_marks_never_breaks_a_char_boundary(text in "[A-J(_.: \n\\)ß٣]{0,60}") {
            prop_assert!(count_choices(&text) <= text.len() / 3);
            prop_assert!(format_numbers(&text).iter().all(|n| n.is_finite()));
        }
    }
}

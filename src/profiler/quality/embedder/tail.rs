//! The end of a message: the only part that is hashed, tokenized and embedded.
//!
//! Few-shot prompts share their beginning; what tells requests apart stands at the end. The bound also
//! makes a message of many megabytes cost no more than a long one.

/// Content tokens that are embedded; with `[CLS]` and `[SEP]` they are the model's 128.
pub const CONTENT_TOKENS: usize = 126;

/// Bytes of a message that can take part in its embedding.
pub const TAIL_BYTES_MAX: usize = 16 * 1024;

/// Bytes tokenized first. In most texts they hold [`CONTENT_TOKENS`] tokens several times over; each
/// further attempt takes four times as many.
const FIRST_TAIL_BYTES: usize = 1024;

/// The last `bytes_max` bytes of `text`, shortened to start after white space (where tokens never span)
/// or, if there is none, at a character.
#[must_use]
pub fn tail(text: &str, bytes_max: usize) -> &str {
    let Some(cut) = text.len().checked_sub(bytes_max).filter(|cut| *cut > 0) else { return text };
    let end = &text[text.ceil_char_boundary(cut)..];
    match end.find(|c: char| c.is_ascii_whitespace()) {
        Some(space) => &end[space + 1..],
        None => end,
    }
}

/// Ever longer tails of `text`, the last one being [`TAIL_BYTES_MAX`] or all of it.
pub fn growing_tails(text: &str) -> impl Iterator<Item = &str> {
    let sizes = std::iter::successors(Some(FIRST_TAIL_BYTES), |size| Some(size * 4));
    let last_size = text.len().min(TAIL_BYTES_MAX);
    sizes
        .scan(false, move |is_done, size| {
            let is_last = size >= last_size;
            (!std::mem::replace(is_done, is_last)).then_some(size.min(TAIL_BYTES_MAX))
        })
        .map(move |size| tail(text, size))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_cut_is_moved_to_the_next_word() {
        assert_eq!(tail("one two three", 20), "one two three");
        assert_eq!(tail("one two three", 13), "one two three");
        assert_eq!(tail("one two three", 11), "two three");
        assert_eq!(tail("one two three", 10), "two three");
        assert_eq!(tail("one two three", 9), "three");
        assert_eq!(tail("ßßßß", 5), "ßß");
    }

    #[test]
    fn tails_grow_up_to_the_bound() {
        let lens = |n: usize| growing_tails(&"a".repeat(n)).map(str::len).collect::<Vec<_>>();
        assert_eq!(lens(10), [10]);
        assert_eq!(lens(1024), [1024]);
        assert_eq!(lens(1025), [1024, 1025]);
        assert_eq!(lens(5000), [1024, 4096, 5000]);
        assert_eq!(lens(100_000), [1024, 4096, 16_384]);
    }

    proptest! {
        #[test]
        fn a_tail_is_a_bounded_suffix(text in "[a-zß٣ \n]{0,80}", bytes_max in 0..100usize) {
            let tail = tail(&text, bytes_max);
            prop_assert!(text.ends_with(tail));
            prop_assert!(tail.len() <= bytes_max || tail.len() == text.len());
        }
    }
}

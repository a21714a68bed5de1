//! Prompts of a wanted length that no cache has seen.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Short common words: one token each with most tokenizers.
const WORDS: [&str; 64] = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school",
    "state", "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week",
    "company", "system", "program", "question", "work", "number", "night", "point", "home", "water", "room",
    "mother", "area", "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job",
    "word", "business", "issue", "side", "kind", "head", "house", "service", "friend", "father", "power",
    "hour", "game", "line", "end", "member", "law", "car",
];

/// Asked of the model after the words, so that it does not stop early where it may.
const REQUEST: &str = "Go on with this list of words for as long as you can.";

/// Prompts end this share below what they may have: words differ.
const MARGIN: f64 = 0.05;

/// Fewest words of a prompt: 6 bits each, so that prompts differ from their first tokens on.
const WORDS_MIN: usize = 6;

/// A prompt of `n_words` words drawn by `seed` and its `number` in the run.
pub(super) fn prompt(n_words: usize, seed: u64, number: u64) -> String {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(number);
    let words = (0..n_words).map(|_| WORDS[rng.random_range(0..WORDS.len())]);
    words.chain([REQUEST]).collect::<Vec<_>>().join(" ")
}

/// How many words make how many tokens at one server: its chat template and tokenizer are learned from the
/// warm-up requests.
#[derive(Debug, Default)]
pub(super) struct PromptSizer {
    /// Words and prompt tokens of the shortest and the longest prompt so far.
    seen: Option<[(usize, u64); 2]>,
}

impl PromptSizer {
    /// Words of the warm-up prompts.
    pub(super) const WARM_UP_WORDS: [usize; 2] = [8, 40];

    /// Prompt tokens of a warm-up request at most: three a word, and a generous template.
    pub(super) fn warm_up_tokens_max(n_words: usize) -> u32 {
        192 + 3 * u32::try_from(n_words).unwrap_or(u32::MAX)
    }

    /// A prompt of `n_words` had `tokens`.
    pub(super) fn observe(&mut self, n_words: usize, tokens: u64) {
        let [mut shortest, mut longest] = self.seen.unwrap_or([(n_words, tokens); 2]);
        if n_words < shortest.0 {
            shortest = (n_words, tokens);
        }
        if n_words > longest.0 {
            longest = (n_words, tokens);
        }
        self.seen = Some([shortest, longest]);
    }

    /// Words that make at most `tokens`; `None` where even the fewest make more, or nothing is known yet.
    pub(super) fn words_for(&self, tokens: u32) -> Option<usize> {
        let [(fewest, at_fewest), (most, at_most)] = self.seen?;
        let per_word =
            (at_most as f64 - at_fewest as f64) / (most.checked_sub(fewest).filter(|n| *n > 0)? as f64);
        let overhead = at_fewest as f64 - per_word * fewest as f64;
        let words = ((1.0 - MARGIN) * f64::from(tokens) - overhead) / per_word.max(0.25);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to be small and positive"
        )]
        (words >= WORDS_MIN as f64).then_some(words as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn prompts_differ_from_their_first_words_on() {
        let firsts = |seed| {
            let first = move |number| prompt(WORDS_MIN, seed, number);
            (0..200).map(first).collect::<BTreeSet<_>>()
        };
        assert_eq!(firsts(1).len(), 200);
        assert!(firsts(1).is_disjoint(&firsts(2)));
        assert_eq!(prompt(9, 4, 7), prompt(9, 4, 7));
        assert_eq!(prompt(9, 4, 7).split(' ').count(), 9 + REQUEST.split(' ').count());
    }

    #[test]
    fn words_are_sized_by_what_the_server_counts() {
        let mut sizer = PromptSizer::default();
        assert_eq!(sizer.words_for(64), None);
        // 30 tokens of template, 1.25 tokens a word.
        sizer.observe(8, 40);
        assert_eq!(sizer.words_for(64), None);
        sizer.observe(40, 80);
        // (0.95 × 256 − 30) / 1.25 = 170.56.
        assert_eq!(sizer.words_for(256), Some(170));
        // (0.95 × 39 − 30) / 1.25 = 5.6, fewer than prompts need to differ.
        assert_eq!(sizer.words_for(39), None);
    }
}

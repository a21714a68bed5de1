//! Which of a node's power sources is asked. Pure: time is an argument.
//!
//! The first source that answers is used. One that fails is left alone for a while that doubles, and asked again
//! then, so that the best source there is comes back by itself. After the last one there are the configured watts,
//! which cannot fail.

use crate::units::Seconds;

/// A source that was left is asked again after this, doubled with every failure up to the last of these.
const RETRY_FIRST: Seconds = Seconds(5.0);
const RETRY_MAX: Seconds = Seconds(300.0);
/// Readings in a row that the source in use may miss before the next one is asked.
const MISSES_MAX: u32 = 3;

/// Sources in order of preference.
#[derive(Debug)]
pub(super) struct Chain {
    sources: Vec<Standing>,
    /// Position of the source in use; their number = the configured watts.
    used: usize,
}

#[derive(Debug, Clone)]
struct Standing {
    /// Failures since it answered last.
    failures: u32,
    retry_at: Seconds,
}

/// What follows from a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failed {
    /// Whether the next source is asked now; otherwise the reading is missed.
    pub(super) go_on: bool,
    /// Whether it had answered before, or is asked for the first time: worth a log line.
    pub(super) is_news: bool,
}

impl Chain {
    pub(super) fn new(n_sources: usize) -> Self {
        Self { sources: vec![Standing { failures: 0, retry_at: Seconds::ZERO }; n_sources], used: n_sources }
    }

    /// Position of the source in use; the number of sources = the configured watts.
    pub(super) const fn used(&self) -> usize {
        self.used
    }

    /// Whether to ask the source at `idx` now rather than to leave it alone.
    pub(super) fn is_due(&self, idx: usize, now: Seconds) -> bool {
        self.sources[idx].retry_at <= now
    }

    /// The source at `idx` answered and is in use from now on. The one that was, if it was another.
    pub(super) fn answered(&mut self, idx: usize) -> Option<usize> {
        if let Some(source) = self.sources.get_mut(idx) {
            source.failures = 0;
        }
        let was = std::mem::replace(&mut self.used, idx);
        (was != idx).then_some(was)
    }

    /// The source at `idx` failed; `is_final` where it says itself that it has no such reading.
    pub(super) fn failed(&mut self, idx: usize, now: Seconds, is_final: bool) -> Failed {
        let is_used = idx == self.used;
        let source = &mut self.sources[idx];
        source.failures += 1;
        let is_left_alone = !is_used || is_final || source.failures >= MISSES_MAX;
        if is_used && is_left_alone {
            // What it missed while in use were no attempts to come back.
            source.failures = 1;
        }
        if is_left_alone {
            let doubled = RETRY_FIRST.0 * 2_f64.powi((source.failures - 1).min(16).cast_signed());
            source.retry_at = now + Seconds(doubled.min(RETRY_MAX.0));
        }
        let is_news = if is_used { is_left_alone } else { source.failures == 1 };
        Failed { go_on: is_left_alone, is_news }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S0: Seconds = Seconds(0.0);

    fn due(chain: &Chain, now: f64) -> Vec<usize> {
        (0..2).filter(|idx| chain.is_due(*idx, Seconds(now))).collect()
    }

    #[test]
    fn the_first_that_answers_is_used() {
        let mut chain = Chain::new(2);
        assert_eq!((chain.used(), due(&chain, 0.0)), (2, vec![0, 1]), "until then the configured watts");
        assert_eq!(chain.failed(0, S0, false), Failed { go_on: true, is_news: true });
        assert_eq!(chain.answered(1), Some(2));
        assert_eq!((chain.used(), due(&chain, 1.0)), (1, vec![1]));
        assert_eq!(chain.answered(1), None);
    }

    #[test]
    fn who_was_left_is_asked_again_ever_more_rarely_and_comes_back() {
        let mut chain = Chain::new(2);
        chain.failed(0, S0, true);
        chain.answered(1);
        assert_eq!((due(&chain, 4.9), due(&chain, 5.0)), (vec![1], vec![0, 1]));
        assert_eq!(chain.failed(0, Seconds(5.0), true), Failed { go_on: true, is_news: false });
        assert_eq!((due(&chain, 14.9), due(&chain, 15.0)), (vec![1], vec![0, 1]));
        for _ in 0..20 {
            chain.failed(0, Seconds(20.0), true);
        }
        assert_eq!(due(&chain, 320.0), [0, 1], "five minutes at most");
        assert_eq!(chain.answered(0), Some(1));
        assert_eq!(chain.failed(1, Seconds(321.0), false), Failed { go_on: true, is_news: true });
    }

    #[test]
    fn the_source_in_use_may_miss_a_little() {
        let mut chain = Chain::new(1);
        chain.answered(0);
        assert_eq!(chain.failed(0, S0, false), Failed { go_on: false, is_news: false });
        assert_eq!(chain.failed(0, S0, false), Failed { go_on: false, is_news: false });
        assert_eq!(chain.failed(0, S0, false), Failed { go_on: true, is_news: true });
        assert_eq!(chain.answered(1), Some(0), "the configured watts");
        assert!(!chain.is_due(0, Seconds(4.9)) && chain.is_due(0, Seconds(5.0)));
    }

    #[test]
    fn a_source_that_says_it_cannot_is_left_at_once() {
        let mut chain = Chain::new(1);
        chain.answered(0);
        assert_eq!(chain.failed(0, S0, true), Failed { go_on: true, is_news: true });
    }
}

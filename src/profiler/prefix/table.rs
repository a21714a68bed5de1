//! What one destination was sent lately, and how much of that is found in its cache. Time is an argument.

use std::num::NonZeroUsize;

use lru::LruCache;

use crate::domain::{Prefix, PrefixChain};
use crate::units::{Seconds, Tokens};

/// Share of what was sent before that is expected to be found, until the engine has said what it finds. Not all:
/// caches are smaller than what passes through them, and an engine may have none.
const FOUND_PRIOR: f64 = 0.5;
/// Share of a new answer in it: an engine without a cache is known after a handful.
const FOUND_SMOOTHING: f64 = 0.25;

/// A beginning of a prompt that was read here, or the last prompt of a session.
#[derive(Debug, Clone, Copy)]
struct Served {
    tokens: Tokens,
    at: Seconds,
}

/// Prompts that one destination has read, by their beginnings; least recently read out.
#[derive(Debug)]
pub(super) struct PrefixTable {
    served: LruCache<u64, Served>,
    max_age: Seconds,
}

impl PrefixTable {
    /// A table of `entries` beginnings and sessions, which count for `max_age`.
    pub(super) fn new(entries: NonZeroUsize, max_age: Seconds) -> Self {
        Self { served: LruCache::new(entries), max_age }
    }

    /// Tokens of the prompt that were read here before: its longest known beginning or, in a session, all that its
    /// last request here was, but never the last message of this one.
    pub(super) fn known(&self, now: Seconds, chain: &PrefixChain) -> Tokens {
        let prefixes = chain.prefixes();
        // Of two beginnings of one prompt, the shorter was read whenever the longer was, and is forgotten after it.
        let n_known = prefixes.partition_point(|prefix| self.fresh(now, prefix.hash).is_some());
        let longest = n_known.checked_sub(1).map_or(Tokens::ZERO, |at| prefixes[at].tokens);
        let session = chain.session().and_then(|session| self.fresh(now, session));
        session.map_or(longest, |tokens| longest.max(tokens.min(chain.before_last())))
    }

    /// The prompt has been read.
    pub(super) fn record(&mut self, now: Seconds, chain: &PrefixChain) {
        let session = chain.session().zip(chain.whole().map(|whole| whole.tokens));
        let session = session.map(|(hash, tokens)| Prefix { hash, tokens });
        // The shortest last, so that it stays longest.
        for Prefix { hash, tokens } in session.into_iter().chain(chain.prefixes().iter().rev().copied()) {
            self.served.put(hash, Served { tokens, at: now });
        }
    }

    /// The engine has lost its cache.
    pub(super) fn clear(&mut self) {
        self.served.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.served.len()
    }

    fn fresh(&self, now: Seconds, hash: u64) -> Option<Tokens> {
        let served = self.served.peek(&hash)?;
        (now - served.at <= self.max_age).then_some(served.tokens)
    }
}

/// How much of what was sent before is found in the cache, as the engine counts it.
#[derive(Debug, Clone, Copy)]
pub(super) struct FoundRatio {
    ratio: f64,
    samples: u64,
    last: Option<Seconds>,
}

impl FoundRatio {
    pub(super) const fn new() -> Self {
        Self { ratio: FOUND_PRIOR, samples: 0, last: None }
    }

    /// Of `known` tokens sent before, `found` were in the cache, answers to them included.
    pub(super) fn observe(&mut self, now: Seconds, known: Tokens, found: Tokens) {
        if known.0 > 0.0 {
            let ratio = (found.0 / known.0).clamp(0.0, 1.0);
            self.ratio += FOUND_SMOOTHING * (ratio - self.ratio);
            self.samples += 1;
            self.last = Some(now);
        }
    }

    /// In `[0, 1]`.
    pub(super) const fn ratio(&self) -> f64 {
        self.ratio
    }

    pub(super) const fn samples(&self) -> u64 {
        self.samples
    }

    /// Time since the last sample.
    pub(super) fn age(&self, now: Seconds) -> Option<Seconds> {
        self.last.map(|last| now - last)
    }
}

#[cfg(test)]
mod tests;

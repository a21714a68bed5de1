//! Prompts by their beginnings: what tells whether an engine has read part of a prompt before.

use serde::{Deserialize, Serialize};

use super::destination::DestinationOrd;
use crate::units::Tokens;

/// A prompt from its start to the end of one of its messages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prefix {
    /// Hash of all of it: two prompts that begin with the same messages share it.
    pub hash: u64,
    /// Its length, estimated as prompts are; not negative.
    pub tokens: Tokens,
}

/// The beginnings of one prompt, up to the ends of its messages.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PrefixChain {
    prefixes: Vec<Prefix>,
    session: Option<u64>,
}

impl PrefixChain {
    /// A chain of `prefixes`, shortest first; the last one is the whole prompt.
    #[must_use]
    pub const fn new(prefixes: Vec<Prefix>) -> Self {
        Self { prefixes, session: None }
    }

    /// The same prompt as part of a session that its client named; `session` is a hash of the name.
    #[must_use]
    pub fn in_session(self, session: Option<u64>) -> Self {
        Self { session, ..self }
    }

    /// Whether there is nothing to recognise the prompt by.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }

    /// The beginnings, shortest first.
    #[must_use]
    pub fn prefixes(&self) -> &[Prefix] {
        &self.prefixes
    }

    /// The session, if its client named one.
    #[must_use]
    pub const fn session(&self) -> Option<u64> {
        self.session
    }

    /// The whole prompt.
    #[must_use]
    pub fn whole(&self) -> Option<&Prefix> {
        self.prefixes.last()
    }

    /// Tokens before the last message, which nobody has read as part of this session.
    #[must_use]
    pub fn before_last(&self) -> Tokens {
        let n = self.prefixes.len();
        n.checked_sub(2).and_then(|at| self.prefixes.get(at)).map_or(Tokens::ZERO, |prefix| prefix.tokens)
    }
}

/// Tokens of one prompt that destinations are expected to have in their prefix caches.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CachedPrefix(Vec<Tokens>);

impl CachedPrefix {
    /// Nothing of it is cached anywhere.
    pub const NOWHERE: Self = Self(Vec::new());

    /// `tokens` in the order of destinations; whoever is beyond its end has nothing.
    #[must_use]
    pub const fn new(tokens: Vec<Tokens>) -> Self {
        Self(tokens)
    }

    /// What `d` has of it; not negative.
    #[must_use]
    pub fn at(&self, d: DestinationOrd) -> Tokens {
        self.0.get(d.idx()).copied().unwrap_or(Tokens::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_message_is_new_to_a_session() {
        let prefix = |hash, tokens| Prefix { hash, tokens: Tokens(tokens) };
        let chain = PrefixChain::new(vec![prefix(1, 100.0), prefix(2, 150.0), prefix(3, 170.0)]);
        assert_eq!(chain.before_last(), Tokens(150.0));
        assert_eq!(chain.whole(), Some(&prefix(3, 170.0)));
        assert_eq!(PrefixChain::new(vec![prefix(1, 100.0)]).before_last(), Tokens::ZERO);
        assert_eq!(PrefixChain::default().before_last(), Tokens::ZERO);
    }

    #[test]
    fn what_is_not_said_of_a_destination_is_nothing() {
        let cached = CachedPrefix::new(vec![Tokens(7.0)]);
        assert_eq!(cached.at(DestinationOrd(0)), Tokens(7.0));
        assert_eq!(cached.at(DestinationOrd(1)), Tokens::ZERO);
        assert_eq!(CachedPrefix::NOWHERE.at(DestinationOrd(0)), Tokens::ZERO);
    }
}

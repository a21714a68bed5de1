//! Embeddings of texts seen lately.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lru::LruCache;

use crate::profiler::quality::embedder::Embedding;
use crate::profiler::quality::embedder::tail::{TAIL_BYTES_MAX, tail};

/// A keyed hash of the end of a text, made with two secret keys: clients cannot aim at a collision, and
/// by chance one in 2^128 pairs collides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TextKey(u64, u64);

/// Least recently used out; shared by threads.
#[derive(Debug)]
pub(super) struct EmbeddingCache {
    entries: Mutex<LruCache<TextKey, Embedding>>,
    hashers: (RandomState, RandomState),
}

impl EmbeddingCache {
    /// An empty cache for `capacity` (at least one) embeddings of 1.5 KiB each.
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = NonZeroUsize::new(capacity).unwrap_or(NonZeroUsize::MIN);
        Self {
            entries: Mutex::new(LruCache::new(capacity)),
            hashers: (RandomState::new(), RandomState::new()),
        }
    }

    /// The key of `text`: only what can take part in its embedding counts.
    pub(super) fn key(&self, text: &str) -> TextKey {
        let end = tail(text, TAIL_BYTES_MAX);
        TextKey(self.hashers.0.hash_one(end), self.hashers.1.hash_one(end))
    }

    /// The embedding of a text seen lately.
    pub(super) fn get(&self, key: TextKey) -> Option<Embedding> {
        self.lock().get(&key).cloned()
    }

    /// Remembers an embedding.
    pub(super) fn put(&self, key: TextKey, embedding: Embedding) {
        self.lock().put(key, embedding);
    }

    /// Nothing panics while the lock is held, so a poisoned cache is still sound.
    fn lock(&self) -> MutexGuard<'_, LruCache<TextKey, Embedding>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::profiler::quality::embedder::EMBEDDING_DIMENSIONS;

    #[test]
    fn forgets_what_was_used_least_recently() {
        let cache = EmbeddingCache::new(2);
        let [a, b, c] = ["a", "b", "c"].map(|text| cache.key(text));
        let embedding: Embedding = Arc::new([0.5; EMBEDDING_DIMENSIONS]);
        cache.put(a, Arc::clone(&embedding));
        cache.put(b, Arc::clone(&embedding));
        assert!(cache.get(a).is_some());
        cache.put(c, embedding);
        assert!(cache.get(a).is_some() && cache.get(b).is_none() && cache.get(c).is_some());
    }

    #[test]
    fn texts_with_the_same_end_share_an_entry() {
        let cache = EmbeddingCache::new(1);
        let end = format!(" {}", "word ".repeat(TAIL_BYTES_MAX));
        assert_eq!(cache.key(&format!("one{end}")), cache.key(&format!("two, longer{end}")));
        assert_ne!(cache.key("one"), cache.key("two"));
    }
}

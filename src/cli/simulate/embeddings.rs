//! Embeddings of many prompts, kept from run to run.
//!
//! The cache is one file per embedding model: records of the text's SHA-256 and 384 little-endian floats,
//! appended as they are made. A torn last record is cut off; a cache that cannot be kept is no fault.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::cli::progress::Progress;
use crate::profiler::quality::embedder::{EMBEDDING_DIMENSIONS, Embedder, Embedding, LoadedEmbedder};

type TextHash = [u8; 32];

const RECORD_BYTES: usize = size_of::<TextHash>() + EMBEDDING_DIMENSIONS * size_of::<f32>();

/// Largest cache that is read, about 700,000 prompts.
const CACHE_BYTES_MAX: u64 = 1 << 30;

/// The embeddings of `texts`, in their order.
pub(super) fn embed_all(
    texts: &[&str],
    embedder: &mut LoadedEmbedder,
    cache_dir: &Path,
    progress: &Progress,
) -> anyhow::Result<Vec<Embedding>> {
    let path = cache_dir.join("simulate").join(format!("{:.16}.embeddings", embedder.model_sha256));
    let mut known = load(&path);
    let hashes: Vec<TextHash> = texts.iter().map(|text| Sha256::digest(text.as_bytes()).into()).collect();
    let mut missing: Vec<(TextHash, &str)> = Vec::new();
    for (hash, text) in hashes.iter().zip(texts) {
        if !known.contains_key(hash) && !missing.iter().any(|(other, _)| other == hash) {
            missing.push((*hash, text));
        }
    }
    if !missing.is_empty() {
        let stage = progress.stage("embedding prompts", missing.len());
        let made = embed_missing(&missing, &mut embedder.workers, &path, &|| stage.advance())?;
        known.extend(made);
    }
    let found = hashes.iter().filter_map(|hash| known.get(hash).cloned());
    Ok(found.collect())
}

/// Embeds on as many threads as there are workers.
fn embed_missing(
    missing: &[(TextHash, &str)],
    workers: &mut [Box<dyn Embedder>],
    path: &Path,
    on_done: &(dyn Fn() + Sync),
) -> anyhow::Result<Vec<(TextHash, Embedding)>> {
    let jobs = Mutex::new(missing.iter());
    let cache = Mutex::new(open_for_append(path));
    let made: Vec<anyhow::Result<Vec<(TextHash, Embedding)>>> = std::thread::scope(|scope| {
        let work = |worker: &mut Box<dyn Embedder>| {
            let mut made = Vec::new();
            loop {
                let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((hash, text)) = job else { return Ok(made) };
                let embedding = worker.embed(text)?;
                if let Some(file) = cache.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                    // Without the cache the next run takes longer, nothing else.
                    let _ = file.write_all(&record(hash, &embedding));
                }
                made.push((*hash, embedding));
                on_done();
            }
        };
        let threads: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(move || work(worker))).collect();
        let gone = || Err(anyhow::anyhow!("an embedding thread ended early"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| gone())).collect()
    });
    made.into_iter().collect::<anyhow::Result<Vec<_>>>().map(|parts| parts.concat())
}

fn record(hash: &TextHash, embedding: &[f32; EMBEDDING_DIMENSIONS]) -> Vec<u8> {
    hash.iter().copied().chain(embedding.iter().flat_map(|x| x.to_le_bytes())).collect()
}

fn open_for_append(path: &Path) -> Option<File> {
    std::fs::create_dir_all(path.parent()?).ok()?;
    let file = OpenOptions::new().create(true).append(true).open(path).ok()?;
    let whole = file.metadata().ok()?.len() / RECORD_BYTES as u64 * RECORD_BYTES as u64;
    file.set_len(whole).ok()?;
    Some(file)
}

fn load(path: &PathBuf) -> HashMap<TextHash, Embedding> {
    let mut bytes = Vec::new();
    // No cache yet, or none that can be read: everything is embedded.
    if let Ok(file) = File::open(path) {
        let _ = file.take(CACHE_BYTES_MAX).read_to_end(&mut bytes);
    }
    bytes.as_chunks::<RECORD_BYTES>().0.iter().filter_map(parse).collect()
}

fn parse(record: &[u8; RECORD_BYTES]) -> Option<(TextHash, Embedding)> {
    let (hash, floats) = record.split_first_chunk()?;
    let floats = floats.as_chunks().0;
    let embedding: [f32; EMBEDDING_DIMENSIONS] = std::array::from_fn(|i| f32::from_le_bytes(floats[i]));
    embedding.iter().all(|x| x.is_finite()).then(|| (*hash, Arc::new(embedding)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::profiler::quality::embedder::EmbedderError;

    struct Counting(Arc<AtomicUsize>);

    impl Embedder for Counting {
        fn embed(&mut self, text: &str) -> Result<Embedding, EmbedderError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let mut embedding = [0.0; EMBEDDING_DIMENSIONS];
            embedding[text.len()] = 1.0;
            Ok(Arc::new(embedding))
        }
    }

    #[test]
    fn a_text_is_embedded_once_and_a_torn_record_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let n_embedded = Arc::new(AtomicUsize::new(0));
        let worker = || Box::new(Counting(Arc::clone(&n_embedded))) as Box<dyn Embedder>;
        let mut embedder = LoadedEmbedder { model_sha256: "ab".into(), workers: vec![worker(), worker()] };
        let mut embed =
            |texts: &[&str]| embed_all(texts, &mut embedder, dir.path(), &Progress::hidden()).unwrap();
        let first = embed(&["one", "four", "one"]);
        assert_eq!(n_embedded.load(Ordering::Relaxed), 2);
        assert_eq!(first[0], first[2]);
        let cache = dir.path().join("simulate/ab.embeddings");
        let whole = std::fs::metadata(&cache).unwrap().len();
        OpenOptions::new().append(true).open(&cache).unwrap().write_all(b"torn").unwrap();
        let again = embed(&["four", "seven77"]);
        assert_eq!((again[0].clone(), n_embedded.load(Ordering::Relaxed)), (first[1].clone(), 3));
        assert_eq!(std::fs::metadata(&cache).unwrap().len(), whole / 2 * 3);
    }
}

//! Prompt embeddings: all-MiniLM-L6-v2, mean pooled and L2-normalised.
//!
//! [`load`] finds ONNX Runtime and the model and opens one session per thread; everything behind the
//! [`Embedder`] trait runs on plain threads, because a run takes tens of milliseconds of CPU.

mod locate;
#[cfg(feature = "onnx")]
mod onnx;
pub mod tail;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(super) use locate::set_up_cache;
pub use locate::{EmbedderFiles, locate};

use crate::profiler::quality::params::EmbedderParams;

/// Length of an embedding.
pub const EMBEDDING_DIMENSIONS: usize = 384;

/// An L2-normalised prompt embedding; all entries finite.
pub type Embedding = Arc<[f32; EMBEDDING_DIMENSIONS]>;

/// Turns the tail of a message into its embedding.
pub trait Embedder: Send {
    /// Embeds the last tokens of `text`. Blocks for the run of the model.
    ///
    /// # Errors
    /// [`EmbedderError::Run`] if the model fails or answers with something that is not an embedding.
    fn embed(&mut self, text: &str) -> Result<Embedding, EmbedderError>;
}

/// [`Embedder::embed`], with a panic turned into an error: the text comes from outside, and what trips the
/// tokenizer must cost one prediction, not the thread.
///
/// # Errors
/// As [`Embedder::embed`].
pub fn embed_guarded(embedder: &mut dyn Embedder, text: &str) -> Result<Embedding, EmbedderError> {
    // Nothing of an embedder is left half changed by a panic that would matter to the next run.
    catch_unwind(AssertUnwindSafe(|| embedder.embed(text)))
        .unwrap_or_else(|_| Err(EmbedderError::Run("panic, see standard error".to_owned())))
}

/// Why there is no embedder, or no embedding.
#[derive(Debug, thiserror::Error)]
pub enum EmbedderError {
    /// A file is in none of the places looked at.
    #[error("{file} not found, looked at {}; run `make setup` or set embedder.{key}", join(.searched))]
    NotFound {
        /// The file.
        file: &'static str,
        /// The configuration key that names its place.
        key: &'static str,
        /// Every path tried.
        searched: Vec<PathBuf>,
    },
    /// ONNX Runtime does not load.
    #[error("ONNX Runtime {path} does not load: {reason}; run `make setup` again or set embedder.library")]
    Library {
        /// The library.
        path: PathBuf,
        /// What the loader said.
        reason: String,
    },
    /// The model or its tokenizer does not load or is another model.
    #[error("embedding model {path} is not usable: {reason}; run `make setup` again or set embedder.model")]
    Model {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// One run failed.
    #[error("embedding failed: {0}")]
    Run(String),
    /// The program was built without feature `onnx`.
    #[error("this build has no embedder (built without feature `onnx`)")]
    NotBuilt,
}

fn join(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// A loaded embedding model.
pub struct LoadedEmbedder {
    /// SHA-256 of `model.onnx` in hexadecimal; embeddings of different files must not be compared.
    pub model_sha256: String,
    /// One embedder per thread asked for.
    pub workers: Vec<Box<dyn Embedder>>,
}

/// The embeddings of `texts`, in their order, on as many threads as there are workers. `on_done` is called once per
/// text.
///
/// # Errors
/// The first that fails; the others are given up.
pub fn embed_all(
    texts: &[&str],
    workers: &mut [Box<dyn Embedder>],
    on_done: &(dyn Fn() + Sync),
) -> Result<Vec<Embedding>, EmbedderError> {
    let next = AtomicUsize::new(0);
    let work = |worker: &mut Box<dyn Embedder>| {
        let mut made = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(text) = texts.get(i) else { return Ok(made) };
            match embed_guarded(worker.as_mut(), text) {
                Ok(embedding) => made.push((i, embedding)),
                Err(error) => {
                    next.store(texts.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
            on_done();
        }
    };
    let made = std::thread::scope(|scope| {
        let threads: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(|| work(worker))).collect();
        let joined = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(EmbedderError::Run("panic, see standard error".to_owned())))
        });
        joined.collect::<Result<Vec<_>, _>>()
    })?;
    let mut made: Vec<(usize, Embedding)> = made.into_iter().flatten().collect();
    made.sort_unstable_by_key(|(i, _)| *i);
    Ok(made.into_iter().map(|(_, embedding)| embedding).collect())
}

/// Finds and loads the model, once for each of `params.threads`.
///
/// # Errors
/// [`EmbedderError`] says which file is missing or unusable and how to get it.
#[cfg(feature = "onnx")]
pub fn load(params: &EmbedderParams) -> Result<LoadedEmbedder, EmbedderError> {
    onnx::load(&locate(params)?, params.threads)
}

/// Always [`EmbedderError::NotBuilt`]: this build has no embedder.
///
/// # Errors
/// Always.
#[cfg(not(feature = "onnx"))]
pub fn load(_params: &EmbedderParams) -> Result<LoadedEmbedder, EmbedderError> {
    Err(EmbedderError::NotBuilt)
}

//! Filling a store from a trace of scored prompts.
//!
//! Rows are read, checked and embedded in chunks; a chunk is written in one transaction and reported
//! once it is on disk, so whatever ends the import leaves whole reported chunks. Running it again is
//! cheap: a prompt that is stored with the same text is not embedded a second time.
//!
//! An id that comes again, in the file or in the store, is no fault: the last row wins (see
//! [`QualityStore::write_chunk`]).

mod csv;
mod lines;
mod row;
mod rows;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;

pub use lines::{LINE_BYTES_MAX, Line, TraceLines};
pub use row::parse_row;
pub use rows::{TraceRow, TraceRows};

use crate::profiler::quality::embedder::{Embedder, LoadedEmbedder, embed_guarded};
use crate::profiler::quality::store::{QualityStore, RowOutcome, StoreError, StoredPrompt};

/// Rows per transaction: a second or two of embedding, the most that an interruption can cost.
const CHUNK_ROWS: usize = 64;

/// Bytes of prompts per transaction, so that rows of megabytes do not add up.
const CHUNK_BYTES: usize = 16 << 20;

/// What an import did, in rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImportSummary {
    /// New prompts.
    pub inserted: u64,
    /// Known prompts whose text or scores changed.
    pub updated: u64,
    /// Known prompts with nothing new.
    pub unchanged: u64,
    /// Rows that were refused.
    pub faulty: u64,
    /// The file could not be read to its end.
    pub is_cut: bool,
}

impl ImportSummary {
    /// Rows that are in the store now.
    #[must_use]
    pub fn usable(&self) -> u64 {
        self.inserted + self.updated + self.unchanged
    }
}

/// What happens during an import.
#[derive(Debug)]
pub enum ImportEvent<'a> {
    /// A row was refused; the import goes on.
    Fault {
        /// Line of the file, from 1.
        row: u64,
        /// What is wrong with it.
        reason: &'a str,
    },
    /// Everything so far is on disk.
    Committed {
        /// Totals so far.
        summary: ImportSummary,
        /// Bytes of the file read so far.
        position: u64,
    },
}

/// Why an import ended early.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The trace cannot be opened.
    #[error("cannot read {path}")]
    Open {
        /// The file.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The store refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Imports the trace at `path` into `store`. Reading ends at the first byte that cannot be read (a
/// truncated gzip file), which counts as a fault.
///
/// # Errors
/// [`ImportError`] if the file cannot be opened or the store cannot be written; what was reported as
/// committed stays.
pub fn import_trace(
    path: &Path,
    store: &mut QualityStore,
    embedder: &mut LoadedEmbedder,
    on_event: &mut dyn FnMut(ImportEvent<'_>),
) -> Result<ImportSummary, ImportError> {
    store.check_embedder(&embedder.model_sha256)?;
    let mut rows = TraceRows::open(path)
        .map_err(|source| ImportError::Open { path: path.display().to_string(), source })?;
    let mut summary = ImportSummary::default();
    loop {
        let mut chunk = next_chunk(&mut rows);
        summary.is_cut = rows.is_cut();
        if chunk.is_empty() {
            return Ok(summary);
        }
        embed_new(store, &mut embedder.workers, &mut chunk)?;
        let mut prompts = Vec::with_capacity(chunk.len());
        for (row, parsed) in chunk {
            match parsed {
                Ok(prompt) => prompts.push(prompt),
                Err(reason) => {
                    summary.faulty += 1;
                    on_event(ImportEvent::Fault { row, reason: &reason });
                }
            }
        }
        for outcome in store.write_chunk(&embedder.model_sha256, &prompts)? {
            match outcome {
                RowOutcome::Inserted => summary.inserted += 1,
                RowOutcome::Updated => summary.updated += 1,
                RowOutcome::Unchanged => summary.unchanged += 1,
            }
        }
        on_event(ImportEvent::Committed { summary, position: rows.position() });
    }
}

/// The next rows; empty at the end.
fn next_chunk(rows: &mut TraceRows) -> Vec<TraceRow> {
    let mut chunk = Vec::new();
    let mut bytes = 0;
    while chunk.len() < CHUNK_ROWS && bytes < CHUNK_BYTES {
        let Some(row) = rows.next() else { break };
        bytes += row.1.as_ref().map_or(0, |prompt| prompt.text.len());
        chunk.push(row);
    }
    chunk
}

/// Embeds the prompts of `chunk` that the store does not hold, on as many threads as there are workers.
fn embed_new(
    store: &QualityStore,
    workers: &mut [Box<dyn Embedder>],
    chunk: &mut [TraceRow],
) -> Result<(), StoreError> {
    let mut ids = BTreeSet::new();
    let mut jobs = Vec::new();
    for (_, parsed) in chunk {
        let Ok(prompt) = parsed.as_ref() else { continue };
        // The second row with an id may meet another text than the store holds now.
        let is_first = ids.insert(prompt.id.clone());
        if !is_first || !store.holds(&prompt.id, &prompt.text)? {
            jobs.push(parsed);
        }
    }
    let jobs = Mutex::new(jobs.into_iter());
    std::thread::scope(|scope| {
        for worker in workers {
            scope.spawn(|| {
                loop {
                    // The guard is gone before the embedding starts.
                    let job = jobs.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
                    let Some(parsed) = job else { break };
                    embed(worker.as_mut(), parsed);
                }
            });
        }
    });
    Ok(())
}

fn embed(worker: &mut dyn Embedder, parsed: &mut Result<StoredPrompt, String>) {
    let Ok(prompt) = parsed else { return };
    match embed_guarded(worker, &prompt.text) {
        Ok(embedding) => prompt.embedding = Some(embedding),
        Err(error) => *parsed = Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::profiler::quality::embedder::{EMBEDDING_DIMENSIONS, EmbedderError, Embedding};

    /// Counts its calls; fails on texts that say so.
    struct CountingEmbedder(Arc<AtomicU64>);

    impl Embedder for CountingEmbedder {
        fn embed(&mut self, text: &str) -> Result<Embedding, EmbedderError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            if text == "unembeddable" {
                return Err(EmbedderError::Run("no".into()));
            }
            let mut embedding = [0.0; EMBEDDING_DIMENSIONS];
            embedding[text.len() % EMBEDDING_DIMENSIONS] = 1.0;
            Ok(Arc::new(embedding))
        }
    }

    struct Fixture {
        dir: tempfile::TempDir,
        n_embedded: Arc<AtomicU64>,
        faults: Vec<(u64, String)>,
        commits: Vec<u64>,
    }

    impl Fixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            Self { dir, n_embedded: Arc::default(), faults: vec![], commits: vec![] }
        }

        fn store(&self) -> QualityStore {
            QualityStore::open_or_create(&self.dir.path().join("store")).unwrap()
        }

        fn import(&mut self, lines: &[String]) -> ImportSummary {
            let trace = self.dir.path().join("trace.jsonl");
            std::fs::write(&trace, lines.join("\n")).unwrap();
            let worker = || Box::new(CountingEmbedder(Arc::clone(&self.n_embedded))) as Box<dyn Embedder>;
            let mut embedder =
                LoadedEmbedder { model_sha256: "aa".into(), workers: vec![worker(), worker()] };
            let mut store = self.store();
            let (faults, commits) = (&mut self.faults, &mut self.commits);
            faults.clear();
            let mut on_event = |event: ImportEvent<'_>| match event {
                ImportEvent::Fault { row, reason } => faults.push((row, reason.to_owned())),
                ImportEvent::Committed { summary, .. } => commits.push(summary.usable()),
            };
            import_trace(&trace, &mut store, &mut embedder, &mut on_event).unwrap()
        }
    }

    fn row(id: &str, prompt: &str, score: f64) -> String {
        format!(r#"{{"id":"{id}","prompt":"{prompt}","models":{{"m":{{"score":{score:?}}}}}}}"#)
    }

    #[test]
    fn good_rows_are_kept_and_bad_ones_told_by_number() {
        let mut f = Fixture::new();
        let lines = [
            row("a", "x", 1.0),
            "{".into(),
            String::new(),
            row("b", "unembeddable", 0.5),
            row("c", "y", 7.0),
            row("d", "z", 0.5),
        ];
        let summary = f.import(&lines);
        assert_eq!(summary, ImportSummary { inserted: 2, faulty: 3, ..ImportSummary::default() });
        assert_eq!(f.faults.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [2, 4, 5]);
        assert!(f.faults[1].1.contains("embedding failed"), "{:?}", f.faults);
        assert_eq!(f.store().stats().unwrap().prompts, 2);
    }

    #[test]
    fn comma_separated_values_are_rows_too() {
        let f = Fixture::new();
        let trace = f.dir.path().join("trace.CSV");
        std::fs::write(&trace, "id,prompt,score:m,completion_tokens:m\na,x,1,7\nb,y,\nc,\"z\nz\",0.5,\n")
            .unwrap();
        let worker = Box::new(CountingEmbedder(Arc::clone(&f.n_embedded)));
        let mut embedder = LoadedEmbedder { model_sha256: "aa".into(), workers: vec![worker] };
        let mut faults = Vec::new();
        let mut on_event = |event: ImportEvent<'_>| {
            if let ImportEvent::Fault { row, reason } = event {
                faults.push((row, reason.to_owned()));
            }
        };
        let summary = import_trace(&trace, &mut f.store(), &mut embedder, &mut on_event).unwrap();
        assert_eq!(summary, ImportSummary { inserted: 2, faulty: 1, ..ImportSummary::default() });
        assert_eq!(faults, [(3, "it has 3 fields where the first line has 4".to_owned())]);
    }

    #[test]
    fn importing_again_embeds_nothing_again() {
        let mut f = Fixture::new();
        let lines: Vec<_> = (0..150).map(|i| row(&format!("p{i}"), &format!("text {i}"), 0.5)).collect();
        assert_eq!(f.import(&lines).inserted, 150);
        assert_eq!(f.commits, [64, 128, 150]);
        assert_eq!(f.n_embedded.load(Ordering::Relaxed), 150);
        assert_eq!(f.import(&lines).unchanged, 150);
        assert_eq!(f.n_embedded.load(Ordering::Relaxed), 150);
        assert_eq!(f.import(&[row("p0", "text 0", 0.25)]).updated, 1);
        assert_eq!(f.n_embedded.load(Ordering::Relaxed), 150);
    }

    #[test]
    fn of_rows_with_one_id_the_last_wins() {
        let mut f = Fixture::new();
        f.import(&[row("a", "one", 1.0)]);
        let summary = f.import(&[row("a", "one", 0.5), row("a", "two", 0.25), row("a", "one", 0.75)]);
        assert_eq!(summary, ImportSummary { updated: 3, ..ImportSummary::default() });
        let store = f.store();
        assert!(store.holds("a", "one").unwrap());
        assert!((store.stats().unwrap().models[0].mean_score - 0.75).abs() < 1e-12);
    }
}

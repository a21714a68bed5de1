//! New vectors for every prompt, by the model at hand: after another model file, or another way to count the format.
//!
//! They gather in a database of their own beside the store, so that an interruption costs a chunk and no reader meets a
//! mixture; one transaction puts all of them in place.

use std::fs::OpenOptions;
use std::path::PathBuf;

use rusqlite::{TransactionBehavior, params};

use crate::profiler::quality::embedder::Embedding;
use crate::profiler::quality::format::format_numbers;
use crate::profiler::quality::store::write::{Name, embedding_blob, format_blob, ord_of};
use crate::profiler::quality::store::{QualityStore, StoreError};

/// Texts of prompts, and of feedback that keeps them, that are not staged yet.
const MISSING: &str =
    "SELECT text FROM (SELECT text FROM prompts UNION SELECT text FROM feedback WHERE text IS NOT NULL)
     WHERE text NOT IN (SELECT text FROM staging.vectors)";

/// A rebuild under way. Dropping it keeps what was staged; the next one by the same model goes on.
pub struct Rebuild<'s> {
    store: &'s mut QualityStore,
    staging: PathBuf,
    model_sha256: String,
}

impl QualityStore {
    /// Begins to make all vectors again with the model file of this hash, or goes on.
    ///
    /// # Errors
    /// [`StoreError`] if the staging file beside the store cannot be written.
    pub fn rebuild(&mut self, model_sha256: &str) -> Result<Rebuild<'_>, StoreError> {
        let staging = self.path.with_file_name(format!("rebuild-{model_sha256:.16}.sqlite"));
        // An attached database is opened as the store was, which is not made where it is missing; an empty file is one.
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&staging)
            .map_err(|e| StoreError::Io { path: staging.clone(), reason: e.to_string() })?;
        let attached =
            self.connection.execute("ATTACH ?1 AS staging", [staging.to_string_lossy()]).and_then(|_| {
                self.connection.execute_batch(
                    "PRAGMA staging.journal_mode = WAL;
                 CREATE TABLE IF NOT EXISTS staging.vectors (
                    text TEXT PRIMARY KEY, embedding BLOB NOT NULL, format BLOB NOT NULL) STRICT",
                )
            });
        attached.map_err(|e| self.failed(&e))?;
        Ok(Rebuild { store: self, staging, model_sha256: model_sha256.to_owned() })
    }
}

impl Rebuild<'_> {
    /// Distinct texts that are not staged yet.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read.
    pub fn n_missing(&self) -> Result<usize, StoreError> {
        let sql = format!("SELECT count(*) FROM ({MISSING})");
        let n: i64 =
            self.store.connection.query_row(&sql, [], |row| row.get(0)).map_err(|e| self.store.failed(&e))?;
        Ok(usize::try_from(n).unwrap_or_default())
    }

    /// Up to `n` texts that are not staged yet.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read.
    pub fn missing(&self, n: usize) -> Result<Vec<String>, StoreError> {
        let sql = format!("{MISSING} LIMIT ?1");
        let connection = &self.store.connection;
        connection
            .prepare(&sql)
            .and_then(|mut statement| {
                statement.query_map([i64::try_from(n).unwrap_or(i64::MAX)], |row| row.get(0))?.collect()
            })
            .map_err(|e| self.store.failed(&e))
    }

    /// Keeps the embeddings of these texts; they are on disk on return.
    ///
    /// # Errors
    /// [`StoreError`] if the staging file cannot be written.
    pub fn stage(&mut self, made: &[(String, Embedding)]) -> Result<(), StoreError> {
        self.write(made).map_err(|e| self.store.failed(&e))
    }

    fn write(&mut self, made: &[(String, Embedding)]) -> rusqlite::Result<()> {
        let transaction = self.store.connection.transaction()?;
        for (text, embedding) in made {
            transaction
                .prepare("INSERT OR REPLACE INTO staging.vectors VALUES (?1, ?2, ?3)")?
                .execute(params![text, embedding_blob(embedding), format_blob(&format_numbers(text))])?;
        }
        transaction.commit()
    }

    /// Puts every staged vector in place at once and removes the staging file; `false` if prompts have come meanwhile
    /// that are not staged.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be written; then it is as before.
    pub fn finish(&mut self) -> Result<bool, StoreError> {
        if !self.replace().map_err(|e| self.store.failed(&e))? {
            return Ok(false);
        }
        self.store.connection.execute_batch("DETACH staging").map_err(|e| self.store.failed(&e))?;
        for suffix in ["", "-wal", "-shm"] {
            let mut file = self.staging.clone().into_os_string();
            file.push(suffix);
            // What cannot be removed is a leftover file, no more.
            let _ = std::fs::remove_file(file);
        }
        Ok(true)
    }

    fn replace(&mut self) -> rusqlite::Result<bool> {
        let transaction = self.store.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let embedder = ord_of(&transaction, Name::Embedder(&self.model_sha256))?;
        let n_prompts: i64 =
            transaction.query_row("SELECT count(*) FROM main.prompts", [], |row| row.get(0))?;
        let n_replaced = transaction.execute(
            "UPDATE main.prompts SET embedding = made.embedding, format = made.format, embedder = ?1
             FROM staging.vectors AS made WHERE made.text = main.prompts.text",
            [embedder],
        )?;
        if i64::try_from(n_replaced).is_ok_and(|n| n < n_prompts) {
            return Ok(false);
        }
        transaction.execute(
            "UPDATE main.feedback SET embedding = made.embedding, format = made.format, embedder = ?1
             FROM staging.vectors AS made WHERE made.text = main.feedback.text",
            [embedder],
        )?;
        // What clients said of prompts that were not kept cannot be compared any more; the scores stay.
        let sql = "UPDATE main.feedback SET embedding = NULL, embedder = NULL WHERE embedder <> ?1";
        transaction.execute(sql, [embedder])?;
        transaction.execute("DELETE FROM embedders WHERE ord <> ?1", [embedder])?;
        transaction.commit()?;
        Ok(true)
    }
}

impl Drop for Rebuild<'_> {
    fn drop(&mut self) {
        // Detached already, or given up: either way nothing is left to do for the staging file.
        let _ = self.store.connection.execute_batch("DETACH staging");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::profiler::quality::embedder::EMBEDDING_DIMENSIONS;
    use crate::profiler::quality::store::write::tests::prompt;

    fn made(texts: Vec<String>) -> Vec<(String, Embedding)> {
        let mut embedding = [0.0; EMBEDDING_DIMENSIONS];
        embedding[7] = 1.0;
        texts.into_iter().map(|text| (text, Arc::new(embedding))).collect()
    }

    #[test]
    fn all_vectors_change_at_once_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = QualityStore::open_or_create(dir.path()).unwrap();
        let rows = [
            prompt("a", "one", &[("m", 0.5)]),
            prompt("b", "two!", &[("m", 1.0)]),
            prompt("c", "one", &[("m", 0.0)]),
        ];
        store.write_chunk("old", &rows).unwrap();
        let mut rebuild = store.rebuild("new").unwrap();
        assert_eq!(rebuild.n_missing().unwrap(), 2);
        let first = made(rebuild.missing(1).unwrap());
        rebuild.stage(&first).unwrap();
        assert!(!rebuild.finish().unwrap());
        drop(rebuild);
        assert_eq!(
            store.embedder_sha256().unwrap().as_deref(),
            Some("old"),
            "an interruption changes nothing"
        );

        let mut rebuild = store.rebuild("new").unwrap();
        assert_eq!(rebuild.n_missing().unwrap(), 1, "what was staged is not made again");
        let rest = made(rebuild.missing(10).unwrap());
        rebuild.stage(&rest).unwrap();
        assert!(rebuild.finish().unwrap());
        drop(rebuild);
        assert_eq!(store.embedder_sha256().unwrap().as_deref(), Some("new"));
        let profile = store.load_profile(&["m".to_owned()]).unwrap();
        assert!((0..3).all(|row| profile.embedding(row)[7] > 0.5));
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("rebuild")), "{left:?}");
    }
}

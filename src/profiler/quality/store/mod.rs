//! The quality store: a directory with one SQLite database of profiled prompts and what each model
//! scored on them.
//!
//! The database is the truth; whatever is computed from it (vectors, indexes) can be made again. It is
//! written in whole transactions that are on disk before they are acknowledged, and a file this version
//! does not understand is refused, never changed.

mod feedback;
mod profiled;
mod prompts;
mod read;
mod rebuild;
mod write;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

pub use feedback::{FeedbackRow, FeedbackWritten, StoredFeedback};
pub use profiled::ProfiledAnswer;
pub use prompts::PruneFilter;
pub use read::{LabelledProfile, ModelStats, RowLabel, StoreStats, TagStats};
pub use rebuild::Rebuild;
pub use write::{RowOutcome, StoredPrompt, StoredScore};

/// File name of the database in the store's directory.
pub const DATABASE_FILE: &str = "quality.sqlite";

/// What makes each version of the schema from the one before, version 1 first. Never changed once released.
const MIGRATIONS: [&str; 2] = [include_str!("schema.sql"), include_str!("schema_2.sql")];

/// `user_version` of the databases this program writes.
pub const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

/// Longest completion that is believed; one absurd row must not spoil every mean.
pub const COMPLETION_TOKENS_MAX: f64 = 1e7;

/// `application_id` of a quality store: "CEMA".
const APPLICATION_ID: i64 = 0x4345_4D41;

/// How long a writer waits for another process's transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no database in the directory.
    #[error(
        "no quality store in {0} (no {DATABASE_FILE}); make one with `cema-router quality import --store {0} --trace FILE`"
    )]
    Missing(PathBuf),
    /// The file is damaged or something else.
    #[error(
        "{path} is damaged or not a quality store ({reason}); restore it from a backup, or move it away and import again"
    )]
    Damaged {
        /// The database.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A later version of this program wrote it.
    #[error(
        "{path} has schema version {found}, this program knows up to {SCHEMA_VERSION}; use a newer cema-router"
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its version.
        found: i64,
    },
    /// Its embeddings were made by another model file.
    #[error(
        "{path} holds embeddings of model file {stored:.12}…, the model here is {offered:.12}…: they must not be mixed; use the model the store was made with (--model, embedder.model) or import into a new store"
    )]
    OtherEmbedder {
        /// The database.
        path: PathBuf,
        /// SHA-256 of the model file behind the store.
        stored: String,
        /// SHA-256 of the model file at hand.
        offered: String,
    },
    /// Another process changed a row between looking it up and writing it.
    #[error("prompt `{0}` was changed by another process meanwhile; run the import again")]
    Conflict(String),
    /// Reading or writing failed.
    #[error("quality store {path}: {reason}")]
    Io {
        /// The database or its directory.
        path: PathBuf,
        /// What failed.
        reason: String,
    },
}

/// An open quality store.
#[derive(Debug)]
pub struct QualityStore {
    connection: Connection,
    path: PathBuf,
}

impl QualityStore {
    /// Opens the store in `dir`.
    ///
    /// # Errors
    /// [`StoreError::Missing`] if there is none; [`StoreError::Damaged`] or [`StoreError::Newer`] if it
    /// must not be touched.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(DATABASE_FILE);
        if !path.is_file() {
            return Err(StoreError::Missing(dir.to_path_buf()));
        }
        Self::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)
    }

    /// Opens the store in `dir`, making directory and database if there is none.
    ///
    /// # Errors
    /// As [`QualityStore::open`], and [`StoreError::Io`] if the directory cannot be made.
    pub fn open_or_create(dir: &Path) -> Result<Self, StoreError> {
        std::fs::create_dir_all(dir)
            .map_err(|e| StoreError::Io { path: dir.to_path_buf(), reason: e.to_string() })?;
        let path = dir.join(DATABASE_FILE);
        Self::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)
    }

    fn connect(path: PathBuf, flags: OpenFlags) -> Result<Self, StoreError> {
        let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&path, flags).map_err(|e| sqlite_error(&path, &e))?;
        let mut store = Self { connection, path };
        store.prepare().map_err(|e| sqlite_error(&store.path, &e))??;
        Ok(store)
    }

    /// Checks what the file is before anything writes to it; makes the schema in an empty one.
    fn prepare(&mut self) -> rusqlite::Result<Result<(), StoreError>> {
        let connection = &mut self.connection;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let (version, application) = (pragma("user_version")?, pragma("application_id")?);
        let n_objects: i64 =
            connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
        let is_new = version == 0 && application == 0 && n_objects == 0;
        if !is_new && application != APPLICATION_ID {
            let reason = "it is the database of another program".to_owned();
            return Ok(Err(StoreError::Damaged { path: self.path.clone(), reason }));
        }
        if version > SCHEMA_VERSION {
            return Ok(Err(StoreError::Newer { path: self.path.clone(), found: version }));
        }
        let check: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if check != "ok" {
            return Ok(Err(StoreError::Damaged { path: self.path.clone(), reason: check }));
        }
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        if version < SCHEMA_VERSION {
            migrate(connection)?;
        }
        Ok(Ok(()))
    }

    fn failed(&self, error: &rusqlite::Error) -> StoreError {
        sqlite_error(&self.path, error)
    }

    fn damaged(&self, reason: impl Into<String>) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), reason: reason.into() }
    }
}

/// Brings an empty or older database to [`SCHEMA_VERSION`], whole or not at all.
fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have been faster.
    let version: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    for migration in MIGRATIONS.iter().skip(usize::try_from(version).unwrap_or(usize::MAX)) {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    transaction.commit()
}

fn sqlite_error(path: &Path, error: &rusqlite::Error) -> StoreError {
    let (path, reason) = (path.to_path_buf(), error.to_string());
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => StoreError::Damaged { path, reason },
        _ => StoreError::Io { path, reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiler::quality::store::write::tests::prompt;

    #[test]
    fn a_store_is_made_once_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(QualityStore::open(dir.path()), Err(StoreError::Missing(_))));
        assert!(!dir.path().join(DATABASE_FILE).exists(), "looking does not create");
        let mut store = QualityStore::open_or_create(dir.path()).unwrap();
        store.write_chunk("aa", &[prompt("p1", "text", &[("m", 0.5)])]).unwrap();
        drop(store);
        let again = QualityStore::open_or_create(dir.path()).unwrap();
        assert_eq!(again.stats().unwrap().prompts, 1);
    }

    #[test]
    fn a_store_of_version_1_is_brought_up_to_date_with_its_rows() {
        let dir = tempfile::tempdir().unwrap();
        let old = Connection::open(dir.path().join(DATABASE_FILE)).unwrap();
        old.execute_batch(MIGRATIONS[0]).unwrap();
        old.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
        old.pragma_update(None, "user_version", 1).unwrap();
        old.execute_batch(
            "INSERT INTO embedders VALUES (1, 'aa', 384);
             INSERT INTO models VALUES (1, 'm');
             INSERT INTO prompts VALUES (1, 'p', 'text', NULL, NULL, NULL, NULL, 1, zeroblob(1536), zeroblob(112));
             INSERT INTO scores VALUES (1, 1, 0.5, NULL, NULL);",
        )
        .unwrap();
        drop(old);
        let store = QualityStore::open(dir.path()).unwrap();
        let stats = store.stats().unwrap();
        assert_eq!((stats.schema_version, stats.prompts, stats.scores), (SCHEMA_VERSION, 1, 1));
        assert!(store.recent_feedback("aa", 10).unwrap().is_empty());
        drop(store);
        assert_eq!(QualityStore::open(dir.path()).unwrap().stats().unwrap(), stats);
    }

    #[test]
    fn a_file_of_something_else_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DATABASE_FILE);
        let garbage =
            b"not a database, but somebody's notes, long enough to be read as a header ............"
                .repeat(20);
        std::fs::write(&path, &garbage).unwrap();
        let error = QualityStore::open_or_create(dir.path()).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("move it away"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), garbage);

        std::fs::remove_file(&path).unwrap();
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
        let error = QualityStore::open_or_create(dir.path()).unwrap_err();
        assert!(error.to_string().contains("another program"), "{error}");
    }

    #[test]
    fn a_newer_schema_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        drop(QualityStore::open_or_create(dir.path()).unwrap());
        let path = dir.path().join(DATABASE_FILE);
        Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
        let before = std::fs::read(&path).unwrap();
        let error = QualityStore::open_or_create(dir.path()).unwrap_err();
        assert!(matches!(error, StoreError::Newer { found: 99, .. }), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn a_damaged_page_is_found_at_opening() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = QualityStore::open_or_create(dir.path()).unwrap();
        let long = "many words ".repeat(1000);
        let prompts: Vec<_> = (0..20).map(|i| prompt(&format!("p{i}"), &long, &[("m", 0.5)])).collect();
        store.write_chunk("aa", &prompts).unwrap();
        drop(store);
        let path = dir.path().join(DATABASE_FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        let half = bytes.len() / 2;
        bytes.truncate(half);
        std::fs::write(&path, &bytes).unwrap();
        let error = QualityStore::open(dir.path()).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }
}

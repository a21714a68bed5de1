//! What clients said of answers they got.

use std::sync::Arc;

use rusqlite::{OptionalExtension, Transaction, TransactionBehavior, params};

use crate::profiler::quality::embedder::{EMBEDDING_DIMENSIONS, Embedding};
use crate::profiler::quality::format::FORMAT_NUMBERS;
use crate::profiler::quality::store::read::floats;
use crate::profiler::quality::store::write::{Name, embedding_blob, format_blob, ord_of};
use crate::profiler::quality::store::{QualityStore, StoreError};

/// One score to be kept. The latest one of an answer stands.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredFeedback {
    /// Name of the API key that asked; empty where the router is open.
    pub owner: Arc<str>,
    /// The request's id.
    pub request_id: Arc<str>,
    /// When it was answered, in seconds since 1970: ids may come again.
    pub answered_at: f64,
    /// When the score was given, in seconds since 1970.
    pub given_at: f64,
    /// Destination that answered.
    pub destination: Arc<str>,
    /// Its public model name.
    pub model: Arc<str>,
    /// The score, in `[0, 1]`.
    pub score: f64,
    /// q̂ when it was placed, in `[0, 1]`.
    pub predicted: f64,
    /// A word of the client's own.
    pub label: Option<Arc<str>>,
    /// Length of the answer.
    pub completion_tokens: Option<f64>,
    /// Price of the answer.
    pub cost_usd: Option<f64>,
    /// The prompt, where prompts are kept.
    pub text: Option<Arc<str>>,
    /// Its embedding; without one the score informs no prediction.
    pub embedding: Option<Embedding>,
    /// Its format numbers.
    pub format: [f64; FORMAT_NUMBERS],
}

/// One score as predictions use it.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedbackRow {
    /// Its number in the store.
    pub ord: i64,
    /// Public model name.
    pub model: String,
    /// The score, in `[0, 1]`.
    pub score: f64,
    /// q̂ when the request was placed, in `[0, 1]`.
    pub predicted: f64,
    /// When the score was given, in seconds since 1970.
    pub given_at: f64,
    /// Embedding of the prompt; `None` where there is none, or one of another model file.
    pub embedding: Option<Box<[f32; EMBEDDING_DIMENSIONS]>>,
    /// Format numbers of the prompt.
    pub format: [f64; FORMAT_NUMBERS],
}

/// What writing a score did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeedbackWritten {
    /// Its number in the store.
    pub ord: i64,
    /// The score that it takes the place of.
    pub previous: Option<f64>,
}

impl QualityStore {
    /// Writes all of `rows` or none, and returns once they are on disk. Embeddings are of the model file
    /// `model_sha256`.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be written.
    pub fn write_feedback(
        &mut self,
        model_sha256: &str,
        rows: &[StoredFeedback],
    ) -> Result<Vec<FeedbackWritten>, StoreError> {
        let path = self.path.clone();
        let failed = |e: rusqlite::Error| super::sqlite_error(&path, &e);
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let written = rows
            .iter()
            .map(|row| write_row(&transaction, model_sha256, row))
            .collect::<rusqlite::Result<Vec<_>>>()
            .map_err(failed)?;
        transaction.commit().map_err(failed)?;
        Ok(written)
    }

    /// The last `n_max` scores given, oldest first.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if a vector is not what the schema promises.
    pub fn recent_feedback(&self, model_sha256: &str, n_max: usize) -> Result<Vec<FeedbackRow>, StoreError> {
        self.read_feedback(model_sha256, n_max)
            .map_err(|e| self.failed(&e))?
            .map_err(|ord| self.damaged(format!("the vectors of feedback {ord} are unusable")))
    }

    /// `Err` with the number of an unusable row.
    fn read_feedback(
        &self,
        model_sha256: &str,
        n_max: usize,
    ) -> rusqlite::Result<Result<Vec<FeedbackRow>, i64>> {
        let mut statement = self.connection.prepare(
            "SELECT feedback.ord, name, score, predicted, given_at, format,
                    CASE WHEN model_sha256 = ?1 THEN embedding END
             FROM feedback JOIN models ON models.ord = feedback.model
             LEFT JOIN embedders ON embedders.ord = feedback.embedder
             ORDER BY given_at DESC, feedback.ord DESC LIMIT ?2",
        )?;
        let n_max = i64::try_from(n_max).unwrap_or(i64::MAX);
        let mut rows = statement.query(params![model_sha256, n_max])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let ord = row.get(0)?;
            let embedding = match row.get_ref(6)? {
                rusqlite::types::ValueRef::Null => None,
                blob => match floats(blob, f32::from_le_bytes) {
                    Some(embedding) => Some(Box::new(embedding)),
                    None => return Ok(Err(ord)),
                },
            };
            let Some(format) = floats(row.get_ref(5)?, f64::from_le_bytes) else { return Ok(Err(ord)) };
            found.push(FeedbackRow {
                ord,
                model: row.get(1)?,
                score: row.get(2)?,
                predicted: row.get(3)?,
                given_at: row.get(4)?,
                embedding,
                format,
            });
        }
        found.reverse();
        Ok(Ok(found))
    }
}

fn write_row(
    transaction: &Transaction<'_>,
    model_sha256: &str,
    row: &StoredFeedback,
) -> rusqlite::Result<FeedbackWritten> {
    let previous: Option<f64> = transaction
        .prepare("SELECT score FROM feedback WHERE owner = ?1 AND request_id = ?2 AND answered_at = ?3")?
        .query_row(params![row.owner, row.request_id, row.answered_at], |found| found.get(0))
        .optional()?;
    let model = ord_of(transaction, Name::Model(&row.model))?;
    let embedder = match &row.embedding {
        Some(_) => Some(ord_of(transaction, Name::Embedder(model_sha256))?),
        None => None,
    };
    let ord = transaction
        .prepare(
            "INSERT INTO feedback (owner, request_id, answered_at, given_at, destination, model, score, predicted,
                                   label, completion_tokens, cost_usd, text, embedder, embedding, format)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
             ON CONFLICT (owner, request_id, answered_at) DO UPDATE
             SET given_at = excluded.given_at, score = excluded.score, label = excluded.label
             RETURNING ord",
        )?
        .query_row(
            params![
                row.owner,
                row.request_id,
                row.answered_at,
                row.given_at,
                row.destination,
                model,
                row.score,
                row.predicted,
                row.label,
                row.completion_tokens,
                row.cost_usd,
                row.text,
                embedder,
                row.embedding.as_deref().map(embedding_blob),
                format_blob(&row.format)
            ],
            |written| written.get(0),
        )?;
    Ok(FeedbackWritten { ord, previous })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, score: f64, given_at: f64) -> StoredFeedback {
        StoredFeedback {
            owner: "app".into(),
            request_id: id.into(),
            answered_at: 1.0,
            given_at,
            destination: "n/m".into(),
            model: "m".into(),
            score,
            predicted: 0.5,
            label: None,
            completion_tokens: Some(7.0),
            cost_usd: None,
            text: None,
            embedding: Some(Arc::new([0.5; EMBEDDING_DIMENSIONS])),
            format: [1.0; FORMAT_NUMBERS],
        }
    }

    #[test]
    fn the_latest_score_of_an_answer_stands() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = QualityStore::open_or_create(dir.path()).unwrap();
        let written = store.write_feedback("aa", &[row("a", 1.0, 10.0), row("b", 0.5, 11.0)]).unwrap();
        assert_eq!(written.iter().map(|w| w.previous).collect::<Vec<_>>(), [None, None]);
        let again = store.write_feedback("aa", &[row("a", 0.0, 12.0)]).unwrap();
        assert_eq!(again, [FeedbackWritten { ord: written[0].ord, previous: Some(1.0) }]);
        // The same id, answered at another time or asked with another key, is another request.
        let later = StoredFeedback { answered_at: 2.0, ..row("a", 0.25, 13.0) };
        let theirs = StoredFeedback { owner: "".into(), ..row("a", 0.75, 14.0) };
        store.write_feedback("aa", &[later, theirs]).unwrap();
        let scores: Vec<_> = store.recent_feedback("aa", 10).unwrap().iter().map(|row| row.score).collect();
        assert_eq!(scores, [0.5, 0.0, 0.25, 0.75], "oldest first");
        let scores: Vec<_> = store.recent_feedback("aa", 2).unwrap().iter().map(|row| row.score).collect();
        assert_eq!(scores, [0.25, 0.75]);
    }

    #[test]
    fn embeddings_of_another_model_file_are_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = QualityStore::open_or_create(dir.path()).unwrap();
        let bare = StoredFeedback { embedding: None, ..row("b", 0.5, 11.0) };
        store.write_feedback("aa", &[row("a", 1.0, 10.0), bare]).unwrap();
        let has_embedding = |sha256: &str| {
            let rows = store.recent_feedback(sha256, 10).unwrap();
            rows.iter().map(|row| row.embedding.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(has_embedding("aa"), [true, false]);
        assert_eq!(has_embedding("bb"), [false, false]);
    }

    #[test]
    fn a_score_out_of_range_leaves_nothing_of_its_chunk() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = QualityStore::open_or_create(dir.path()).unwrap();
        let error = store.write_feedback("aa", &[row("a", 1.0, 10.0), row("b", 1.5, 11.0)]).unwrap_err();
        assert!(error.to_string().contains("CHECK"), "{error}");
        assert!(store.recent_feedback("aa", 10).unwrap().is_empty());
    }
}

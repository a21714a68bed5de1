//! Adding prompts and scores.

use rusqlite::{OptionalExtension, Transaction, TransactionBehavior, params};

use crate::profiler::quality::embedder::{EMBEDDING_DIMENSIONS, Embedding};
use crate::profiler::quality::format::{FORMAT_NUMBERS, format_numbers};
use crate::profiler::quality::store::{QualityStore, StoreError};

/// One profiled prompt, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredPrompt {
    /// Unique in the store.
    pub id: String,
    /// The last user message.
    pub text: String,
    /// Benchmark it belongs to.
    pub benchmark: Option<String>,
    /// Task within the benchmark.
    pub task: Option<String>,
    /// Where it comes from.
    pub source: Option<String>,
    /// Licence of the text.
    pub license: Option<String>,
    /// Embedding of the text; `None` where the store holds this id with this very text.
    pub embedding: Option<Embedding>,
    /// At least one score.
    pub scores: Vec<StoredScore>,
}

/// What one model achieved on a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredScore {
    /// Public model name.
    pub model: String,
    /// Score in `[0, 1]`.
    pub score: f64,
    /// Length of the answer; not negative.
    pub completion_tokens: Option<f64>,
    /// Price of the answer; not negative.
    pub cost_usd: Option<f64>,
}

/// What writing a prompt changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOutcome {
    /// The id is new.
    Inserted,
    /// The id was known: its text was replaced, and its scores with it, or scores were added or changed.
    Updated,
    /// Everything was there already.
    Unchanged,
}

impl QualityStore {
    /// Whether `id` is stored with exactly this text, so that it need not be embedded again.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read.
    pub fn holds(&self, id: &str, text: &str) -> Result<bool, StoreError> {
        self.connection
            .prepare("SELECT EXISTS (SELECT 1 FROM prompts WHERE id = ?1 AND text = ?2)")
            .and_then(|mut statement| statement.query_row(params![id, text], |row| row.get(0)))
            .map_err(|e| self.failed(&e))
    }

    /// Writes all of `prompts` or none, and returns once they are on disk.
    ///
    /// A known id with another text is replaced, scores included; with the same text its scores are
    /// merged: models named here win, the others stay.
    ///
    /// # Errors
    /// [`StoreError::OtherEmbedder`] if the store's embeddings come from another model file.
    pub fn write_chunk(
        &mut self,
        model_sha256: &str,
        prompts: &[StoredPrompt],
    ) -> Result<Vec<RowOutcome>, StoreError> {
        self.check_embedder(model_sha256)?;
        let path = self.path.clone();
        let failed = |e: rusqlite::Error| super::sqlite_error(&path, &e);
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let embedder = ord_of(&transaction, Name::Embedder(model_sha256)).map_err(failed)?;
        let mut outcomes = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            let outcome = write_prompt(&transaction, embedder, prompt).map_err(failed)?;
            outcomes.push(outcome.ok_or_else(|| StoreError::Conflict(prompt.id.clone()))?);
        }
        transaction.commit().map_err(failed)?;
        Ok(outcomes)
    }
}

/// Something whose name is stored once and referred to by number.
pub(super) enum Name<'a> {
    Embedder(&'a str),
    Model(&'a str),
}

/// The number of `name`, which is given one where it has none.
pub(super) fn ord_of(transaction: &Transaction<'_>, name: Name<'_>) -> rusqlite::Result<i64> {
    let dimensions = i64::try_from(EMBEDDING_DIMENSIONS).unwrap_or(i64::MAX);
    match name {
        Name::Embedder(sha256) => {
            transaction
                .prepare("INSERT OR IGNORE INTO embedders (model_sha256, dimensions) VALUES (?1, ?2)")?
                .execute(params![sha256, dimensions])?;
            transaction
                .prepare("SELECT ord FROM embedders WHERE model_sha256 = ?1")?
                .query_row([sha256], |row| row.get(0))
        }
        Name::Model(model) => {
            transaction.prepare("INSERT OR IGNORE INTO models (name) VALUES (?1)")?.execute([model])?;
            transaction
                .prepare("SELECT ord FROM models WHERE name = ?1")?
                .query_row([model], |row| row.get(0))
        }
    }
}

/// `None` if the prompt comes without an embedding but the store does not hold its text.
pub(super) fn write_prompt(
    transaction: &Transaction<'_>,
    embedder: i64,
    prompt: &StoredPrompt,
) -> rusqlite::Result<Option<RowOutcome>> {
    let known: Option<(i64, bool)> = transaction
        .prepare("SELECT ord, text = ?2 FROM prompts WHERE id = ?1")?
        .query_row(params![prompt.id, prompt.text], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    if let Some((ord, true)) = known {
        let is_changed = write_scores(transaction, ord, &prompt.scores)?;
        return Ok(Some(if is_changed { RowOutcome::Updated } else { RowOutcome::Unchanged }));
    }
    let Some(embedding) = &prompt.embedding else { return Ok(None) };
    if known.is_some() {
        transaction.prepare("DELETE FROM prompts WHERE id = ?1")?.execute([&prompt.id])?;
    }
    let embedding = embedding_blob(embedding);
    let format = format_blob(&format_numbers(&prompt.text));
    transaction
        .prepare(
            "INSERT INTO prompts (id, text, benchmark, task, source, license, embedder, embedding, format)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?
        .execute(params![
            prompt.id,
            prompt.text,
            prompt.benchmark,
            prompt.task,
            prompt.source,
            prompt.license,
            embedder,
            embedding,
            format
        ])?;
    write_scores(transaction, transaction.last_insert_rowid(), &prompt.scores)?;
    Ok(Some(if known.is_some() { RowOutcome::Updated } else { RowOutcome::Inserted }))
}

/// An embedding as the database holds it.
pub(super) fn embedding_blob(embedding: &[f32; EMBEDDING_DIMENSIONS]) -> Vec<u8> {
    embedding.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Format numbers as the database holds them.
pub(super) fn format_blob(format: &[f64; FORMAT_NUMBERS]) -> Vec<u8> {
    format.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Whether anything changed.
fn write_scores(
    transaction: &Transaction<'_>,
    prompt: i64,
    scores: &[StoredScore],
) -> rusqlite::Result<bool> {
    let mut n_changed = 0;
    for score in scores {
        let model = ord_of(transaction, Name::Model(&score.model))?;
        n_changed += transaction
            .prepare(
                "INSERT INTO scores (prompt, model, score, completion_tokens, cost_usd) VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT (prompt, model) DO UPDATE
                 SET score = excluded.score, completion_tokens = excluded.completion_tokens, cost_usd = excluded.cost_usd
                 WHERE (score, completion_tokens, cost_usd)
                    IS NOT (excluded.score, excluded.completion_tokens, excluded.cost_usd)",
            )?
            .execute(params![prompt, model, score.score, score.completion_tokens, score.cost_usd])?;
    }
    Ok(n_changed > 0)
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;

    pub(in crate::profiler::quality::store) fn prompt(
        id: &str,
        text: &str,
        scores: &[(&str, f64)],
    ) -> StoredPrompt {
        let mut embedding = [0.0; EMBEDDING_DIMENSIONS];
        embedding[text.len() % EMBEDDING_DIMENSIONS] = 1.0;
        StoredPrompt {
            id: id.to_owned(),
            text: text.to_owned(),
            benchmark: Some("bench".to_owned()),
            task: None,
            source: None,
            license: None,
            embedding: Some(Arc::new(embedding)),
            scores: scores
                .iter()
                .map(|(model, score)| StoredScore {
                    model: (*model).to_owned(),
                    score: *score,
                    completion_tokens: Some(10.0),
                    cost_usd: None,
                })
                .collect(),
        }
    }

    #[test]
    fn known_ids_are_merged_or_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = QualityStore::open_or_create(dir.path()).unwrap();
        let mut write = |prompt: StoredPrompt| store.write_chunk("aa", &[prompt]).unwrap()[0];
        assert_eq!(write(prompt("p", "text", &[("m", 0.5)])), RowOutcome::Inserted);
        assert_eq!(write(prompt("p", "text", &[("m", 0.5)])), RowOutcome::Unchanged);
        assert_eq!(write(prompt("p", "text", &[("n", 1.0)])), RowOutcome::Updated);
        let without_embedding = StoredPrompt { embedding: None, ..prompt("p", "text", &[("m", 0.75)]) };
        assert_eq!(write(without_embedding), RowOutcome::Updated);
        let means: Vec<_> =
            store.stats().unwrap().models.iter().map(|m| (m.name.clone(), m.mean_score)).collect();
        assert_eq!(means, [("m".to_owned(), 0.75), ("n".to_owned(), 1.0)]);

        let outcome = store.write_chunk("aa", &[prompt("p", "other text", &[("m", 0.25)])]).unwrap();
        assert_eq!(outcome, [RowOutcome::Updated]);
        let means: Vec<_> =
            store.stats().unwrap().models.iter().map(|m| (m.name.clone(), m.mean_score)).collect();
        assert_eq!(means, [("m".to_owned(), 0.25)], "scores of the old text are gone");
        assert!(store.holds("p", "other text").unwrap() && !store.holds("p", "text").unwrap());
    }

    #[test]
    fn embeddings_of_another_model_file_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = QualityStore::open_or_create(dir.path()).unwrap();
        store.write_chunk("aa", &[prompt("p", "text", &[("m", 0.5)])]).unwrap();
        let error = store.write_chunk("bb", &[prompt("q", "text", &[("m", 0.5)])]).unwrap_err();
        assert!(matches!(error, StoreError::OtherEmbedder { .. }), "{error}");
        assert_eq!(store.stats().unwrap().prompts, 1);
    }

    #[test]
    fn a_chunk_is_written_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = QualityStore::open_or_create(dir.path()).unwrap();
        let torn = StoredPrompt { embedding: None, ..prompt("q", "text", &[("m", 0.5)]) };
        let error = store.write_chunk("aa", &[prompt("p", "text", &[("m", 0.5)]), torn]).unwrap_err();
        assert!(matches!(&error, StoreError::Conflict(id) if id == "q"), "{error}");
        assert_eq!(store.stats().unwrap().prompts, 0);
    }
}

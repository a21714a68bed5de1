//! Answers that `profile quality` got: what they took, beside their scores.

use rusqlite::{TransactionBehavior, params};

use crate::profiler::quality::store::write::{Name, ord_of, write_prompt};
use crate::profiler::quality::store::{QualityStore, StoreError, StoredPrompt};

/// How one answer to a profiled prompt came about.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfiledAnswer {
    /// Destination that answered.
    pub destination: String,
    /// How it was scored.
    pub scorer: String,
    /// Prompt tokens as the endpoint counts them.
    pub prompt_tokens: Option<f64>,
    /// Time to the first content, in seconds.
    pub ttft_s: f64,
    /// Time to the last content, in seconds.
    pub latency_s: f64,
    /// Whether it ended at its token limit.
    pub is_cut: bool,
    /// When, in seconds since 1970.
    pub answered_at: f64,
}

impl QualityStore {
    /// Writes `prompt`, with the score of one model, and how its answer came about; returns once both are on
    /// disk. As [`QualityStore::write_chunk`] otherwise.
    ///
    /// # Errors
    /// As [`QualityStore::write_chunk`].
    pub fn write_profiled(
        &mut self,
        model_sha256: &str,
        prompt: &StoredPrompt,
        answer: &ProfiledAnswer,
    ) -> Result<(), StoreError> {
        self.check_embedder(model_sha256)?;
        let path = self.path.clone();
        let failed = |e: rusqlite::Error| super::sqlite_error(&path, &e);
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let embedder = ord_of(&transaction, Name::Embedder(model_sha256)).map_err(failed)?;
        let written = write_prompt(&transaction, embedder, prompt).map_err(failed)?;
        written.ok_or_else(|| StoreError::Conflict(prompt.id.clone()))?;
        for score in &prompt.scores {
            transaction
                .prepare(
                    "INSERT OR REPLACE INTO answers
                     SELECT prompts.ord, models.ord, ?3, ?4, ?5, ?6, ?7, ?8, ?9
                     FROM prompts, models WHERE id = ?1 AND name = ?2",
                )
                .and_then(|mut statement| {
                    statement.execute(params![
                        prompt.id,
                        score.model,
                        answer.destination,
                        answer.scorer,
                        answer.prompt_tokens,
                        answer.ttft_s,
                        answer.latency_s,
                        answer.is_cut,
                        answer.answered_at
                    ])
                })
                .map_err(failed)?;
        }
        transaction.commit().map_err(failed)
    }

    /// Whether `model` has a score on prompt `id` with exactly this text.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read.
    pub fn is_scored(&self, id: &str, text: &str, model: &str) -> Result<bool, StoreError> {
        self.connection
            .prepare(
                "SELECT EXISTS (SELECT 1 FROM prompts JOIN scores ON scores.prompt = prompts.ord
                                JOIN models ON models.ord = scores.model
                                WHERE id = ?1 AND text = ?2 AND name = ?3)",
            )
            .and_then(|mut statement| statement.query_row(params![id, text, model], |row| row.get(0)))
            .map_err(|e| self.failed(&e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiler::quality::store::write::tests::prompt;

    fn answer(latency_s: f64) -> ProfiledAnswer {
        ProfiledAnswer {
            destination: "n/m".into(),
            scorer: "number".into(),
            prompt_tokens: None,
            ttft_s: 0.5,
            latency_s,
            is_cut: false,
            answered_at: 9.0,
        }
    }

    #[test]
    fn an_answer_stands_beside_its_score_and_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = QualityStore::open_or_create(dir.path()).unwrap();
        assert!(!store.is_scored("p", "text", "m").unwrap());
        store.write_profiled("aa", &prompt("p", "text", &[("m", 0.5)]), &answer(1.5)).unwrap();
        store.write_profiled("aa", &prompt("p", "text", &[("m", 0.5)]), &answer(2.5)).unwrap();
        store.write_profiled("aa", &prompt("p", "text", &[("n", 0.5)]), &answer(3.5)).unwrap();
        assert!(store.is_scored("p", "text", "m").unwrap() && store.is_scored("p", "text", "n").unwrap());
        assert!(!store.is_scored("p", "other text", "m").unwrap());
        let latencies = |store: &QualityStore| -> Vec<f64> {
            let mut statement =
                store.connection.prepare("SELECT latency_s FROM answers ORDER BY model").unwrap();
            statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
        };
        assert_eq!(latencies(&store), [2.5, 3.5]);
        store.write_profiled("aa", &prompt("p", "other text", &[("m", 1.0)]), &answer(4.5)).unwrap();
        assert_eq!(latencies(&store), [4.5], "those to the old text are gone");
    }
}

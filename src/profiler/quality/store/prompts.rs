//! Single prompts: reading them back in the form they were imported in, and deleting them.

use rusqlite::types::Value;
use rusqlite::{OptionalExtension, TransactionBehavior, params, params_from_iter};

use crate::profiler::quality::store::{QualityStore, StoreError, StoredPrompt, StoredScore};

/// Prompts read at a time.
const PAGE_ROWS: i64 = 256;

/// Which prompts to delete: those that meet every condition given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PruneFilter {
    /// Of this benchmark; the empty name stands for none.
    pub benchmark: Option<String>,
    /// From this source.
    pub source: Option<String>,
    /// Under this licence.
    pub license: Option<String>,
    /// With this id.
    pub id: Option<String>,
    /// Only the scores of this model; prompts without any other go too.
    pub model: Option<String>,
}

impl PruneFilter {
    /// Whether nothing is asked for, which would mean everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// SQL condition on `prompts` and its parameters.
    fn condition(&self) -> (String, Vec<Value>) {
        let conditions = [
            ("coalesce(benchmark, '') = ?", &self.benchmark),
            ("source = ?", &self.source),
            ("license = ?", &self.license),
            ("id = ?", &self.id),
        ];
        let given: Vec<_> =
            conditions.iter().filter_map(|(sql, value)| Some((*sql, value.as_ref()?))).collect();
        let sql = given.iter().map(|(sql, _)| *sql).collect::<Vec<_>>().join(" AND ");
        let values = given.into_iter().map(|(_, value)| Value::Text(value.clone())).collect();
        (if sql.is_empty() { "true".to_owned() } else { sql }, values)
    }
}

impl QualityStore {
    /// The prompt called `id`, without its embedding.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read.
    pub fn prompt(&self, id: &str) -> Result<Option<StoredPrompt>, StoreError> {
        let found = self
            .connection
            .query_row("SELECT ord FROM prompts WHERE id = ?1", [id], |row| row.get::<_, i64>(0))
            .optional()
            .map_err(|e| self.failed(&e))?;
        let Some(ord) = found else { return Ok(None) };
        let page = self.page(ord - 1, 1).map_err(|e| self.failed(&e))?;
        Ok(page.into_iter().next().map(|(_, prompt)| prompt))
    }

    /// Hands every prompt with its scores to `on_prompt`, in the order of the store, without embeddings; ends early
    /// where that fails.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read, and what `on_prompt` returns.
    pub fn for_each_prompt<E: From<StoreError>>(
        &self,
        mut on_prompt: impl FnMut(&StoredPrompt) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut last = i64::MIN;
        loop {
            let page = self.page(last, PAGE_ROWS).map_err(|e| self.failed(&e))?;
            let Some((ord, _)) = page.last() else { return Ok(()) };
            last = *ord;
            page.iter().try_for_each(|(_, prompt)| on_prompt(prompt))?;
        }
    }

    /// Up to `n` prompts after the one numbered `last`.
    fn page(&self, last: i64, n: i64) -> rusqlite::Result<Vec<(i64, StoredPrompt)>> {
        let mut prompts = self.connection.prepare(
            "SELECT ord, id, text, benchmark, task, source, license FROM prompts WHERE ord > ?1 ORDER BY ord LIMIT ?2",
        )?;
        let mut scores = self.connection.prepare(
            "SELECT name, score, completion_tokens, cost_usd FROM scores JOIN models ON models.ord = scores.model
             WHERE prompt = ?1 ORDER BY name",
        )?;
        let mut page = prompts
            .query_map(params![last, n], |row| {
                let prompt = StoredPrompt {
                    id: row.get(1)?,
                    text: row.get(2)?,
                    benchmark: row.get(3)?,
                    task: row.get(4)?,
                    source: row.get(5)?,
                    license: row.get(6)?,
                    embedding: None,
                    scores: Vec::new(),
                };
                Ok((row.get(0)?, prompt))
            })?
            .collect::<rusqlite::Result<Vec<(i64, StoredPrompt)>>>()?;
        for (ord, prompt) in &mut page {
            prompt.scores = scores
                .query_map([*ord], |row| {
                    Ok(StoredScore {
                        model: row.get(0)?,
                        score: row.get(1)?,
                        completion_tokens: row.get(2)?,
                        cost_usd: row.get(3)?,
                    })
                })?
                .collect::<rusqlite::Result<_>>()?;
        }
        Ok(page)
    }

    /// How many scores [`QualityStore::prune`] would delete, and how many prompts with them.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read or is busy.
    pub fn count_prunable(&mut self, filter: &PruneFilter) -> Result<(usize, usize), StoreError> {
        self.delete(filter, false)
    }

    /// Deletes what `filter` asks for and gives the room back; how many scores and how many prompts.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be written; then nothing is deleted.
    pub fn prune(&mut self, filter: &PruneFilter) -> Result<(usize, usize), StoreError> {
        let deleted = self.delete(filter, true)?;
        self.connection.execute_batch("VACUUM").map_err(|e| self.failed(&e))?;
        Ok(deleted)
    }

    fn delete(&mut self, filter: &PruneFilter, is_real: bool) -> Result<(usize, usize), StoreError> {
        let path = self.path.clone();
        let failed = |e: rusqlite::Error| super::sqlite_error(&path, &e);
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let (condition, values) = filter.condition();
        let (of_model, mut parameters) = match &filter.model {
            Some(model) => {
                ("model = (SELECT ord FROM models WHERE name = ?) AND ", vec![Value::Text(model.clone())])
            }
            None => ("", Vec::new()),
        };
        parameters.extend(values);
        let sql = format!(
            "DELETE FROM scores WHERE {of_model}prompt IN (SELECT ord FROM prompts WHERE {condition})"
        );
        let n_scores = transaction.execute(&sql, params_from_iter(parameters)).map_err(failed)?;
        let sql = "DELETE FROM prompts WHERE ord NOT IN (SELECT prompt FROM scores)";
        let n_prompts = transaction.execute(sql, []).map_err(failed)?;
        let sql =
            "DELETE FROM models WHERE ord NOT IN (SELECT model FROM scores UNION SELECT model FROM feedback)";
        transaction.execute(sql, []).map_err(failed)?;
        if is_real {
            transaction.commit().map_err(failed)?;
        }
        Ok((n_scores, n_prompts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiler::quality::store::write::tests::prompt;

    fn store(dir: &std::path::Path) -> QualityStore {
        let mut store = QualityStore::open_or_create(dir).unwrap();
        let untagged = StoredPrompt { benchmark: None, ..prompt("c", "c", &[("m", 1.0)]) };
        let rows = [prompt("a", "a", &[("m", 0.5), ("n", 0.0)]), prompt("b", "bb", &[("n", 1.0)]), untagged];
        store.write_chunk("aa", &rows).unwrap();
        store
    }

    fn ids(store: &QualityStore) -> Vec<String> {
        let mut ids = Vec::new();
        let listed: Result<(), StoreError> = store.for_each_prompt(|prompt| {
            ids.push(prompt.id.clone());
            Ok(())
        });
        listed.unwrap();
        ids
    }

    #[test]
    fn prompts_come_back_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        let written = StoredPrompt { embedding: None, ..prompt("a", "a", &[("m", 0.5), ("n", 0.0)]) };
        assert_eq!(store.prompt("a").unwrap(), Some(written));
        assert_eq!(store.prompt("x").unwrap(), None);
        assert_eq!(ids(&store), ["a", "b", "c"]);
    }

    #[test]
    fn only_what_meets_every_condition_is_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = store(dir.path());
        let of_n = PruneFilter { model: Some("n".into()), ..PruneFilter::default() };
        assert_eq!(store.count_prunable(&of_n).unwrap(), (2, 1));
        assert_eq!(ids(&store).len(), 3, "counting deletes nothing");
        let both = PruneFilter { benchmark: Some("bench".into()), ..of_n.clone() };
        assert_eq!(store.prune(&both).unwrap(), (2, 1));
        assert_eq!((ids(&store), store.models().unwrap()), (vec!["a".into(), "c".into()], vec!["m".into()]));
        let untagged = PruneFilter { benchmark: Some(String::new()), ..PruneFilter::default() };
        assert_eq!(store.prune(&untagged).unwrap(), (1, 1));
        assert_eq!(
            store.prune(&PruneFilter { id: Some("x".into()), ..PruneFilter::default() }).unwrap(),
            (0, 0)
        );
        assert_eq!(ids(&store), ["a"]);
    }
}

//! What the estimator and `quality stats` read from a store.

use rusqlite::types::ValueRef;
use serde::Serialize;

use crate::profiler::quality::embedder::EMBEDDING_DIMENSIONS;
use crate::profiler::quality::estimator::profile::{Profile, ProfileCell};
use crate::profiler::quality::format::FORMAT_NUMBERS;
use crate::profiler::quality::store::{COMPLETION_TOKENS_MAX, QualityStore, SCHEMA_VERSION, StoreError};

/// Contents of a store in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoreStats {
    /// Version of the database's schema.
    pub schema_version: i64,
    /// SHA-256 of the model file behind the embeddings; `None` while there is none.
    pub embedder_sha256: Option<String>,
    /// Profiled prompts.
    pub prompts: i64,
    /// Recorded scores.
    pub scores: i64,
    /// Share of prompt × model pairs with a score, in `[0, 1]`; 0 while there is none.
    pub coverage: f64,
    /// By model, in order of name.
    pub models: Vec<ModelStats>,
    /// By benchmark, largest first.
    pub tags: Vec<TagStats>,
}

/// What is recorded of one model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelStats {
    /// Public model name.
    pub name: String,
    /// Prompts with a score.
    pub scores: i64,
    /// Share of all prompts with a score.
    pub coverage: f64,
    /// Mean score.
    pub mean_score: f64,
    /// Mean length of the answers whose length is known.
    pub mean_completion_tokens: Option<f64>,
    /// Mean price of the answers whose price is known.
    pub mean_cost_usd: Option<f64>,
}

/// What is recorded of one benchmark.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TagStats {
    /// Benchmark; `None` for prompts without one.
    pub benchmark: Option<String>,
    /// Prompts.
    pub prompts: i64,
    /// Mean score over prompts and models.
    pub mean_score: Option<f64>,
}

/// What a profiled prompt is called.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowLabel {
    /// Its id.
    pub id: String,
    /// Benchmark it belongs to.
    pub benchmark: Option<String>,
}

/// A profile whose rows have names.
#[derive(Debug, Clone, Default)]
pub struct LabelledProfile {
    /// N prompts.
    pub profile: Profile,
    /// N labels.
    pub labels: Vec<RowLabel>,
}

impl QualityStore {
    /// SHA-256 of the model file that made the embeddings; `None` while there is no prompt.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read.
    pub fn embedder_sha256(&self) -> Result<Option<String>, StoreError> {
        let sql = "SELECT model_sha256 FROM embedders
                   WHERE ord IN (SELECT DISTINCT embedder FROM prompts) ORDER BY ord";
        let hashes: Vec<String> = self
            .connection
            .prepare(sql)
            .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
            .map_err(|e| self.failed(&e))?;
        match hashes.len() {
            0 | 1 => Ok(hashes.into_iter().next()),
            n => Err(self.damaged(format!("it mixes embeddings of {n} model files"))),
        }
    }

    /// Refuses a model file other than the one behind the stored embeddings.
    ///
    /// # Errors
    /// [`StoreError::OtherEmbedder`].
    pub fn check_embedder(&self, model_sha256: &str) -> Result<(), StoreError> {
        match self.embedder_sha256()? {
            Some(stored) if stored != model_sha256 => Err(StoreError::OtherEmbedder {
                path: self.path.clone(),
                stored,
                offered: model_sha256.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Every prompt that at least one of `models` was scored on.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if a vector is not what the schema promises.
    pub fn load_profile(&self, models: &[String]) -> Result<Profile, StoreError> {
        self.read_profile(models, None).map_err(|e| self.failed(&e))?.map_err(|reason| self.damaged(reason))
    }

    /// The same of every model in the store, with what prompts are called.
    ///
    /// # Errors
    /// As [`QualityStore::load_profile`].
    pub fn load_labelled(&self) -> Result<LabelledProfile, StoreError> {
        let models = self.models()?;
        let mut labels = Vec::new();
        let profile = self
            .read_profile(&models, Some(&mut labels))
            .map_err(|e| self.failed(&e))?
            .map_err(|reason| self.damaged(reason))?;
        Ok(LabelledProfile { profile, labels })
    }

    /// The models with at least one score, in order of name.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read.
    pub fn models(&self) -> Result<Vec<String>, StoreError> {
        let sql = "SELECT name FROM models WHERE ord IN (SELECT model FROM scores) ORDER BY name";
        self.connection
            .prepare(sql)
            .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
            .map_err(|e| self.failed(&e))
    }

    fn read_profile(
        &self,
        models: &[String],
        mut labels: Option<&mut Vec<RowLabel>>,
    ) -> rusqlite::Result<Result<Profile, String>> {
        let mut profile = Profile::new(models.to_vec());
        // One statement, so that prompts and scores are of one snapshot while another process writes. CROSS
        // JOIN fixes the order of the loops: prompts come as stored, nothing is sorted.
        let mut statement = self.connection.prepare(
            "SELECT prompts.ord, prompts.id, embedding, format, models.name, score, completion_tokens, benchmark
             FROM prompts CROSS JOIN scores ON scores.prompt = prompts.ord
             CROSS JOIN models ON models.ord = scores.model
             ORDER BY prompts.ord",
        )?;
        let mut rows = statement.query([])?;
        let mut pending: Option<Pending> = None;
        while let Some(row) = rows.next()? {
            let ord: i64 = row.get(0)?;
            if pending.as_ref().is_none_or(|pending| pending.ord != ord) {
                push(&mut profile, pending.take(), labels.as_deref_mut());
                let embedding = floats(row.get_ref(2)?, f32::from_le_bytes);
                let format = floats(row.get_ref(3)?, f64::from_le_bytes);
                let (Some(embedding), Some(format)) = (embedding, format) else {
                    return Ok(Err(format!(
                        "the vectors of prompt `{}` are unusable",
                        row.get::<_, String>(1)?
                    )));
                };
                let label = RowLabel { id: row.get(1)?, benchmark: row.get(7)? };
                pending = Some(Pending { ord, label, embedding, format, cells: vec![None; models.len()] });
            }
            let name = row.get_ref(4)?.as_str()?;
            let column = models.iter().position(|model| model == name);
            if let (Some(column), Some(pending)) = (column, &mut pending) {
                let cell = ProfileCell { score: row.get(5)?, completion_tokens: believable(row.get(6)?) };
                pending.cells[column] = Some(cell);
            }
        }
        push(&mut profile, pending, labels);
        Ok(Ok(profile))
    }

    /// Counts and means over everything stored.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read.
    pub fn stats(&self) -> Result<StoreStats, StoreError> {
        let embedder_sha256 = self.embedder_sha256()?;
        self.read_stats(embedder_sha256).map_err(|e| self.failed(&e))
    }

    #[expect(clippy::cast_precision_loss, reason = "row counts stay far below 2^52")]
    fn read_stats(&self, embedder_sha256: Option<String>) -> rusqlite::Result<StoreStats> {
        let count = |table: &str| {
            self.connection
                .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0))
        };
        let (prompts, scores) = (count("prompts")?, count("scores")?);
        let share = |n: i64, of: i64| if of == 0 { 0.0 } else { n as f64 / of as f64 };
        let models: Vec<ModelStats> = self
            .connection
            .prepare(
                "SELECT name, count(*), avg(score), avg(completion_tokens), avg(cost_usd)
                 FROM scores JOIN models ON models.ord = scores.model GROUP BY name ORDER BY name",
            )?
            .query_map([], |row| {
                let scores = row.get(1)?;
                Ok(ModelStats {
                    name: row.get(0)?,
                    scores,
                    coverage: share(scores, prompts),
                    mean_score: row.get(2)?,
                    mean_completion_tokens: row.get(3)?,
                    mean_cost_usd: row.get(4)?,
                })
            })?
            .collect::<rusqlite::Result<_>>()?;
        let tags = self
            .connection
            .prepare(
                "SELECT benchmark, count(DISTINCT prompts.ord), avg(score)
                 FROM prompts LEFT JOIN scores ON scores.prompt = prompts.ord
                 GROUP BY benchmark ORDER BY 2 DESC, 1",
            )?
            .query_map([], |row| {
                Ok(TagStats { benchmark: row.get(0)?, prompts: row.get(1)?, mean_score: row.get(2)? })
            })?
            .collect::<rusqlite::Result<_>>()?;
        let coverage = share(scores, prompts * i64::try_from(models.len()).unwrap_or(i64::MAX));
        let schema_version = SCHEMA_VERSION;
        Ok(StoreStats { schema_version, embedder_sha256, prompts, scores, coverage, models, tags })
    }
}

/// A prompt whose scores are still being read.
struct Pending {
    ord: i64,
    label: RowLabel,
    embedding: [f32; EMBEDDING_DIMENSIONS],
    format: [f64; FORMAT_NUMBERS],
    cells: Vec<Option<ProfileCell>>,
}

fn push(profile: &mut Profile, pending: Option<Pending>, labels: Option<&mut Vec<RowLabel>>) {
    if let Some(pending) = pending.filter(|pending| pending.cells.iter().any(Option::is_some)) {
        profile.push(&pending.embedding, pending.format, &pending.cells);
        if let Some(labels) = labels {
            labels.push(pending.label);
        }
    }
}

/// Exactly `N` finite numbers from a blob of little-endian `SIZE`-byte floats.
pub(super) fn floats<T: Copy + Default + Into<f64>, const SIZE: usize, const N: usize>(
    blob: ValueRef<'_>,
    from_le_bytes: fn([u8; SIZE]) -> T,
) -> Option<[T; N]> {
    let (numbers, rest) = blob.as_blob().ok()?.as_chunks::<SIZE>();
    let numbers: &[[u8; SIZE]; N] = numbers.try_into().ok()?;
    let numbers = numbers.map(from_le_bytes);
    (rest.is_empty() && numbers.iter().all(|x| (*x).into().is_finite())).then_some(numbers)
}

/// A length that can enter a mean. Imports refuse others; a store may be older than that.
fn believable(completion_tokens: Option<f32>) -> Option<f32> {
    completion_tokens.filter(|tokens| (0.0..=COMPLETION_TOKENS_MAX).contains(&f64::from(*tokens)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiler::quality::store::write::tests::prompt;

    #[test]
    fn an_absurd_length_of_an_older_store_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = QualityStore::open_or_create(dir.path()).unwrap();
        let mut row = prompt("p", "text", &[("m", 1.0)]);
        row.scores[0].completion_tokens = Some(1e308);
        store.write_chunk("aa", &[row]).unwrap();
        let profile = store.load_profile(&["m".to_owned()]).unwrap();
        let cell = profile.cells(0)[0].unwrap();
        assert_eq!((cell.score.to_bits(), cell.completion_tokens), (1.0_f32.to_bits(), None));
    }

    #[test]
    fn the_profile_holds_the_fleets_models_only() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = QualityStore::open_or_create(dir.path()).unwrap();
        let prompts = [
            prompt("a", "A. x", &[("m", 0.5), ("other", 1.0)]),
            prompt("b", "b", &[("other", 1.0)]),
            prompt("c", "c", &[("n", 1.0)]),
        ];
        store.write_chunk("aa", &prompts).unwrap();
        let profile = store.load_profile(&["n".to_owned(), "m".to_owned(), "absent".to_owned()]).unwrap();
        assert_eq!(profile.len(), 2);
        assert!((profile.coverage() - 2.0 / 6.0).abs() < 1e-12);
        let again = store.load_profile(&["absent".to_owned()]).unwrap();
        assert!(again.is_empty());
    }

    #[test]
    fn stats_count_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = QualityStore::open_or_create(dir.path()).unwrap();
        let empty = store.stats().unwrap();
        assert_eq!((empty.prompts, empty.scores, empty.embedder_sha256), (0, 0, None));
        let untagged = crate::profiler::quality::store::StoredPrompt {
            benchmark: None,
            ..prompt("c", "c", &[("m", 1.0)])
        };
        store
            .write_chunk(
                "aa",
                &[prompt("a", "a", &[("m", 0.5), ("n", 0.0)]), prompt("b", "b", &[("m", 0.0)]), untagged],
            )
            .unwrap();
        let stats = store.stats().unwrap();
        assert_eq!((stats.prompts, stats.scores), (3, 4));
        assert_eq!(stats.embedder_sha256.as_deref(), Some("aa"));
        assert!((stats.coverage - 4.0 / 6.0).abs() < 1e-12);
        assert_eq!(stats.models[0].scores, 3);
        assert!((stats.models[0].mean_score - 0.5).abs() < 1e-12);
        assert!((stats.models[1].coverage - 1.0 / 3.0).abs() < 1e-12);
        let tags: Vec<_> = stats.tags.iter().map(|tag| (tag.benchmark.as_deref(), tag.prompts)).collect();
        assert_eq!(tags, [(Some("bench"), 2), (None, 1)]);
    }
}

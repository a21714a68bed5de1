//! What feedback asks of the predictor: embeddings, a place for scores, and to wake up for the first of them.

use std::sync::{Arc, PoisonError};

use tokio::sync::oneshot;

use super::{EmbedJob, Predictor, Prepared, Priors, QualityService, Reply, start_predictor};
use crate::profiler::quality::embedder::{self, EMBEDDING_DIMENSIONS, Embedding};
use crate::profiler::quality::estimator::Estimator;
use crate::profiler::quality::estimator::profile::Profile;
use crate::profiler::quality::feedback::live::{LiveFeedback, LiveRow};
use crate::profiler::quality::format::FORMAT_NUMBERS;
use crate::profiler::quality::params::{EmbedderParams, FleetPriors, QualityParams};
use crate::profiler::quality::store::FeedbackRow;
use crate::units::Quality;

/// Why there is no embedding of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EmbedError {
    /// As many texts wait as may.
    #[error("too many prompts wait for an embedding")]
    Busy,
    /// There is no embedder, or it failed.
    #[error("nothing can be embedded")]
    Unavailable,
}

/// What it takes to look prompts up in feedback alone, where nothing was profiled.
pub(super) struct Waking {
    params: QualityParams,
    embedder: EmbedderParams,
    priors: FleetPriors,
}

impl Waking {
    pub(super) fn new(params: &QualityParams, embedder: &EmbedderParams, priors: &FleetPriors) -> Self {
        Self { params: params.clone(), embedder: embedder.clone(), priors: priors.clone() }
    }
}

impl QualityService {
    /// The embedding of what is embedded of `text`. Where nothing was profiled, the first call loads the embedder, and
    /// from then on prompts are looked up in what clients say.
    ///
    /// # Errors
    /// See [`EmbedError`].
    pub async fn embed(&self, text: &Arc<str>) -> Result<Embedding, EmbedError> {
        if !self.is_active() {
            let service = self.clone();
            // A second of work and of files.
            let waking = tokio::task::spawn_blocking(move || service.wake());
            waking.await.map_err(|_| EmbedError::Unavailable)?;
        }
        let predictor = self.0.active.get().ok_or(EmbedError::Unavailable)?;
        predictor.embedding(text)?.await.map_err(|_| EmbedError::Unavailable)
    }

    /// SHA-256 of the model file behind embeddings; empty without an embedder.
    #[must_use]
    pub fn embedder_sha256(&self) -> String {
        self.0.active.get().map(|predictor| predictor.model_sha256.clone()).unwrap_or_default()
    }

    /// Lets the score number `ord`, given to `model` at `given_at` (seconds since 1970), count in predictions from now
    /// on, or count anew. `false` if it informs none.
    #[must_use]
    pub fn learn(
        &self,
        ord: i64,
        (model, score): (&Arc<str>, Quality),
        given_at: f64,
        (embedding, format): (&[f32; EMBEDDING_DIMENSIONS], &[f64; FORMAT_NUMBERS]),
    ) -> bool {
        self.0.active.get().is_some_and(|predictor| {
            let vector = Box::new(predictor.estimator.vector(embedding, format));
            predictor.live.put(&LiveRow { ord, model: Arc::clone(model), score, given_at, vector })
        })
    }

    /// Scores of clients that predictions look at.
    #[must_use]
    pub fn live_feedback(&self) -> usize {
        self.0.active.get().map_or(0, |predictor| predictor.live.len())
    }

    /// Becomes active without a profile, if that is all it takes; tried once.
    fn wake(&self) {
        let mut waking = self.0.waking.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Waking { params, embedder, priors }) = waking.take() else { return };
        let models = priors.destinations.iter().map(|prior| prior.model.to_string()).collect();
        let woken = embedder::load(&embedder).map_err(|error| error.to_string()).and_then(|loaded| {
            let empty = (Profile::new(models), Vec::new());
            let prepared = Prepared::new(empty, loaded, &priors, &params);
            let priors = Priors { fleet: priors, predicts_clusters: params.predicts_clusters };
            start_predictor(prepared, &embedder, priors, self.0.metrics.clone()).map_err(|off| off.reason)
        });
        match woken {
            Ok(predictor) => {
                let _ = self.0.active.set(predictor);
                tracing::info!("quality prediction is on: clients give feedback");
            }
            Err(reason) => {
                tracing::warn!(
                    reason,
                    "feedback is stored, but without an embedder it informs no prediction"
                );
            }
        }
    }
}

impl Predictor {
    /// The embedding of `text`, or one under way.
    fn embedding(&self, text: &Arc<str>) -> Result<oneshot::Receiver<Embedding>, EmbedError> {
        let (reply, receiver) = oneshot::channel();
        let key = self.cache.key(text);
        if let Some(embedding) = self.cache.get(key) {
            self.metrics.embed_cache_hits_total.inc();
            drop(reply.send(embedding));
            return Ok(receiver);
        }
        let job = EmbedJob { text: Arc::clone(text), key, reply: Reply::Embedding(reply) };
        self.to_embed.push(job).map_err(|_| EmbedError::Busy)?;
        self.metrics.embed_queue_depth.set(self.queue_depth());
        Ok(receiver)
    }
}

/// Lets a stored score count.
pub(super) fn recall(live: &LiveFeedback, estimator: &Estimator, row: &FeedbackRow) {
    if let Some(embedding) = &row.embedding {
        live.put(&LiveRow {
            ord: row.ord,
            model: row.model.as_str().into(),
            score: Quality(row.score),
            given_at: row.given_at,
            vector: Box::new(estimator.vector(embedding, &row.format)),
        });
    }
}

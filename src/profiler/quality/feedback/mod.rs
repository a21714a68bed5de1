//! What clients say of answers they got (`POST /v1/feedback`).
//!
//! An answer is [`kept`](Feedback::keep) for a while, in memory, with what is needed to predict from its prompt. A
//! score that comes for it is written to the quality store and then counts as one more neighbour of prompts like it
//! ([`live`]), in the figure of how far predictions are off ([`Drift`]), and for whoever [follows](Feedback::given).
//! The last score of an answer stands.

mod drift;
mod kept;
pub(in crate::profiler::quality) mod live;
mod metrics;
mod writer;

use std::path::Path;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::Registry;
use tokio::sync::{broadcast, oneshot};
use tokio::time::Instant;

pub use drift::{DRIFT_SCORES_MAX, Drift};
pub use kept::{AnsweredRequest, KeptPrompt, TrialSlice};
pub use metrics::FeedbackOutcome;

use crate::domain::Destination;
use crate::profiler::quality::embedder::Embedding;
use crate::profiler::quality::service::{EmbedError, QualityService};
use crate::profiler::quality::store::{QualityStore, StoredFeedback};
use crate::units::{Quality, Seconds};
use kept::{Kept, KeptAnswers, Names};
use metrics::FeedbackMetrics;
use writer::{Job, Ledger, Writer};

/// Scores that may wait to be written.
const QUEUE_MAX: usize = 256;
/// Scores that a slow follower may be behind.
const FOLLOWERS_BEHIND_MAX: usize = 1_024;

/// What is kept of answers and how much scores count.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedbackParams {
    /// How long after it began feedback may be given on an answer; zero = never.
    pub retention: Duration,
    /// Most answers that are kept for it.
    pub requests_max: usize,
    /// Most memory that they take, about.
    pub bytes_max: usize,
    /// Whether prompts are stored with scores, or only their embeddings.
    pub keeps_prompts: bool,
    /// ω, how much a fresh score counts beside a profiled prompt; not negative.
    pub weight: f64,
    /// After which a score counts half; `None` = scores do not age.
    pub half_life: Option<Seconds>,
    /// Most scores that predictions look at, the newest.
    pub rows_max: usize,
}

impl Default for FeedbackParams {
    fn default() -> Self {
        Self {
            retention: Duration::from_secs(3_600),
            requests_max: 10_000,
            bytes_max: 16 << 20,
            keeps_prompts: false,
            weight: 1.0,
            half_life: Some(Seconds(30.0 * 86_400.0)),
            rows_max: 2_000,
        }
    }
}

/// One score of a client.
#[derive(Debug, Clone)]
pub struct Opinion {
    /// Name of the API key that it comes with; `None` where the router is open.
    pub owner: Option<Arc<str>>,
    /// Id of the request whose answer it is about.
    pub request_id: String,
    /// The score.
    pub score: Quality,
    /// A word of the client's own.
    pub label: Option<Arc<str>>,
}

/// What was done with a score that is on disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Receipt {
    /// The score of the same answer that it takes the place of.
    pub previous: Option<Quality>,
    /// Whether predictions look at it from now on.
    pub is_learnt: bool,
}

/// Why a score was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FeedbackError {
    /// No such answer, or not any more, or not with this key, or one that broke off.
    #[error("no answer to a request of this id is known here any more")]
    Unknown,
    /// Too many scores wait.
    #[error("too much feedback waits to be stored")]
    Busy,
    /// The store cannot be written.
    #[error("the quality store cannot be written")]
    Store,
    /// The router is stopping.
    #[error("the router is stopping")]
    Stopping,
}

/// Why there is no feedback at all.
#[derive(Debug, thiserror::Error)]
pub enum FeedbackStartError {
    /// Its metrics are there already.
    #[error(transparent)]
    Metrics(#[from] prometheus::Error),
    /// It needs a thread.
    #[error("cannot start the thread that stores feedback")]
    Thread(#[source] std::io::Error),
}

/// A score that has been stored.
#[derive(Debug, Clone)]
pub struct Given {
    /// The answer that it is about.
    pub answered: Arc<AnsweredRequest>,
    /// The score.
    pub score: Quality,
    /// The one that it takes the place of.
    pub previous: Option<Quality>,
    /// A word of the client's own.
    pub label: Option<Arc<str>>,
    /// Where its model stands now.
    pub drift: Option<Drift>,
}

/// The way for feedback. Clones share it.
#[derive(Clone)]
pub struct Feedback(Arc<Desk>);

struct Desk {
    params: FeedbackParams,
    /// By destination.
    names: Vec<Names>,
    kept: Mutex<KeptAnswers>,
    jobs: SyncSender<Job>,
    ledger: Arc<Ledger>,
}

impl std::fmt::Debug for Feedback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feedback").field("params", &self.0.params).finish_non_exhaustive()
    }
}

impl Feedback {
    /// Starts the thread that writes into the store in `folder`, which is made when the first score comes. What was
    /// given before counts in the drift.
    ///
    /// # Errors
    /// See [`FeedbackStartError`]. A store that cannot be used is an error of each score.
    pub fn start(
        params: FeedbackParams,
        folder: &Path,
        (quality, destinations): (QualityService, &[Destination]),
        registry: &Registry,
    ) -> Result<Self, FeedbackStartError> {
        let metrics = FeedbackMetrics::register(registry)?;
        let (given, _) = broadcast::channel(FOLLOWERS_BEHIND_MAX);
        let ledger = Arc::new(Ledger::new(quality, metrics, given));
        let names = Names::of(destinations);
        let store = QualityStore::open(folder).ok();
        if let Some(store) = &store {
            recall(&ledger, &names, store);
        }
        let (jobs, inbox) = sync_channel(QUEUE_MAX);
        let folder = folder.to_path_buf();
        let writer = Writer { jobs: inbox, ledger: Arc::clone(&ledger), folder, store };
        std::thread::Builder::new()
            .name("cema-feedback".into())
            .spawn(move || writer.run())
            .map_err(FeedbackStartError::Thread)?;
        Ok(Self(Arc::new(Desk { params, names, kept: Mutex::default(), jobs, ledger })))
    }

    /// Whether answers are kept for feedback.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.0.params.retention.is_zero()
    }

    /// An answer has begun: from now on feedback may be given on it.
    pub fn keep(&self, answered: Arc<AnsweredRequest>) {
        if !self.is_on() {
            return;
        }
        let mut kept = self.kept();
        kept.push(answered, (Instant::now(), unix_now()), &self.0.params);
        let n_kept = kept.len();
        drop(kept);
        self.0.ledger.metrics.kept.set(i64::try_from(n_kept).unwrap_or(i64::MAX));
    }

    /// Stores a score and returns once it is on disk. Dropping the future does not take it back.
    ///
    /// # Errors
    /// See [`FeedbackError`].
    pub async fn give(&self, opinion: Opinion) -> Result<Receipt, FeedbackError> {
        let found =
            self.kept().find((opinion.owner.as_ref(), &opinion.request_id), Instant::now(), &self.0.params);
        let known = found.filter(|kept| !kept.answered.is_broken()).ok_or(FeedbackError::Unknown);
        let outcome = match known {
            Ok(kept) => self.write(kept, opinion).await,
            Err(error) => Err(error),
        };
        match outcome {
            Err(FeedbackError::Unknown) => self.count(FeedbackOutcome::Unknown),
            Err(FeedbackError::Busy) => self.count(FeedbackOutcome::Busy),
            // Counted where they happen, or by nobody any more.
            Ok(_) | Err(FeedbackError::Store | FeedbackError::Stopping) => {}
        }
        outcome
    }

    async fn write(&self, kept: Kept, opinion: Opinion) -> Result<Receipt, FeedbackError> {
        let embedding = self.embedding(&kept.answered).await?;
        let answered = &kept.answered;
        let names = &self.0.names[answered.destination.idx()];
        let (completion, usd) = answered.counted();
        let row = StoredFeedback {
            owner: answered.owner.clone().unwrap_or_default(),
            request_id: Arc::clone(&answered.id),
            answered_at: kept.at_unix,
            given_at: unix_now(),
            destination: Arc::clone(&names.destination),
            model: Arc::clone(&names.model),
            score: opinion.score.0,
            predicted: answered.predicted.0.clamp(0.0, 1.0),
            label: opinion.label,
            completion_tokens: completion.map(|tokens| tokens.0),
            cost_usd: usd.map(|usd| usd.0),
            text: self.0.params.keeps_prompts.then(|| Arc::clone(answered.prompt.text())),
            embedding,
            format: answered.prompt.format(),
        };
        let (reply, written) = oneshot::channel();
        self.0.jobs.try_send(Job { row, kept, reply }).map_err(|refused| match refused {
            TrySendError::Full(_) => FeedbackError::Busy,
            TrySendError::Disconnected(_) => FeedbackError::Stopping,
        })?;
        written.await.unwrap_or(Err(FeedbackError::Stopping))
    }

    /// The embedding of the prompt; `None` where nothing can be embedded.
    async fn embedding(&self, answered: &AnsweredRequest) -> Result<Option<Embedding>, FeedbackError> {
        let text = answered.prompt.text();
        if text.is_empty() {
            return Ok(None);
        }
        match self.0.ledger.quality.embed(text).await {
            Ok(embedding) => Ok(Some(embedding)),
            Err(EmbedError::Busy) => Err(FeedbackError::Busy),
            Err(EmbedError::Unavailable) => Ok(None),
        }
    }

    /// Counts feedback that was none.
    pub fn count(&self, outcome: FeedbackOutcome) {
        self.0.ledger.metrics.count(outcome);
    }

    /// Every score from now on, once it is stored.
    #[must_use]
    pub fn given(&self) -> broadcast::Receiver<Given> {
        self.0.ledger.given.subscribe()
    }

    /// Recent scores of the model called `model` against what was predicted; `None` without any.
    #[must_use]
    pub fn drift(&self, model: &str) -> Option<Drift> {
        self.0.ledger.drift(model)
    }

    fn kept(&self) -> MutexGuard<'_, KeptAnswers> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The drift of each model of the fleet from the scores in `store`.
fn recall(ledger: &Ledger, names: &[Names], store: &QualityStore) {
    let n_max = DRIFT_SCORES_MAX.saturating_mul(names.len());
    match store.recent_feedback("", n_max) {
        Ok(rows) => {
            for row in rows {
                if let Some(names) = names.iter().find(|names| *names.model == *row.model) {
                    ledger.drifted(&names.model, row.ord, (Quality(row.score), Quality(row.predicted)));
                }
            }
        }
        Err(error) => tracing::warn!(%error, "earlier feedback cannot be read"),
    }
}

/// Seconds since 1970.
pub(in crate::profiler::quality) fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

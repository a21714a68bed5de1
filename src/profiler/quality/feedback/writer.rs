//! The thread that writes feedback down, and what follows once it is on disk.
//!
//! Whatever waits is written in one transaction, so that many clients at once do not wait for as many turns of the
//! disk. Only after the commit is a score learnt from, told of and acknowledged.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{broadcast, oneshot};

use crate::profiler::quality::QualityService;
use crate::profiler::quality::feedback::drift::{Drift, RecentScores};
use crate::profiler::quality::feedback::kept::Kept;
use crate::profiler::quality::feedback::metrics::{FeedbackMetrics, FeedbackOutcome};
use crate::profiler::quality::feedback::{FeedbackError, Given, Receipt};
use crate::profiler::quality::store::{FeedbackWritten, QualityStore, StoreError, StoredFeedback};
use crate::units::Quality;

/// Scores written in one transaction.
const CHUNK_MAX: usize = 64;

/// One score on its way.
pub(super) struct Job {
    pub(super) row: StoredFeedback,
    pub(super) kept: Kept,
    pub(super) reply: oneshot::Sender<Result<Receipt, FeedbackError>>,
}

/// What scores change; shared by the thread and those who ask.
pub(super) struct Ledger {
    pub(super) quality: QualityService,
    pub(super) metrics: FeedbackMetrics,
    /// By public model name.
    drifts: Mutex<BTreeMap<Arc<str>, RecentScores>>,
    pub(super) given: broadcast::Sender<Given>,
}

impl Ledger {
    pub(super) fn new(
        quality: QualityService,
        metrics: FeedbackMetrics,
        given: broadcast::Sender<Given>,
    ) -> Self {
        Self { quality, metrics, drifts: Mutex::default(), given }
    }

    /// Recent scores of `model` against predictions; `None` without any.
    pub(super) fn drift(&self, model: &str) -> Option<Drift> {
        self.drifts().get(model)?.drift()
    }

    /// Takes in a score of `model`, and says where it stands now.
    pub(super) fn drifted(
        &self,
        model: &Arc<str>,
        ord: i64,
        (score, predicted): (Quality, Quality),
    ) -> Option<Drift> {
        let mut drifts = self.drifts();
        let recent = drifts.entry(Arc::clone(model)).or_default();
        let was_drifting = recent.drift().is_some_and(|drift| drift.is_drifting());
        recent.put(ord, score, predicted);
        let drift = recent.drift()?;
        drop(drifts);
        self.metrics.show(model, &drift);
        if drift.is_drifting() && !was_drifting {
            tracing::warn!(
                model = &**model,
                predicted = drift.mean_predicted,
                feedback = drift.mean_score,
                scores = drift.scores,
                "predicted quality is far from what clients say: profile the model again"
            );
        }
        Some(drift)
    }

    fn drifts(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, RecentScores>> {
        self.drifts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The score is on disk.
    fn apply(&self, row: &StoredFeedback, kept: &Kept, written: FeedbackWritten) -> Receipt {
        let (score, predicted) = (Quality(row.score), Quality(row.predicted));
        let is_learnt = row.embedding.as_ref().is_some_and(|embedding| {
            self.quality.learn(written.ord, (&row.model, score), row.given_at, (embedding, &row.format))
        });
        self.metrics.live.set(i64::try_from(self.quality.live_feedback()).unwrap_or(i64::MAX));
        let previous = written.previous.map(Quality);
        let drift = self.drifted(&row.model, written.ord, (score, predicted));
        self.metrics.count(match previous {
            Some(_) => FeedbackOutcome::Replaced,
            None => FeedbackOutcome::Stored,
        });
        // Nobody may be listening.
        drop(self.given.send(Given {
            answered: Arc::clone(&kept.answered),
            score,
            previous,
            label: row.label.clone(),
            drift,
        }));
        Receipt { previous, is_learnt }
    }
}

/// The thread's side.
pub(super) struct Writer {
    pub(super) jobs: Receiver<Job>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) folder: PathBuf,
    /// Opened when it is needed.
    pub(super) store: Option<QualityStore>,
}

impl Writer {
    /// Writes until nobody can give feedback any more.
    pub(super) fn run(mut self) {
        while let Ok(first) = self.jobs.recv() {
            let mut jobs = vec![first];
            jobs.extend(self.jobs.try_iter().take(CHUNK_MAX - 1));
            self.write(jobs);
        }
    }

    fn write(&mut self, jobs: Vec<Job>) {
        let (rows, replies): (Vec<_>, Vec<_>) =
            jobs.into_iter().map(|job| (job.row, (job.kept, job.reply))).unzip();
        match self.commit(&rows) {
            Ok(written) => {
                for ((row, (kept, reply)), written) in rows.iter().zip(replies).zip(written) {
                    // Who asked may have left.
                    let _ = reply.send(Ok(self.ledger.apply(row, &kept, written)));
                }
            }
            Err(error) => {
                tracing::error!(%error, scores = rows.len(), "feedback cannot be stored");
                // It may be there again the next time.
                self.store = None;
                for (_, reply) in replies {
                    self.ledger.metrics.count(FeedbackOutcome::Failed);
                    let _ = reply.send(Err(FeedbackError::Store));
                }
            }
        }
    }

    fn commit(&mut self, rows: &[StoredFeedback]) -> Result<Vec<FeedbackWritten>, StoreError> {
        let store = match &mut self.store {
            Some(store) => store,
            None => self.store.insert(QualityStore::open_or_create(&self.folder)?),
        };
        store.write_feedback(&self.ledger.quality.embedder_sha256(), rows)
    }
}

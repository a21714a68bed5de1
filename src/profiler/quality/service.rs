//! The running predictor: threads that embed, and the handle requests are predicted through.
//!
//! A prompt seen lately takes the short way: its embedding comes from the cache and one thread does the
//! lookup only, so that it never waits behind a prompt that is being embedded. The others queue for an
//! embedding thread. Prompts are embedded one by one: on one core a batch of eight is no faster per
//! prompt, and the first of them would wait for the last.

#[cfg(test)]
pub(crate) mod by_hand;
mod learning;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use prometheus::Registry;
use tokio::sync::oneshot;

use crate::domain::{Prediction, QualitySource};
use crate::profiler::quality::cache::{EmbeddingCache, TextKey};
use crate::profiler::quality::clusters::PromptClusters;
use crate::profiler::quality::embedder::{self, Embedder, EmbedderError, Embedding, LoadedEmbedder};
use crate::profiler::quality::estimator::profile::Profile;
use crate::profiler::quality::estimator::{Estimator, Scratch};
use crate::profiler::quality::feedback::live::{LiveFeedback, LiveScratch};
use crate::profiler::quality::feedback::unix_now;
use crate::profiler::quality::format::format_numbers;
use crate::profiler::quality::metrics::QualityMetrics;
use crate::profiler::quality::params::{EmbedderParams, FleetPriors, QualityParams};
use crate::profiler::quality::queue::JobQueue;
use crate::profiler::quality::store::{FeedbackRow, QualityStore, StoreError};

pub use learning::EmbedError;
use learning::Waking;

/// Predicts quality and length per destination. A cheap handle; the threads end with the last one.
#[derive(Clone)]
pub struct QualityService(Arc<Handle>);

struct Handle {
    /// The configured priors by why they are used, in the order of [`QualitySource::ALL`].
    priors: Vec<Arc<Prediction>>,
    metrics: QualityMetrics,
    /// What looks prompts up, where there is something to look in.
    active: OnceLock<Arc<Predictor>>,
    /// Why prompts are not looked up, where they are not.
    off: Option<Off>,
    /// How feedback can still make it active.
    waking: Mutex<Option<Waking>>,
}

/// What [`QualityService::predict`] gives.
#[derive(Debug)]
pub enum Predicting {
    /// A prediction that is there at once.
    Known(Arc<Prediction>),
    /// One under way. Dropping it cancels the work if that has not begun.
    Pending(oneshot::Receiver<Prediction>),
}

/// Why only priors are given.
struct Off {
    source: QualitySource,
    reason: String,
}

/// What the threads share.
struct Predictor {
    estimator: Estimator,
    /// Where a policy asks for them.
    clusters: Option<PromptClusters>,
    /// Where the index is kept.
    store: PathBuf,
    live: LiveFeedback,
    model_sha256: String,
    priors: Priors,
    metrics: QualityMetrics,
    cache: EmbeddingCache,
    to_embed: JobQueue<EmbedJob>,
    to_look_up: JobQueue<LookupJob>,
    is_failing: AtomicBool,
}

struct EmbedJob {
    text: Arc<str>,
    key: TextKey,
    reply: Reply,
}

/// What is wanted of an embedding.
enum Reply {
    Prediction(oneshot::Sender<Prediction>),
    Embedding(oneshot::Sender<Embedding>),
}

impl Reply {
    fn is_closed(&self) -> bool {
        match self {
            Self::Prediction(reply) => reply.is_closed(),
            Self::Embedding(reply) => reply.is_closed(),
        }
    }
}

/// Buffers of one thread.
#[derive(Default)]
struct Buffers {
    profile: Scratch,
    live: LiveScratch,
}

struct LookupJob {
    text: Arc<str>,
    embedding: Embedding,
    reply: oneshot::Sender<Prediction>,
}

impl QualityService {
    /// Opens the store, loads the embedder and starts its threads. Blocks while files are read (about a
    /// second for the model).
    ///
    /// What is missing or unusable is logged once and leaves a service that predicts from priors. An
    /// empty store does not load the embedder at all.
    ///
    /// # Errors
    /// Only if the metrics are registered on `registry` already.
    pub fn start(
        params: &QualityParams,
        embedder: &EmbedderParams,
        priors: FleetPriors,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let metrics = QualityMetrics::register(registry)?;
        let prepared = prepare(params, embedder, &priors, &metrics);
        let waking = prepared.as_ref().err().filter(|why| why.is_emptiness());
        let waking = waking.map(|_| Waking::new(params, embedder, &priors));
        let priors = Priors { fleet: priors, predicts_clusters: params.predicts_clusters };
        let service = Self::assemble(prepared, embedder, priors, metrics, waking);
        service.announce();
        Ok(service)
    }

    fn assemble(
        prepared: Result<Prepared, Unavailable>,
        params: &EmbedderParams,
        priors: Priors,
        metrics: QualityMetrics,
        waking: Option<Waking>,
    ) -> Self {
        let labelled = |source: &QualitySource| Arc::new(priors.labelled(*source));
        let by_source = QualitySource::ALL.iter().map(labelled).collect();
        let started = prepared
            .map_err(Off::from)
            .and_then(|prepared| start_predictor(prepared, params, priors, metrics.clone()));
        let (active, off) = match started {
            Ok(predictor) => (OnceLock::from(predictor), None),
            Err(off) => (OnceLock::new(), Some(off)),
        };
        Self(Arc::new(Handle { priors: by_source, metrics, active, off, waking: Mutex::new(waking) }))
    }

    /// The configured priors, labelled with why they are used.
    #[must_use]
    pub fn prior(&self, source: QualitySource) -> Arc<Prediction> {
        Arc::clone(&self.0.priors[source as usize])
    }

    /// Predicts for the last user message of a request. Never blocks.
    ///
    /// What is pending resolves with source `store`; priors are known at once when the queue is full (`late`)
    /// or nothing can be looked up (`no_profile`, `no_embedder`). The wait is the caller's to bound; see
    /// [`QualityService::record_source`].
    #[must_use]
    pub fn predict(&self, text: impl Into<Arc<str>>) -> Predicting {
        match self.0.active.get() {
            Some(predictor) => predictor
                .submit(text.into())
                .map_or_else(|| Predicting::Known(self.prior(QualitySource::Late)), Predicting::Pending),
            None => Predicting::Known(self.prior(self.off_source())),
        }
    }

    fn off_source(&self) -> QualitySource {
        self.0.off.as_ref().map_or(QualitySource::NoProfile, |off| off.source)
    }

    /// Whether prompts are looked up; `false` when [`QualityService::predict`] can only give priors.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.0.active.get().is_some()
    }

    /// Counts where the quality of one planned request came from. The caller counts, once per request,
    /// because only it knows whether the prediction came in time ([`QualitySource::Late`]) or was not
    /// asked for ([`QualitySource::Skipped`]).
    pub fn record_source(&self, source: QualitySource) {
        self.0.metrics.count_source(source);
    }

    /// One line for people: what predictions rest on.
    #[must_use]
    pub fn status(&self) -> String {
        match self.0.active.get() {
            Some(predictor) => match predictor.live.len() {
                0 => format!("{} profiled prompts", predictor.estimator.rows()),
                n => format!("{} profiled prompts and {n} scores of clients", predictor.estimator.rows()),
            },
            None => format!("priors only: {}", self.0.off.as_ref().map_or("", |off| off.reason.as_str())),
        }
    }

    fn announce(&self) {
        if let Some(predictor) = self.0.active.get() {
            let (prompts, feedback) = (predictor.estimator.rows(), predictor.live.len());
            tracing::info!(prompts, feedback, "quality prediction is on");
        } else if let Some(Off { source, reason }) = &self.0.off {
            tracing::warn!(%source, reason, "quality prediction is off, routing on quality_prior");
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(predictor) = self.active.get() {
            predictor.to_embed.close();
            predictor.to_look_up.close();
            self.metrics.embedder_up.set(0);
        }
    }
}

/// Why nothing can be looked up.
#[derive(Debug, thiserror::Error)]
enum Unavailable {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("no prompt in the store was scored on a model of this fleet")]
    NoRows,
    #[error(transparent)]
    Embedder(#[from] EmbedderError),
}

impl Unavailable {
    /// Whether it only takes something to look in.
    const fn is_emptiness(&self) -> bool {
        matches!(self, Self::Store(StoreError::Missing(_)) | Self::NoRows)
    }
}

impl From<Unavailable> for Off {
    fn from(unavailable: Unavailable) -> Self {
        let source = match &unavailable {
            Unavailable::Store(StoreError::OtherEmbedder { .. }) | Unavailable::Embedder(_) => {
                QualitySource::NoEmbedder
            }
            Unavailable::Store(_) | Unavailable::NoRows => QualitySource::NoProfile,
        };
        Self { source, reason: unavailable.to_string() }
    }
}

/// What is predicted where nothing can be looked up.
struct Priors {
    fleet: FleetPriors,
    predicts_clusters: bool,
}

impl Priors {
    fn labelled(&self, source: QualitySource) -> Prediction {
        let destinations = &self.fleet.destinations;
        let errors = destinations.iter().filter(|_| self.predicts_clusters).map(|d| 1.0 - d.quality.get());
        Prediction {
            quality: destinations.iter().map(|prior| prior.quality).collect(),
            completion_tokens: destinations.iter().map(|prior| prior.completion_tokens).collect(),
            cluster_error: errors.collect(),
            source,
        }
    }
}

/// What prompts are looked up with and in.
struct Prepared {
    estimator: Estimator,
    clusters: Option<PromptClusters>,
    store: PathBuf,
    live: LiveFeedback,
    loaded: LoadedEmbedder,
}

/// Reads the store and, only if there is something to compare with, loads the model.
fn prepare(
    params: &QualityParams,
    embedder: &EmbedderParams,
    priors: &FleetPriors,
    metrics: &QualityMetrics,
) -> Result<Prepared, Unavailable> {
    let store = QualityStore::open(&params.store)?;
    let mut models: Vec<String> = priors.destinations.iter().map(|prior| prior.model.to_string()).collect();
    models.sort_unstable();
    models.dedup();
    let profile = store.load_profile(&models)?;
    let has_feedback = |row: &FeedbackRow| models.contains(&row.model);
    if profile.is_empty() && !store.recent_feedback("", params.feedback.rows_max)?.iter().any(has_feedback) {
        return Err(Unavailable::NoRows);
    }
    metrics.store_rows.set(i64::try_from(profile.len()).unwrap_or(i64::MAX));
    metrics.coverage_ratio.set(profile.coverage());
    let loaded = embedder::load(embedder)?;
    store.check_embedder(&loaded.model_sha256)?;
    let feedback = store.recent_feedback(&loaded.model_sha256, params.feedback.rows_max)?;
    Ok(Prepared::new((profile, feedback), loaded, priors, params))
}

impl Prepared {
    fn new(
        (profile, feedback): (Profile, Vec<FeedbackRow>),
        loaded: LoadedEmbedder,
        priors: &FleetPriors,
        params: &QualityParams,
    ) -> Self {
        let clusters = params.predicts_clusters.then(|| PromptClusters::new(&profile, priors));
        let mut estimator = Estimator::new(profile, priors, params);
        estimator.map_index(&params.store);
        let models = priors.destinations.iter().map(|prior| Arc::clone(&prior.model));
        let live = LiveFeedback::new(models, &params.feedback);
        for row in &feedback {
            learning::recall(&live, &estimator, row);
        }
        Self { estimator, clusters, store: params.store.clone(), live, loaded }
    }
}

/// Starts one thread per embedder, one for cached prompts, and one that builds the index.
fn start_predictor(
    prepared: Prepared,
    params: &EmbedderParams,
    priors: Priors,
    metrics: QualityMetrics,
) -> Result<Arc<Predictor>, Off> {
    let Prepared { estimator, clusters, store, live, loaded } = prepared;
    let predictor = Arc::new(Predictor {
        estimator,
        clusters,
        store,
        live,
        model_sha256: loaded.model_sha256,
        priors,
        metrics,
        cache: EmbeddingCache::new(params.cache_entries),
        to_embed: JobQueue::new(params.queue),
        to_look_up: JobQueue::new(params.queue),
        is_failing: AtomicBool::new(false),
    });
    let spawn = |name: String, run: Box<dyn FnOnce(&Predictor) + Send>| {
        let predictor = Arc::clone(&predictor);
        std::thread::Builder::new().name(name).spawn(move || run(&predictor))
    };
    let embedding = loaded.workers.into_iter().enumerate().map(|(i, mut worker)| {
        spawn(format!("cema-embed-{i}"), Box::new(move |predictor| predictor.run_embedding(worker.as_mut())))
    });
    let others = [
        spawn("cema-lookup".to_owned(), Box::new(Predictor::run_lookups)),
        spawn("cema-index".to_owned(), Box::new(Predictor::prepare)),
    ];
    if let Some(error) = embedding.chain(others).find_map(Result::err) {
        predictor.to_embed.close();
        predictor.to_look_up.close();
        let reason = format!("no thread for the embedder: {error}");
        return Err(Off { source: QualitySource::NoEmbedder, reason });
    }
    predictor.metrics.embedder_up.set(1);
    Ok(predictor)
}

impl Predictor {
    /// `None` if the queue is full.
    fn submit(&self, text: Arc<str>) -> Option<oneshot::Receiver<Prediction>> {
        let (reply, receiver) = oneshot::channel();
        let key = self.cache.key(&text);
        let is_queued = match self.cache.get(key) {
            Some(embedding) => {
                self.metrics.embed_cache_hits_total.inc();
                self.to_look_up.push(LookupJob { text, embedding, reply }).is_ok()
            }
            None => self.to_embed.push(EmbedJob { text, key, reply: Reply::Prediction(reply) }).is_ok(),
        };
        self.metrics.embed_queue_depth.set(self.queue_depth());
        is_queued.then_some(receiver)
    }

    fn run_embedding(&self, worker: &mut dyn Embedder) {
        let mut buffers = Buffers::default();
        while let Some(job) = self.to_embed.pop() {
            self.metrics.embed_queue_depth.set(self.queue_depth());
            // The client left, or the plan was made without it.
            if job.reply.is_closed() {
                continue;
            }
            let embedding = self.embed(worker, &job);
            // Where nobody waits any more the embedding is in the cache all the same.
            match (job.reply, embedding) {
                (Reply::Prediction(reply), Some(embedding)) => {
                    drop(reply.send(self.look_up(&job.text, &embedding, &mut buffers)));
                }
                (Reply::Prediction(reply), None) => {
                    drop(reply.send(self.priors.labelled(QualitySource::NoEmbedder)));
                }
                (Reply::Embedding(reply), Some(embedding)) => drop(reply.send(embedding)),
                (Reply::Embedding(_), None) => {}
            }
        }
    }

    fn run_lookups(&self) {
        let mut buffers = Buffers::default();
        while let Some(job) = self.to_look_up.pop() {
            if !job.reply.is_closed() {
                drop(job.reply.send(self.look_up(&job.text, &job.embedding, &mut buffers)));
            }
        }
    }

    fn prepare(&self) {
        if let Err(error) = self.estimator.prepare(Some(&self.store)) {
            tracing::warn!(
                error,
                "quality index not built or not kept: predictions scan, or the next start is slow"
            );
        }
    }

    /// The embedding of the job's text; `None` if the model failed, which is logged when it begins.
    fn embed(&self, worker: &mut dyn Embedder, job: &EmbedJob) -> Option<Embedding> {
        // The same text may have been embedded while this job waited.
        if let Some(embedding) = self.cache.get(job.key) {
            self.metrics.embed_cache_hits_total.inc();
            return Some(embedding);
        }
        self.metrics.embed_cache_misses_total.inc();
        let started = Instant::now();
        let result = embedder::embed_guarded(worker, &job.text);
        self.metrics.embed_duration_seconds.observe(started.elapsed().as_secs_f64());
        let was_failing = self.is_failing.swap(result.is_err(), Ordering::Relaxed);
        self.metrics.embedder_up.set(i64::from(result.is_ok()));
        match result {
            Ok(embedding) => {
                self.cache.put(job.key, Arc::clone(&embedding));
                Some(embedding)
            }
            Err(error) => {
                if !was_failing {
                    tracing::error!(%error, "embedder fails, routing on quality_prior");
                }
                None
            }
        }
    }

    fn look_up(&self, text: &str, embedding: &Embedding, buffers: &mut Buffers) -> Prediction {
        let format = format_numbers(text);
        let mut estimate = self.estimator.predict(embedding, &format, &mut buffers.profile);
        let to_blend = (&mut estimate, &mut buffers.live);
        self.live.blend(&self.estimator, (embedding, &format), unix_now(), to_blend);
        if let Some(clusters) = &self.clusters {
            estimate.prediction.cluster_error = clusters.error_of(clusters.of(embedding)).to_vec();
        }
        self.metrics.evidence.observe(estimate.evidence);
        if estimate.has_low_evidence() {
            self.metrics.low_evidence_total.inc();
        }
        estimate.prediction
    }

    fn queue_depth(&self) -> i64 {
        i64::try_from(self.to_embed.len()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::profiler::quality::embedder::EMBEDDING_DIMENSIONS;
    use crate::profiler::quality::estimator::profile::ProfileCell;
    use crate::profiler::quality::params::DestinationPrior;
    use crate::units::{Quality, Tokens};

    /// Embeds texts only when told to, and tells what it was asked.
    struct ScriptedEmbedder {
        asked: Sender<String>,
        answers: Receiver<Result<Embedding, EmbedderError>>,
    }

    impl Embedder for ScriptedEmbedder {
        fn embed(&mut self, text: &str) -> Result<Embedding, EmbedderError> {
            self.asked.send(text.to_owned()).unwrap();
            self.answers.recv().unwrap()
        }
    }

    struct Fixture {
        service: QualityService,
        asked: Receiver<String>,
        answers: Sender<Result<Embedding, EmbedderError>>,
        registry: Registry,
    }

    fn axis(axis: usize) -> Embedding {
        let mut embedding = [0.0; EMBEDDING_DIMENSIONS];
        embedding[axis] = 1.0;
        Arc::new(embedding)
    }

    fn predicted(predicting: Predicting) -> Arc<Prediction> {
        match predicting {
            Predicting::Known(prediction) => prediction,
            Predicting::Pending(receiver) => Arc::new(receiver.blocking_recv().unwrap()),
        }
    }

    fn priors() -> FleetPriors {
        let prior = |model: &str| DestinationPrior {
            model: model.into(),
            quality: Quality(0.6),
            completion_tokens: Tokens(256.0),
        };
        FleetPriors { destinations: vec![prior("m"), prior("unprofiled")] }
    }

    /// One profiled prompt on axis 0, where model `m` scored 1 with 50 tokens.
    fn prepared(loaded: LoadedEmbedder) -> Prepared {
        let mut profile = Profile::new(vec!["m".to_owned()]);
        let cell = ProfileCell { score: 1.0, completion_tokens: Some(50.0) };
        profile.push(&axis(0), [0.0; 14], &[Some(cell)]);
        let params = QualityParams { predicts_clusters: true, ..QualityParams::default() };
        Prepared::new((profile, Vec::new()), loaded, &priors(), &params)
    }

    fn clustered_priors() -> Priors {
        Priors { fleet: priors(), predicts_clusters: true }
    }

    fn fixture(queue: usize) -> Fixture {
        let (asked_in, asked) = channel();
        let (answers, answers_out) = channel();
        let worker = ScriptedEmbedder { asked: asked_in, answers: answers_out };
        let loaded = LoadedEmbedder { model_sha256: String::new(), workers: vec![Box::new(worker)] };
        let registry = Registry::new();
        let metrics = QualityMetrics::register(&registry).unwrap();
        let params = EmbedderParams { queue, ..EmbedderParams::default() };
        let service =
            QualityService::assemble(Ok(prepared(loaded)), &params, clustered_priors(), metrics, None);
        Fixture { service, asked, answers, registry }
    }

    fn counter(registry: &Registry, name: &str) -> f64 {
        let families = registry.gather();
        let family = families.iter().find(|family| family.name() == name).unwrap();
        family.get_metric()[0].get_counter().get_value()
    }

    #[test]
    fn a_prompt_is_looked_up_and_the_unprofiled_keep_their_prior() {
        let f = fixture(4);
        assert!(f.service.is_active());
        let receiver = f.service.predict("hello");
        assert_eq!(f.asked.recv().unwrap(), "hello");
        f.answers.send(Ok(axis(0))).unwrap();
        let prediction = predicted(receiver);
        assert_eq!(prediction.source, QualitySource::Store);
        assert!((prediction.quality[0].0 - 1.0).abs() < 1e-6, "{prediction:?}");
        assert_eq!(prediction.quality[1], Quality(0.6));
        assert_eq!(prediction.cluster_error, [0.0, 0.4]);
        assert_eq!(f.service.prior(QualitySource::Late).cluster_error, [0.4, 0.4]);
        assert!((prediction.completion_tokens[0].0 - 50.0).abs() < 1e-6, "{prediction:?}");
    }

    #[test]
    fn a_text_seen_before_is_not_embedded_again_and_does_not_wait_for_others() {
        let f = fixture(4);
        let first = f.service.predict("hello");
        f.answers.send(Ok(axis(0))).unwrap();
        predicted(first);
        // The only embedding thread is now kept busy.
        let _busy = f.service.predict("another");
        assert_eq!((f.asked.recv().unwrap(), f.asked.recv().unwrap()), ("hello".into(), "another".into()));
        let again = predicted(f.service.predict("hello"));
        assert_eq!(again.source, QualitySource::Store);
        assert!((counter(&f.registry, "cema_embed_cache_hits_total") - 1.0).abs() < 1e-9);
        assert!((counter(&f.registry, "cema_embed_cache_misses_total") - 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_full_queue_answers_late_at_once() {
        let f = fixture(1);
        let _busy = f.service.predict("one");
        f.asked.recv().unwrap();
        let _queued = f.service.predict("two");
        let refused = predicted(f.service.predict("three"));
        assert_eq!(refused, f.service.prior(QualitySource::Late));
    }

    #[test]
    fn a_request_that_left_costs_no_embedding() {
        let f = fixture(4);
        let _busy = f.service.predict("one");
        f.asked.recv().unwrap();
        drop(f.service.predict("gone"));
        let last = f.service.predict("three");
        f.answers.send(Ok(axis(0))).unwrap();
        f.answers.send(Ok(axis(1))).unwrap();
        predicted(last);
        assert_eq!(f.asked.recv().unwrap(), "three");
    }

    #[test]
    fn a_failing_model_gives_priors_and_is_tried_again() {
        let f = fixture(4);
        f.answers.send(Err(EmbedderError::Run("broken".into()))).unwrap();
        let failed = predicted(f.service.predict("one"));
        assert_eq!(failed, f.service.prior(QualitySource::NoEmbedder));
        f.answers.send(Ok(axis(0))).unwrap();
        assert_eq!(predicted(f.service.predict("one")).source, QualitySource::Store);
    }

    #[test]
    fn a_panic_over_one_text_leaves_the_thread_alive() {
        struct Touchy;
        impl Embedder for Touchy {
            fn embed(&mut self, text: &str) -> Result<Embedding, EmbedderError> {
                assert_ne!(text, "odd");
                Ok(axis(0))
            }
        }
        let metrics = QualityMetrics::register(&Registry::new()).unwrap();
        let loaded = LoadedEmbedder { model_sha256: String::new(), workers: vec![Box::new(Touchy)] };
        let service = QualityService::assemble(
            Ok(prepared(loaded)),
            &EmbedderParams::default(),
            clustered_priors(),
            metrics,
            None,
        );
        let odd = predicted(service.predict("odd"));
        assert_eq!(odd.source, QualitySource::NoEmbedder);
        assert_eq!(predicted(service.predict("usual")).source, QualitySource::Store);
    }

    #[test]
    fn the_threads_end_with_the_last_handle() {
        let f = fixture(4);
        let other = f.service.clone();
        drop(f.service);
        f.answers.send(Ok(axis(0))).unwrap();
        predicted(other.predict("still there"));
        drop(other);
        assert_eq!(f.asked.recv().unwrap(), "still there");
        // The embedder is dropped with its thread, which closes the channel.
        assert!(f.asked.recv().is_err());
    }

    #[test]
    fn without_a_store_priors_are_given_and_the_reason_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let params = QualityParams { store: dir.path().join("none"), ..QualityParams::default() };
        let registry = Registry::new();
        let service =
            QualityService::start(&params, &EmbedderParams::default(), priors(), &registry).unwrap();
        assert!(!service.is_active());
        assert!(service.status().contains("quality import"), "{}", service.status());
        let prediction = predicted(service.predict("hello"));
        assert_eq!(prediction, service.prior(QualitySource::NoProfile));
        assert!(!params.store.exists(), "looking does not create");
        assert!(QualityService::start(&params, &EmbedderParams::default(), priors(), &registry).is_err());
    }

    #[test]
    fn without_the_embedder_priors_are_given_and_the_reason_is_told() {
        let prepared = Err(Unavailable::Embedder(EmbedderError::NotBuilt));
        let metrics = QualityMetrics::register(&Registry::new()).unwrap();
        let service =
            QualityService::assemble(prepared, &EmbedderParams::default(), clustered_priors(), metrics, None);
        let prediction = predicted(service.predict("hello"));
        assert_eq!(prediction, service.prior(QualitySource::NoEmbedder));
        assert!(service.status().contains("no embedder"), "{}", service.status());
    }
}

//! The running predictor: threads that embed, and the handle requests are predicted through.
//!
//! A prompt seen lately takes the short way: its embedding comes from the cache and one thread does the
//! lookup only, so that it never waits behind a prompt that is being embedded. The others queue for an
//! embedding thread. Prompts are embedded one by one: on one core a batch of eight is no faster per
//! prompt, and the first of them would wait for the last.

#[cfg(test)]
pub(crate) mod by_hand;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use prometheus::Registry;
use tokio::sync::oneshot;

use crate::domain::{Prediction, QualitySource};
use crate::profiler::quality::cache::{EmbeddingCache, TextKey};
use crate::profiler::quality::clusters::PromptClusters;
use crate::profiler::quality::embedder::{self, Embedder, EmbedderError, Embedding, LoadedEmbedder};
use crate::profiler::quality::estimator::{Estimator, Scratch};
use crate::profiler::quality::format::format_numbers;
use crate::profiler::quality::metrics::QualityMetrics;
use crate::profiler::quality::params::{EmbedderParams, FleetPriors, QualityParams};
use crate::profiler::quality::queue::JobQueue;
use crate::profiler::quality::store::{QualityStore, StoreError};

/// Predicts quality and length per destination. A cheap handle; the threads end with the last one.
#[derive(Clone)]
pub struct QualityService(Arc<Handle>);

struct Handle {
    /// The configured priors by why they are used, in the order of [`QualitySource::ALL`].
    priors: Vec<Arc<Prediction>>,
    metrics: QualityMetrics,
    mode: Mode,
}

/// What [`QualityService::predict`] gives.
#[derive(Debug)]
pub enum Predicting {
    /// A prediction that is there at once.
    Known(Arc<Prediction>),
    /// One under way. Dropping it cancels the work if that has not begun.
    Pending(oneshot::Receiver<Prediction>),
}

/// What the service can do; fixed at start.
enum Mode {
    /// Looks prompts up.
    Active(Arc<Predictor>),
    /// Gives priors only, for this reason.
    Priors { source: QualitySource, reason: String },
}

/// What the threads share.
struct Predictor {
    knowledge: Knowledge,
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
    reply: oneshot::Sender<Prediction>,
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
        let priors = Priors { fleet: priors, predicts_clusters: params.predicts_clusters };
        let service = Self::assemble(prepared, embedder, priors, metrics);
        service.announce();
        Ok(service)
    }

    fn assemble(
        prepared: Result<Prepared, Unavailable>,
        params: &EmbedderParams,
        priors: Priors,
        metrics: QualityMetrics,
    ) -> Self {
        let labelled = |source: &QualitySource| Arc::new(priors.labelled(*source));
        let by_source = QualitySource::ALL.iter().map(labelled).collect();
        let mode = match prepared {
            Ok(Prepared { knowledge, loaded }) => {
                let predictor = Arc::new(Predictor::new(knowledge, params, priors, metrics.clone()));
                spawn_threads(&predictor, loaded.workers)
            }
            Err(unavailable) => unavailable.into_mode(),
        };
        Self(Arc::new(Handle { priors: by_source, metrics, mode }))
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
        match &self.0.mode {
            Mode::Active(predictor) => predictor
                .submit(text.into())
                .map_or_else(|| Predicting::Known(self.prior(QualitySource::Late)), Predicting::Pending),
            Mode::Priors { source, .. } => Predicting::Known(self.prior(*source)),
        }
    }

    /// Whether prompts are looked up; `false` when [`QualityService::predict`] can only give priors.
    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(self.0.mode, Mode::Active(_))
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
        match &self.0.mode {
            Mode::Active(predictor) => format!("{} profiled prompts", predictor.knowledge.estimator.rows()),
            Mode::Priors { reason, .. } => format!("priors only: {reason}"),
        }
    }

    fn announce(&self) {
        match &self.0.mode {
            Mode::Active(predictor) => {
                tracing::info!(prompts = predictor.knowledge.estimator.rows(), "quality prediction is on");
            }
            Mode::Priors { source, reason } => {
                tracing::warn!(%source, reason, "quality prediction is off, routing on quality_prior");
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Mode::Active(predictor) = &self.mode {
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
    fn into_mode(self) -> Mode {
        let source = match &self {
            Self::Store(StoreError::OtherEmbedder { .. }) | Self::Embedder(_) => QualitySource::NoEmbedder,
            Self::Store(_) | Self::NoRows => QualitySource::NoProfile,
        };
        Mode::Priors { source, reason: self.to_string() }
    }
}

/// What predictions rest on.
struct Knowledge {
    estimator: Estimator,
    /// Where a policy asks for them.
    clusters: Option<PromptClusters>,
    /// Where the index is kept.
    store: PathBuf,
}

/// What the threads begin with.
struct Prepared {
    knowledge: Knowledge,
    loaded: LoadedEmbedder,
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
    if profile.is_empty() {
        return Err(Unavailable::NoRows);
    }
    metrics.store_rows.set(i64::try_from(profile.len()).unwrap_or(i64::MAX));
    metrics.coverage_ratio.set(profile.coverage());
    let loaded = embedder::load(embedder)?;
    store.check_embedder(&loaded.model_sha256)?;
    let clusters = params.predicts_clusters.then(|| PromptClusters::new(&profile, priors));
    let mut estimator = Estimator::new(profile, priors, params);
    estimator.map_index(&params.store);
    let knowledge = Knowledge { estimator, clusters, store: params.store.clone() };
    Ok(Prepared { knowledge, loaded })
}

/// Starts one thread per embedder, one for cached prompts, and one that builds the index.
fn spawn_threads(predictor: &Arc<Predictor>, workers: Vec<Box<dyn Embedder>>) -> Mode {
    let spawn = |name: String, run: Box<dyn FnOnce(&Predictor) + Send>| {
        let predictor = Arc::clone(predictor);
        std::thread::Builder::new().name(name).spawn(move || run(&predictor))
    };
    let embedding = workers.into_iter().enumerate().map(|(i, mut worker)| {
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
        return Mode::Priors { source: QualitySource::NoEmbedder, reason };
    }
    predictor.metrics.embedder_up.set(1);
    Mode::Active(Arc::clone(predictor))
}

impl Predictor {
    fn new(knowledge: Knowledge, params: &EmbedderParams, priors: Priors, metrics: QualityMetrics) -> Self {
        Self {
            knowledge,
            priors,
            metrics,
            cache: EmbeddingCache::new(params.cache_entries),
            to_embed: JobQueue::new(params.queue),
            to_look_up: JobQueue::new(params.queue),
            is_failing: AtomicBool::new(false),
        }
    }

    /// `None` if the queue is full.
    fn submit(&self, text: Arc<str>) -> Option<oneshot::Receiver<Prediction>> {
        let (reply, receiver) = oneshot::channel();
        let key = self.cache.key(&text);
        let is_queued = match self.cache.get(key) {
            Some(embedding) => {
                self.metrics.embed_cache_hits_total.inc();
                self.to_look_up.push(LookupJob { text, embedding, reply }).is_ok()
            }
            None => self.to_embed.push(EmbedJob { text, key, reply }).is_ok(),
        };
        self.metrics.embed_queue_depth.set(self.queue_depth());
        is_queued.then_some(receiver)
    }

    fn run_embedding(&self, worker: &mut dyn Embedder) {
        let mut scratch = Scratch::default();
        while let Some(job) = self.to_embed.pop() {
            self.metrics.embed_queue_depth.set(self.queue_depth());
            // The client left, or the plan was made without it.
            if job.reply.is_closed() {
                continue;
            }
            let prediction = match self.embed(worker, &job) {
                Some(embedding) => self.look_up(&job.text, &embedding, &mut scratch),
                None => self.priors.labelled(QualitySource::NoEmbedder),
            };
            // Nobody waits any more: the embedding is in the cache all the same.
            drop(job.reply.send(prediction));
        }
    }

    fn run_lookups(&self) {
        let mut scratch = Scratch::default();
        while let Some(job) = self.to_look_up.pop() {
            if !job.reply.is_closed() {
                drop(job.reply.send(self.look_up(&job.text, &job.embedding, &mut scratch)));
            }
        }
    }

    fn prepare(&self) {
        let Knowledge { estimator, store, .. } = &self.knowledge;
        if let Err(error) = estimator.prepare(Some(store)) {
            tracing::warn!(
                error,
                "quality index not built or not kept, predictions scan the store or the next start is slow"
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

    fn look_up(&self, text: &str, embedding: &Embedding, scratch: &mut Scratch) -> Prediction {
        let Knowledge { estimator, clusters, .. } = &self.knowledge;
        let mut estimate = estimator.predict(embedding, &format_numbers(text), scratch);
        if let Some(clusters) = clusters {
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
    use crate::profiler::quality::estimator::profile::{Profile, ProfileCell};
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
    fn knowledge() -> Knowledge {
        let mut profile = Profile::new(vec!["m".to_owned()]);
        let cell = ProfileCell { score: 1.0, completion_tokens: Some(50.0) };
        profile.push(&axis(0), [0.0; 14], &[Some(cell)]);
        let clusters = Some(PromptClusters::new(&profile, &priors()));
        let estimator = Estimator::new(profile, &priors(), &QualityParams::default());
        Knowledge { estimator, clusters, store: PathBuf::new() }
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
        let service = QualityService::assemble(
            Ok(Prepared { knowledge: knowledge(), loaded }),
            &params,
            clustered_priors(),
            metrics,
        );
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
            Ok(Prepared { knowledge: knowledge(), loaded }),
            &EmbedderParams::default(),
            clustered_priors(),
            metrics,
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
            QualityService::assemble(prepared, &EmbedderParams::default(), clustered_priors(), metrics);
        let prediction = predicted(service.predict("hello"));
        assert_eq!(prediction, service.prior(QualitySource::NoEmbedder));
        assert!(service.status().contains("no embedder"), "{}", service.status());
    }
}

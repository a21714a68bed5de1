//! Metrics of quality prediction (`cema_quality_*`, `cema_embed*`).

use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, core::Collector,
};

use crate::domain::QualitySource;

/// One embedding takes 2 ms (a few words) to 30 ms (128 tokens) on a free core.
const EMBED_SECONDS: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.1, 0.25];

/// Σ w: below 0.1 the prior outweighs everything found, at 160 all neighbours are identical.
const EVIDENCE: [f64; 8] = [0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0];

/// Every metric of this module.
#[derive(Debug, Clone)]
pub struct QualityMetrics {
    /// Predictions that entered a plan, by where they came from.
    source_total: IntCounterVec,
    /// The same, looked up beforehand, in the order of [`QualitySource::ALL`].
    by_source: Vec<IntCounter>,
    /// Time to tokenize and embed one prompt.
    pub embed_duration_seconds: Histogram,
    /// Embeddings found in the cache.
    pub embed_cache_hits_total: IntCounter,
    /// Embeddings that had to be computed.
    pub embed_cache_misses_total: IntCounter,
    /// 1 while prompts are embedded, 0 while the embedder is off or failing.
    pub embedder_up: IntGauge,
    /// Prompts waiting for an embedding.
    pub embed_queue_depth: IntGauge,
    /// Profiled prompts that predictions rest on.
    pub store_rows: IntGauge,
    /// Share of profiled prompt × model pairs of the fleet that hold a score.
    pub coverage_ratio: Gauge,
    /// Σ of the neighbours' weights per prediction; near 0 = nothing similar was profiled.
    pub evidence: Histogram,
    /// Predictions that hardly rest on anything.
    pub low_evidence_total: IntCounter,
}

impl QualityMetrics {
    /// Makes the metrics and registers them on `registry`.
    ///
    /// # Errors
    /// If one of the names is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let source_total = IntCounterVec::new(
            Opts::new("cema_quality_source_total", "Predictions by where their quality came from."),
            &["source"],
        )?;
        let by_source = QualitySource::ALL.iter();
        let metrics = Self {
            by_source: by_source.map(|source| source_total.with_label_values(&[source.as_str()])).collect(),
            source_total,
            embed_duration_seconds: Histogram::with_opts(
                HistogramOpts::new("cema_embed_duration_seconds", "Time to tokenize and embed one prompt.")
                    .buckets(EMBED_SECONDS.to_vec()),
            )?,
            embed_cache_hits_total: IntCounter::new(
                "cema_embed_cache_hits_total",
                "Embeddings found in the cache.",
            )?,
            embed_cache_misses_total: IntCounter::new(
                "cema_embed_cache_misses_total",
                "Embeddings that had to be computed.",
            )?,
            embedder_up: IntGauge::new("cema_embedder_up", "1 while prompts are embedded, 0 while not.")?,
            embed_queue_depth: IntGauge::new("cema_embed_queue_depth", "Prompts waiting for an embedding.")?,
            store_rows: IntGauge::new(
                "cema_quality_store_rows",
                "Profiled prompts that predictions rest on.",
            )?,
            coverage_ratio: Gauge::new(
                "cema_quality_coverage_ratio",
                "Share of profiled prompt and fleet model pairs that hold a score.",
            )?,
            evidence: Histogram::with_opts(
                HistogramOpts::new(
                    "cema_quality_evidence",
                    "Sum of neighbour weights per prediction; near 0 means nothing similar was profiled.",
                )
                .buckets(EVIDENCE.to_vec()),
            )?,
            low_evidence_total: IntCounter::new(
                "cema_quality_low_evidence_total",
                "Predictions with neighbours that weigh less than one identical prompt, or mostly replaced by the mean.",
            )?,
        };
        metrics.collectors().into_iter().try_for_each(|collector| registry.register(collector))?;
        Ok(metrics)
    }

    /// Counts a prediction that entered a plan.
    pub fn count_source(&self, source: QualitySource) {
        self.by_source[source as usize].inc();
    }

    fn collectors(&self) -> [Box<dyn Collector>; 10] {
        [
            Box::new(self.source_total.clone()),
            Box::new(self.embed_duration_seconds.clone()),
            Box::new(self.embed_cache_hits_total.clone()),
            Box::new(self.embed_cache_misses_total.clone()),
            Box::new(self.embedder_up.clone()),
            Box::new(self.embed_queue_depth.clone()),
            Box::new(self.store_rows.clone()),
            Box::new(self.coverage_ratio.clone()),
            Box::new(self.evidence.clone()),
            Box::new(self.low_evidence_total.clone()),
        ]
    }
}

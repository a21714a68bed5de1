//! The quality service over configurations: it is set up again only where what it depends on has changed.

use prometheus::Registry;

use super::{predicts_clusters, start_quality};
use crate::config::{Config, EmbedderConfig, QualityConfig};
use crate::domain::Destination;
use crate::profiler::quality::QualityService;
use crate::telemetry::metrics_book::{Entry, MetricsBook};

/// The service in force, with what it was made of.
#[derive(Default)]
pub(super) struct Quality {
    current: Option<Current>,
}

struct Current {
    quality: QualityConfig,
    embedder: EmbedderConfig,
    /// Model and prior of every destination.
    priors: Vec<(String, f64)>,
    predicts_clusters: bool,
    service: QualityService,
    entry: Entry,
}

impl Quality {
    /// The service of a configuration.
    ///
    /// # Errors
    /// When its metrics cannot be registered.
    pub(super) async fn of(
        &mut self,
        config: &Config,
        destinations: &[Destination],
        book: &MetricsBook,
    ) -> anyhow::Result<QualityService> {
        let priors: Vec<_> =
            destinations.iter().map(|d| (d.model.to_string(), d.quality_prior.get())).collect();
        let predicts_clusters = predicts_clusters(config);
        let fits = |current: &&Current| {
            current.quality == config.quality
                && current.embedder == config.embedder
                && current.priors == priors
                && current.predicts_clusters == predicts_clusters
        };
        if let Some(current) = self.current.as_ref().filter(fits) {
            return Ok(current.service.clone());
        }
        let registry = Registry::new();
        // Reading the store and the model takes up to a second.
        let (config, of, registered) = (config.clone(), destinations.to_vec(), registry.clone());
        let (quality, embedder) = (config.quality.clone(), config.embedder.clone());
        let starting = tokio::task::spawn_blocking(move || start_quality(&config, &of, &registered));
        let service = starting.await??;
        let entry = book.add(registry);
        let next = Current { quality, embedder, priors, predicts_clusters, service: service.clone(), entry };
        if let Some(before) = self.current.replace(next) {
            book.close(before.entry);
        }
        Ok(service)
    }
}

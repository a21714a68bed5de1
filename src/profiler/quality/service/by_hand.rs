//! A running service whose prompts nobody embeds but the test.

use std::sync::Arc;

use prometheus::Registry;

use crate::domain::Prediction;
use crate::profiler::quality::embedder::{EMBEDDING_DIMENSIONS, LoadedEmbedder};
use crate::profiler::quality::estimator::profile::{Profile, ProfileCell};
use crate::profiler::quality::metrics::QualityMetrics;
use crate::profiler::quality::params::{DestinationPrior, EmbedderParams, FleetPriors, QualityParams};
use crate::profiler::quality::service::{Predictor, Prepared, Priors, QualityService, Reply};
use crate::units::{Quality, Tokens};

/// The test's end of the queue of prompts to embed.
pub(crate) struct ByHand(Arc<Predictor>);

impl ByHand {
    /// A service over destinations of these models, all with prior quality 0.5 and 100 tokens.
    pub(crate) fn service(models: &[&str]) -> (QualityService, Self) {
        let prior = |model: &&str| DestinationPrior {
            model: (*model).into(),
            quality: Quality(0.5),
            completion_tokens: Tokens(100.0),
        };
        let priors = FleetPriors { destinations: models.iter().map(prior).collect() };
        let mut profile = Profile::new(vec![models[0].to_owned()]);
        let cell = ProfileCell { score: 1.0, completion_tokens: None };
        profile.push(&[0.0; EMBEDDING_DIMENSIONS], [0.0; 14], &[Some(cell)]);
        let loaded = LoadedEmbedder { model_sha256: String::new(), workers: Vec::new() };
        let metrics = QualityMetrics::register(&Registry::new()).unwrap();
        let prepared = Prepared::new((profile, Vec::new()), loaded, &priors, &QualityParams::default());
        let priors = Priors { fleet: priors, predicts_clusters: false };
        let service =
            QualityService::assemble(Ok(prepared), &EmbedderParams::default(), priors, metrics, None);
        let by_hand = Self(Arc::clone(service.0.active.get().unwrap()));
        (service, by_hand)
    }

    /// Prompts that wait to be embedded.
    pub(crate) fn n_asked(&self) -> usize {
        self.0.to_embed.len()
    }

    /// Answers the oldest of them; whether anyone still wanted to know.
    pub(crate) fn answer(&self, prediction: Prediction) -> bool {
        assert!(self.n_asked() > 0, "no prompt waits to be embedded");
        let Reply::Prediction(reply) = self.0.to_embed.pop().unwrap().reply else {
            panic!("an embedding is wanted")
        };
        reply.send(prediction).is_ok()
    }
}

//! Ways to predict.

use cema_router::profiler::quality::clusters::PromptClusters;
use cema_router::profiler::quality::estimator::profile::{Profile, ProfileCell};
use cema_router::profiler::quality::estimator::{Estimator, Scratch};
use cema_router::profiler::quality::evaluation::check::fleet_of;
use cema_router::profiler::quality::evaluation::{JudgedPrompt, Means};
use cema_router::profiler::quality::store::{LabelledProfile, RowLabel};
use cema_router::profiler::quality::{EstimatorMode, OodGate, QualityParams};

use super::rows::{Row, Split};

/// One way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// Each model's mean.
    GlobalMean,
    /// Each model's mean on the prompt's benchmark, which a router does not know.
    TaskMean,
    /// Eq. 1 with so many neighbours.
    Paper(usize),
    /// Mean loss of the cluster, of 20.
    KMeans,
    /// The default.
    FormatAware(OodGate),
}

/// All of them, the default last but one.
pub(crate) const METHODS: [Method; 8] = [
    Method::GlobalMean,
    Method::TaskMean,
    Method::Paper(5),
    Method::Paper(10),
    Method::Paper(40),
    Method::KMeans,
    Method::FormatAware(OodGate::Soft),
    Method::FormatAware(OodGate::Mean),
];

/// Position of the default in [`METHODS`].
pub(crate) const DEFAULT: usize = 6;

impl Method {
    pub(crate) fn name(self) -> String {
        match self {
            Self::GlobalMean => "each model's mean".to_owned(),
            Self::TaskMean => "the same, benchmark known".to_owned(),
            Self::Paper(k) => format!("`paper` (Eq. 1), K = {k}"),
            Self::KMeans => "k-means, 20 clusters".to_owned(),
            Self::FormatAware(OodGate::Soft) => "`format_aware`".to_owned(),
            Self::FormatAware(OodGate::Mean) => "`format_aware`, `ood: mean`".to_owned(),
        }
    }

    /// The judged rows of `split`, predicted from its known ones.
    pub(crate) fn predict(self, split: &Split, rows: &[Row], models: &[String]) -> Vec<JudgedPrompt> {
        let labelled = profile_of(split, rows, models);
        let fleet = fleet_of(models);
        let judged = |row: &Row| JudgedPrompt {
            id: row.prompt.id.clone(),
            benchmark: row.prompt.benchmark.clone(),
            variance: vec![0.0; models.len()],
            completion_tokens: vec![0.0; models.len()],
            truth: row.truth.clone(),
            ..JudgedPrompt::default()
        };
        let rows = split.judged.iter().map(|row| &rows[*row]);
        match self {
            Self::GlobalMean | Self::TaskMean => {
                let means = Means::new(&labelled);
                rows.map(|row| {
                    let benchmark = row.prompt.benchmark.as_deref().filter(|_| self == Self::TaskMean);
                    let quality = (0..models.len()).map(|model| means.of_benchmark(benchmark, model));
                    let completion_tokens =
                        means.completion_tokens.iter().map(|mean| mean.unwrap_or_default()).collect();
                    JudgedPrompt { quality: quality.collect(), completion_tokens, ..judged(row) }
                })
                .collect()
            }
            Self::KMeans => {
                let clusters = PromptClusters::new(&labelled.profile, &fleet);
                rows.map(|row| {
                    let errors = clusters.error_of(clusters.of(&row.embedding));
                    let quality = errors.iter().map(|error| Some(1.0 - error)).collect();
                    JudgedPrompt { quality, ..judged(row) }
                })
                .collect()
            }
            Self::Paper(_) | Self::FormatAware(_) => {
                let estimator = Estimator::new(labelled.profile, &fleet, &self.params());
                if let Err(reason) = estimator.prepare(None) {
                    eprintln!("no index: {reason}");
                }
                let mut scratch = Scratch::default();
                rows.map(|row| {
                    let estimate = estimator.predict(&row.embedding, &row.format, &mut scratch);
                    let has_low_evidence = estimate.has_low_evidence();
                    let tokens = estimate.prediction.completion_tokens;
                    JudgedPrompt {
                        has_low_evidence,
                        quality: estimate.prediction.quality.iter().map(|q| Some(q.get())).collect(),
                        variance: estimate.variance,
                        completion_tokens: tokens.iter().map(|n| n.get()).collect(),
                        ..judged(row)
                    }
                })
                .collect()
            }
        }
    }

    fn params(self) -> QualityParams {
        match self {
            Self::Paper(neighbours) => {
                QualityParams { mode: EstimatorMode::Paper, neighbours, ..QualityParams::default() }
            }
            Self::FormatAware(ood) => QualityParams { ood, ..QualityParams::default() },
            _ => QualityParams::default(),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "profiles are single precision by design")]
fn profile_of(split: &Split, rows: &[Row], models: &[String]) -> LabelledProfile {
    let mut labelled = LabelledProfile { profile: Profile::new(models.to_vec()), labels: Vec::new() };
    for row in split.known.iter().map(|row| &rows[*row]) {
        let cells: Vec<_> = row
            .truth
            .iter()
            .map(|truth| {
                let truth = (*truth)?;
                let completion_tokens = truth.completion_tokens.map(|tokens| tokens as f32);
                Some(ProfileCell { score: truth.score as f32, completion_tokens })
            })
            .collect();
        labelled.profile.push(&row.embedding, row.format, &cells);
        labelled.labels.push(RowLabel { id: row.prompt.id.clone(), benchmark: row.prompt.benchmark.clone() });
    }
    labelled
}

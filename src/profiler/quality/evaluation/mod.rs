//! How good predictions are, against what models really scored.
//!
//! [`judge`] compares predictions of prompts with their recorded scores; [`check`] does so for the prompts of a store,
//! each predicted from the others; [`cost_quality`] asks what the ranking of models is worth in money.

pub mod check;
pub mod cost_quality;
pub mod learning;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::profiler::quality::store::{LabelledProfile, StoredPrompt};
use crate::statistics::{ci95_half, mean};
use cost_quality::CostSweep;

/// Equally wide bins of q̂ that calibration is looked at in.
pub const CALIBRATION_BINS: usize = 10;

/// What a model really did on a prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Truth {
    /// Score in `[0, 1]`.
    pub score: f64,
    /// Length of the answer.
    pub completion_tokens: Option<f64>,
    /// Price of the answer.
    pub cost_usd: Option<f64>,
}

/// One prompt, predicted and scored; M entries each, in the order of the models.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JudgedPrompt {
    /// Its id.
    pub id: String,
    /// Benchmark it belongs to.
    pub benchmark: Option<String>,
    /// q̂; `None` where nothing is known of the model.
    pub quality: Vec<Option<f64>>,
    /// Variance of scores around q̂.
    pub variance: Vec<f64>,
    /// Predicted length of the answer.
    pub completion_tokens: Vec<f64>,
    /// What it really was; `None` where the model was not asked.
    pub truth: Vec<Option<Truth>>,
    /// Whether it was like hardly anything profiled.
    pub has_low_evidence: bool,
}

impl JudgedPrompt {
    /// The models with both a prediction and a score, as (model, q̂, truth).
    pub fn cells(&self) -> impl Iterator<Item = (usize, f64, Truth)> {
        let pairs = self.quality.iter().zip(&self.truth).enumerate();
        pairs.filter_map(|(model, (quality, truth))| Some((model, (*quality)?, (*truth)?)))
    }

    /// The model predicted best among those scored, with q̂ and score; the first of equals.
    #[must_use]
    pub fn chosen(&self) -> Option<(usize, f64, f64)> {
        let best = self.cells().reduce(|best, cell| if cell.1 > best.1 { cell } else { best });
        best.map(|(model, quality, truth)| (model, quality, truth.score))
    }

    /// Mean squared error of its cells around `centre(model, q̂)`.
    pub fn squared_error(&self, centre: impl Fn(usize, f64) -> f64) -> Option<f64> {
        let errors: Vec<f64> = self
            .cells()
            .map(|(model, quality, truth)| (truth.score - centre(model, quality)).powi(2))
            .collect();
        (!errors.is_empty()).then(|| mean(&errors))
    }
}

/// What is recorded of a prompt, in the order of `models`.
#[must_use]
pub fn truth_of(prompt: &StoredPrompt, models: &[String]) -> Vec<Option<Truth>> {
    let of_model = |model: &String| {
        let score = prompt.scores.iter().find(|score| score.model == *model)?;
        let (completion_tokens, cost_usd) = (score.completion_tokens, score.cost_usd);
        Some(Truth { score: score.score, completion_tokens, cost_usd })
    };
    models.iter().map(of_model).collect()
}

/// Means of a profile, which anyone could predict: over everything, and per benchmark.
#[derive(Debug, Clone, Default)]
pub struct Means {
    /// μ per model; `None` without a score.
    pub global: Vec<Option<f64>>,
    /// Mean length per model.
    pub completion_tokens: Vec<Option<f64>>,
    by_benchmark: BTreeMap<String, Vec<Option<f64>>>,
}

impl Means {
    /// Those of `profile`.
    #[must_use]
    pub fn new(profile: &LabelledProfile) -> Self {
        let LabelledProfile { profile, labels } = profile;
        let all = || 0..profile.len();
        let scores = |rows: &[usize]| {
            let of_model = |model: usize| {
                mean_of(rows.iter().filter_map(|row| Some(f64::from(profile.cells(*row)[model]?.score))))
            };
            (0..profile.models().len()).map(of_model).collect::<Vec<_>>()
        };
        let mut rows_of: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (row, label) in labels.iter().enumerate() {
            if let Some(benchmark) = &label.benchmark {
                rows_of.entry(benchmark.clone()).or_default().push(row);
            }
        }
        let tokens = |model: usize| {
            mean_of(all().filter_map(|row| profile.cells(row)[model]?.completion_tokens.map(f64::from)))
        };
        Self {
            global: scores(&all().collect::<Vec<_>>()),
            completion_tokens: (0..profile.models().len()).map(tokens).collect(),
            by_benchmark: rows_of.into_iter().map(|(name, rows)| (name, scores(&rows))).collect(),
        }
    }

    /// That of a benchmark, of everything where the model has no score there.
    #[must_use]
    pub fn of_benchmark(&self, benchmark: Option<&str>, model: usize) -> Option<f64> {
        benchmark.and_then(|name| self.by_benchmark.get(name)?[model]).or(self.global[model])
    }
}

/// What predictions were worth.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Metrics {
    /// Prompts judged.
    pub rows: usize,
    /// Prompt × model pairs with a score.
    pub scores: usize,
    /// Share of those with a prediction other than a configured prior.
    pub coverage: f64,
    /// Mean squared error of q̂.
    pub mse: f64,
    /// Half its 95 % interval, over prompts.
    pub mse_half: f64,
    /// The same of each model's mean.
    pub mse_global_mean: f64,
    /// The same of each model's mean on the prompt's benchmark: what knowing the task alone would give.
    pub mse_task_mean: f64,
    /// Mean score of the model with the highest q̂.
    pub chosen_score: f64,
    /// Half its 95 % interval.
    pub chosen_half: f64,
    /// Mean score of the model with the highest mean in the profile.
    pub best_single: f64,
    /// That model.
    pub best_single_model: Option<String>,
    /// Mean score of the best model for each prompt.
    pub oracle: f64,
    /// Mean q̂ of the chosen minus what they scored: the winner's curse.
    pub bias_chosen: f64,
    /// Mean distance between q̂ and score over bins of q̂, weighted by their size.
    pub calibration_error: f64,
    /// Mean predicted variance; as large as `mse` where it is right.
    pub predicted_variance: f64,
    /// Share of prompts like hardly anything profiled.
    pub low_evidence: f64,
    /// Area under the cost–quality curve; `None` where costs are not recorded.
    pub aiq: Option<f64>,
    /// Mean distance of ln(1 + tokens).
    pub token_mae_log: Option<f64>,
    /// The same of each model's mean length.
    pub token_mae_log_mean: Option<f64>,
    /// Predicted over real tokens in total.
    pub token_ratio: Option<f64>,
}

/// Compares predictions with what was scored; `means` are those of the profile that predicted.
#[must_use]
pub fn judge(rows: &[JudgedPrompt], models: &[String], means: &Means) -> Metrics {
    let of_rows = |f: &dyn Fn(&JudgedPrompt) -> Option<f64>| rows.iter().filter_map(f).collect::<Vec<f64>>();
    let global = |model: usize| means.global[model];
    let errors = of_rows(&|row| row.squared_error(|_, quality| quality));
    let global_errors = of_rows(&|row| row.squared_error(|model, q| global(model).unwrap_or(q)));
    let task_errors = of_rows(&|row| {
        row.squared_error(|model, q| means.of_benchmark(row.benchmark.as_deref(), model).unwrap_or(q))
    });
    let chosen = of_rows(&|row| Some(row.chosen()?.2));
    let best = (0..models.len())
        .filter(|model| global(*model).is_some())
        .reduce(|best, model| if global(model) > global(best) { model } else { best });
    let n_scores: usize = rows.iter().map(|row| row.truth.iter().flatten().count()).sum();
    let n_cells: usize = rows.iter().map(|row| row.cells().count()).sum();
    let variances = of_rows(&|row| {
        let of_cells: Vec<f64> = row.cells().map(|(model, ..)| row.variance[model]).collect();
        (!of_cells.is_empty()).then(|| mean(&of_cells))
    });
    let tokens = token_pairs(rows, means);
    let log_mae = |predicted: &dyn Fn(&[f64; 3]) -> f64| {
        mean_of(tokens.iter().map(|pair| (predicted(pair).ln_1p() - pair[0].ln_1p()).abs()))
    };
    Metrics {
        rows: rows.len(),
        scores: n_scores,
        coverage: n_cells as f64 / n_scores.max(1) as f64,
        mse: mean(&errors),
        mse_half: ci95_half(&errors),
        mse_global_mean: mean(&global_errors),
        mse_task_mean: mean(&task_errors),
        chosen_score: mean(&chosen),
        chosen_half: ci95_half(&chosen),
        best_single: best.map_or(0.0, |model| mean(&of_rows(&|row| Some(row.truth[model]?.score)))),
        best_single_model: best.map(|model| models[model].clone()),
        oracle: mean(&of_rows(&|row| row.cells().map(|(_, _, truth)| truth.score).reduce(f64::max))),
        bias_chosen: mean(&of_rows(&|row| row.chosen().map(|(_, quality, score)| quality - score))),
        calibration_error: calibration_error(&calibration(rows)),
        predicted_variance: mean(&variances),
        low_evidence: mean(&of_rows(&|row| Some(f64::from(u8::from(row.has_low_evidence))))),
        aiq: CostSweep::new(rows, models.len()).map(|sweep| sweep.aiq(None)),
        token_mae_log: log_mae(&|pair| pair[1]),
        token_mae_log_mean: log_mae(&|pair| pair[2]),
        token_ratio: (!tokens.is_empty()).then(|| {
            tokens.iter().map(|pair| pair[1]).sum::<f64>()
                / tokens.iter().map(|pair| pair[0]).sum::<f64>().max(1.0)
        }),
    }
}

/// Real, predicted and mean length of every answer whose length is known.
fn token_pairs(rows: &[JudgedPrompt], means: &Means) -> Vec<[f64; 3]> {
    let of_row = |row: &JudgedPrompt| -> Vec<[f64; 3]> {
        row.cells()
            .filter_map(|(model, _, truth)| {
                Some([
                    truth.completion_tokens?,
                    row.completion_tokens[model],
                    means.completion_tokens[model]?,
                ])
            })
            .collect()
    };
    rows.iter().flat_map(of_row).collect()
}

/// The cells whose q̂ lies in one bin.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct CalibrationBin {
    /// How many.
    pub scores: usize,
    /// Their mean q̂.
    pub predicted: f64,
    /// Their mean score.
    pub actual: f64,
    /// Half the 95 % interval of that.
    pub half: f64,
}

/// The [`CALIBRATION_BINS`] of `rows`, empty ones left out.
#[must_use]
pub fn calibration(rows: &[JudgedPrompt]) -> Vec<CalibrationBin> {
    let mut bins: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); CALIBRATION_BINS];
    for (_, quality, truth) in rows.iter().flat_map(JudgedPrompt::cells) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to the number of bins"
        )]
        let bin = ((quality * CALIBRATION_BINS as f64) as usize).min(CALIBRATION_BINS - 1);
        bins[bin].0.push(quality);
        bins[bin].1.push(truth.score);
    }
    let filled = bins.iter().filter(|(predicted, _)| !predicted.is_empty());
    filled
        .map(|(predicted, actual)| CalibrationBin {
            scores: predicted.len(),
            predicted: mean(predicted),
            actual: mean(actual),
            half: ci95_half(actual),
        })
        .collect()
}

fn calibration_error(bins: &[CalibrationBin]) -> f64 {
    let n: usize = bins.iter().map(|bin| bin.scores).sum();
    let distance = |bin: &CalibrationBin| bin.scores as f64 * (bin.predicted - bin.actual).abs();
    bins.iter().map(distance).sum::<f64>() / n.max(1) as f64
}

fn mean_of(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let numbers: Vec<f64> = numbers.collect();
    (!numbers.is_empty()).then(|| mean(&numbers))
}

#[cfg(test)]
mod tests;

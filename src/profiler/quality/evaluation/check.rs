//! What a store is worth: each of its prompts predicted from the others.
//!
//! Prompts of the same text as the one predicted do not take part, nor does the prompt itself in the means; so the
//! figures hold for prompts that were not profiled but are like those that were.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::profiler::quality::estimator::kernel::Kernel;
use crate::profiler::quality::estimator::profile::ProfileCell;
use crate::profiler::quality::estimator::vectors::Neighbour;
use crate::profiler::quality::estimator::{Estimator, Scratch};
use crate::profiler::quality::evaluation::{JudgedPrompt, Means, Metrics, Truth, judge};
use crate::profiler::quality::params::{
    DestinationPrior, EstimatorMode, FleetPriors, OodGate, QualityParams,
};
use crate::profiler::quality::store::LabelledProfile;
use crate::statistics::{ci95_half, mean};
use crate::units::{Quality, Tokens};

/// Below this many prompts retrieval is hardly better than each model's mean.
pub const PROMPTS_ADVISED: usize = 200;

/// Scores below which little can be said of a model.
const SCORES_ADVISED: usize = 50;

/// K and γ tried.
const NEIGHBOURS: [usize; 6] = [10, 20, 40, 80, 160, 320];
const SHARPNESSES: [f64; 5] = [2.0, 3.0, 5.0, 8.0, 12.0];

/// K of the paper's equation that is shown beside the configured one.
const PAPER_NEIGHBOURS: usize = 5;

/// Rows of a benchmark below which it is not warned about.
const WARNED_ROWS: usize = 30;

/// What there is to know of a store.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// Prompts in the store.
    pub prompts: usize,
    /// Predictions with the parameters given, against each model's mean.
    pub metrics: Metrics,
    /// Mean squared error by way of predicting.
    pub methods: Vec<MethodError>,
    /// By benchmark, largest first.
    pub tags: Vec<TagError>,
    /// K and γ that are surely better than those given, if there are any.
    pub suggestion: Option<Suggestion>,
    /// What the operator should know.
    pub warnings: Vec<String>,
}

/// The error of one way of predicting.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MethodError {
    /// What it is.
    pub method: String,
    /// Mean squared error.
    pub mse: f64,
    /// That minus the error of each model's mean, 95 % interval over prompts; below 0 is better.
    pub against_mean: [f64; 2],
}

/// The error on one benchmark.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TagError {
    /// Its name.
    pub benchmark: Option<String>,
    /// Prompts judged.
    pub rows: usize,
    /// Mean squared error.
    pub mse: f64,
    /// The error of each model's mean over the whole store.
    pub mse_global_mean: f64,
    /// Mean score of the models predicted best.
    pub chosen_score: f64,
    /// Mean score of the best model for each prompt.
    pub oracle: f64,
}

/// Parameters better than those given.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Suggestion {
    /// K.
    pub neighbours: usize,
    /// γ.
    pub sharpness: f64,
    /// Mean squared error.
    pub mse: f64,
    /// That minus the error of the parameters given, 95 % interval; all below 0.
    pub difference: [f64; 2],
}

/// Everything that a check leaves behind.
pub struct Checked {
    /// Its findings.
    pub check: Check,
    /// The prompts judged, for charts.
    pub rows: Vec<JudgedPrompt>,
}

/// One way to combine the neighbours of every row.
struct Method<'a> {
    estimator: &'a Estimator,
    neighbours: &'a [Vec<Neighbour>],
    kernel: Kernel,
}

/// The models of a profile as a fleet, in its order.
#[must_use]
pub fn fleet_of(models: &[String]) -> FleetPriors {
    let prior = |model: &String| DestinationPrior {
        model: model.as_str().into(),
        quality: Quality(0.5),
        completion_tokens: Tokens(250.0),
    };
    FleetPriors { destinations: models.iter().map(prior).collect() }
}

/// Judges up to `rows_max` prompts, evenly spread over the store. `on_row` is called
/// once per prompt and vector space.
#[must_use]
pub fn check(
    labelled: &LabelledProfile,
    params: &QualityParams,
    rows_max: usize,
    on_row: &mut dyn FnMut(),
) -> Checked {
    let profile = &labelled.profile;
    let rows: Vec<usize> = (0..profile.len()).step_by(profile.len().div_ceil(rows_max).max(1)).collect();
    let fleet = fleet_of(profile.models());
    let aware = Estimator::new(profile.clone(), &fleet, params);
    let paper_params = QualityParams { mode: EstimatorMode::Paper, ood: OodGate::Soft, ..params.clone() };
    let paper = Estimator::new(profile.clone(), &fleet, &paper_params);
    let mut neighbours_in = |estimator: &Estimator| -> Vec<Vec<Neighbour>> {
        let mut scratch = Scratch::default();
        let k = NEIGHBOURS[NEIGHBOURS.len() - 1].max(estimator.kernel().neighbours);
        let of_row = |row: &usize| {
            on_row();
            estimator.nearest_others(*row, k, &mut scratch).to_vec()
        };
        rows.iter().map(of_row).collect()
    };
    // Whatever is slow or approximate about a large store is left out: the check scans.
    let (near, near_paper) = (neighbours_in(&aware), neighbours_in(&paper));
    let given = Method { estimator: &aware, neighbours: &near, kernel: *aware.kernel() };
    let judged = given.judged(labelled, &rows);
    let means = Means::new(labelled);
    let mean_errors = global_errors(labelled, &rows, &aware);
    let errors = given.errors(labelled, &rows);
    let with_k = |kernel: Kernel, k: usize| Kernel { neighbours: k.min(profile.len()), ..kernel };
    let of_paper =
        |k: usize| Method { estimator: &paper, neighbours: &near_paper, kernel: with_k(*paper.kernel(), k) };
    let against = |method: String, errors: &[f64]| MethodError {
        method,
        mse: mean(errors),
        against_mean: interval(errors, &mean_errors),
    };
    let methods = vec![
        against("each model's mean".to_owned(), &mean_errors),
        against(
            format!("paper, K = {PAPER_NEIGHBOURS}"),
            &of_paper(PAPER_NEIGHBOURS).errors(labelled, &rows),
        ),
        against(
            format!("paper, K = {}", paper.kernel().neighbours),
            &of_paper(paper.kernel().neighbours).errors(labelled, &rows),
        ),
        against(format!("{}, as given", params.mode), &errors),
    ];
    let suggestion = (params.mode == EstimatorMode::FormatAware)
        .then(|| suggest(&given, labelled, &rows, &errors))
        .flatten();
    let mut check = Check {
        prompts: profile.len(),
        metrics: judge(&judged, profile.models(), &means),
        methods,
        tags: tags(labelled, &rows, (&judged, &mean_errors)),
        suggestion,
        warnings: Vec::new(),
    };
    // A row's own score is in the means of the profile; here it is not.
    check.metrics.mse_global_mean = mean(&mean_errors);
    check.warnings = warnings(&check, labelled);
    Checked { check, rows: judged }
}

impl Method<'_> {
    fn judged(&self, labelled: &LabelledProfile, rows: &[usize]) -> Vec<JudgedPrompt> {
        let one = |(row, neighbours): (&usize, &Vec<Neighbour>)| {
            let estimate = self.estimator.combine(neighbours, &self.kernel, Some(*row));
            let label = &labelled.labels[*row];
            JudgedPrompt {
                id: label.id.clone(),
                benchmark: label.benchmark.clone(),
                has_low_evidence: estimate.has_low_evidence(),
                quality: estimate.prediction.quality.iter().map(|quality| Some(quality.get())).collect(),
                variance: estimate.variance,
                completion_tokens: estimate.prediction.completion_tokens.iter().map(|n| n.get()).collect(),
                truth: truth(labelled, *row),
            }
        };
        rows.iter().zip(self.neighbours).map(one).collect()
    }

    /// Mean squared error of every row.
    fn errors(&self, labelled: &LabelledProfile, rows: &[usize]) -> Vec<f64> {
        let judged = self.judged(labelled, rows);
        judged.iter().filter_map(|row| row.squared_error(|_, quality| quality)).collect()
    }
}

fn truth(labelled: &LabelledProfile, row: usize) -> Vec<Option<Truth>> {
    let of_cell = |cell: &Option<ProfileCell>| {
        cell.map(|cell| Truth {
            score: f64::from(cell.score),
            completion_tokens: cell.completion_tokens.map(f64::from),
            cost_usd: None,
        })
    };
    labelled.profile.cells(row).iter().map(of_cell).collect()
}

/// Errors of each model's mean without the row: what is left of a prediction without neighbours.
fn global_errors(labelled: &LabelledProfile, rows: &[usize], estimator: &Estimator) -> Vec<f64> {
    let none = vec![Vec::new(); rows.len()];
    Method { estimator, neighbours: &none, kernel: *estimator.kernel() }.errors(labelled, rows)
}

/// 95 % interval of the mean difference `a` − `b`.
fn interval(a: &[f64], b: &[f64]) -> [f64; 2] {
    let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    let (centre, half) = (mean(&differences), ci95_half(&differences));
    [centre - half, centre + half]
}

/// The best of the grid, if it is better than `errors` beyond doubt.
fn suggest(
    given: &Method<'_>,
    labelled: &LabelledProfile,
    rows: &[usize],
    errors: &[f64],
) -> Option<Suggestion> {
    let k_max = (labelled.profile.len() / 5).max(20);
    let grid =
        NEIGHBOURS.into_iter().filter(|k| *k <= k_max).flat_map(|k| SHARPNESSES.map(|gamma| (k, gamma)));
    let tried = grid.map(|(neighbours, sharpness)| {
        let kernel = Kernel { neighbours, sharpness, ..given.kernel };
        let tried = Method { kernel, ..*given }.errors(labelled, rows);
        Suggestion { neighbours, sharpness, mse: mean(&tried), difference: interval(&tried, errors) }
    });
    tried.min_by(|a, b| a.mse.total_cmp(&b.mse)).filter(|best| best.difference[1] < 0.0)
}

fn tags(
    labelled: &LabelledProfile,
    rows: &[usize],
    (judged, mean_errors): (&[JudgedPrompt], &[f64]),
) -> Vec<TagError> {
    let mut by_tag: BTreeMap<&Option<String>, Vec<usize>> = BTreeMap::new();
    for (i, row) in rows.iter().enumerate() {
        by_tag.entry(&labelled.labels[*row].benchmark).or_default().push(i);
    }
    let mut tags: Vec<TagError> = by_tag
        .into_iter()
        .map(|(benchmark, members)| {
            let of = |f: &dyn Fn(usize) -> Option<f64>| {
                mean(&members.iter().filter_map(|i| f(*i)).collect::<Vec<_>>())
            };
            TagError {
                benchmark: benchmark.clone(),
                rows: members.len(),
                mse: of(&|i| judged[i].squared_error(|_, quality| quality)),
                mse_global_mean: of(&|i| mean_errors.get(i).copied()),
                chosen_score: of(&|i| Some(judged[i].chosen()?.2)),
                oracle: of(&|i| judged[i].cells().map(|(_, _, truth)| truth.score).reduce(f64::max)),
            }
        })
        .collect();
    tags.sort_by(|a, b| b.rows.cmp(&a.rows).then(a.benchmark.cmp(&b.benchmark)));
    tags
}

fn warnings(check: &Check, labelled: &LabelledProfile) -> Vec<String> {
    let mut warnings = Vec::new();
    if check.prompts < PROMPTS_ADVISED {
        warnings.push(format!(
            "{} prompts predict little more than each model's mean; profile at least {PROMPTS_ADVISED}",
            check.prompts
        ));
    }
    if check.methods.last().is_some_and(|given| given.against_mean[1] >= 0.0) {
        warnings.push(
            "retrieval does not surely beat each model's mean: add prompts like those your clients send"
                .to_owned(),
        );
    }
    let profile = &labelled.profile;
    for (column, model) in profile.models().iter().enumerate() {
        let n = (0..profile.len()).filter(|row| profile.cells(*row)[column].is_some()).count();
        if n < SCORES_ADVISED {
            warnings
                .push(format!("model {model} has {n} scores; below {SCORES_ADVISED} they say little of it"));
        }
    }
    for tag in check.tags.iter().filter(|tag| tag.rows >= WARNED_ROWS && tag.mse > tag.mse_global_mean) {
        let name = tag.benchmark.as_deref().unwrap_or("(none)");
        warnings.push(format!(
            "benchmark {name} is predicted worse than by each model's mean ({:.3} against {:.3}): `ood: mean` may help",
            tag.mse, tag.mse_global_mean
        ));
    }
    warnings
}

//! Independent batches on an idle fleet: the paper's controlled comparison (Tables V–VII, Fig. 2, 6, 7).
//!
//! Every method assigns the same batches from the predicted tables; the assignments are judged twice: by the
//! predictions themselves (as the paper does: one BatchEvaluator decides and judges) and by what really was.
//! J is min–max over the compared methods batch by batch (Eq. 6 over the set under comparison), then
//! averaged.

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use crate::domain::Weights;
use crate::routing::{CostModels, Evaluator, Objective, Problem, RawTerms, TermRange, rng_for};
use crate::simulate::workload::Figures;
use crate::simulate::{Method, SimulateError, Workload};
use crate::statistics::{ci95_half, mean};
use crate::units::Seconds;

/// What is run.
#[derive(Debug, Clone, Copy)]
pub struct BatchParams {
    /// R, requests per batch, drawn without repetition; at most the rows of the workload.
    pub batch_size: usize,
    /// Independent batches.
    pub batches: usize,
    /// Seed of batches and solvers.
    pub seed: u64,
    /// Completion, time and energy models.
    pub costs: CostModels,
    /// ω.
    pub weights: Weights,
}

/// One number per term of the objective.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Terms {
    /// Mean quality loss.
    pub quality: f64,
    /// Money of the batch, US dollars.
    pub cost: f64,
    /// Energy of the batch, joules.
    pub energy: f64,
    /// Batch completion time, seconds.
    pub time: f64,
}

/// The assignments of one method under one set of figures, averaged over the batches.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Judgement {
    /// Weighted sum of the normalised terms; lower is better.
    #[serde(rename = "J")]
    pub objective: f64,
    /// Half the width of its 95 % confidence interval.
    #[serde(rename = "J_ci95")]
    pub objective_ci95: f64,
    /// Terms scaled to `[0, 1]` over the compared methods, batch by batch.
    #[serde(rename = "normalized")]
    pub normalised: Terms,
    /// Quality loss, US dollars, joules and seconds of a batch.
    pub raw: Terms,
}

/// How one method did.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchOutcome {
    /// Name of the method.
    pub name: String,
    /// By the router's predictions, as the paper judges: one BatchEvaluator decides and judges.
    pub predicted: Judgement,
    /// By what really was.
    pub truth: Judgement,
    /// J under the bounds fixed for each batch, by predictions: what the solvers minimise, comparable
    /// between runs with other methods.
    pub solver_objective: f64,
    /// Time of one decision.
    pub decision: Seconds,
    /// Half the width of its 95 % confidence interval, seconds.
    pub decision_ci95_s: f64,
}

/// What one method did with one batch.
struct Sample {
    predicted: Terms,
    truth: Terms,
    solver_objective: f64,
    decision_s: f64,
}

/// Runs every method on every batch. `clock` times decisions and nothing else; `on_batch` is called after
/// each batch.
///
/// # Errors
/// [`SimulateError`] of the first batch or method that fails.
pub fn run(
    workload: &Workload,
    methods: &[Method],
    params: &BatchParams,
    clock: &dyn Fn() -> Seconds,
    on_batch: &mut dyn FnMut(),
) -> Result<Vec<BatchOutcome>, SimulateError> {
    let mut samples: Vec<Vec<Sample>> = methods.iter().map(|_| Vec::new()).collect();
    let mut first_request_number = 0;
    for batch in 0..params.batches as u64 {
        let rows = draw(workload.requests().len(), params.batch_size, &mut rng_for(params.seed, 2 * batch));
        let problem = |figures| workload.problem(&rows, figures, &params.costs, params.weights);
        let predicted = problem(Figures::Predicted)?.numbered_from(first_request_number);
        let actual = problem(Figures::True)?;
        first_request_number += rows.len() as u64;
        for (method, samples) in methods.iter().zip(&mut samples) {
            // Every method gets the same random numbers, whoever else is compared.
            let rng = rng_for(params.seed, 2 * batch + 1);
            samples.push(sample(method, &predicted, &actual, rng, clock)?);
        }
        on_batch();
    }
    let judge = |raw: fn(&Sample) -> Terms| judgements(&samples, params.weights, raw);
    let judged = judge(|sample| sample.predicted).into_iter().zip(judge(|sample| sample.truth));
    let outcomes = methods.iter().zip(&samples).zip(judged);
    Ok(outcomes.map(|((method, samples), judged)| outcome(method, samples, judged)).collect())
}

/// `n` of `of` rows in random order.
fn draw(of: usize, n: usize, rng: &mut ChaCha8Rng) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..of).collect();
    for i in 0..n.min(of) {
        let other = rng.random_range(i..of);
        rows.swap(i, other);
    }
    rows.truncate(n);
    rows
}

fn sample(
    method: &Method,
    predicted: &Problem,
    actual: &Problem,
    mut rng: ChaCha8Rng,
    clock: &dyn Fn() -> Seconds,
) -> Result<Sample, SimulateError> {
    let began = clock();
    let assignment = method.assign(predicted, &mut rng)?;
    let decision_s = (clock() - began).get();
    let objective = Objective::batch(predicted);
    let mut evaluator = Evaluator::new(predicted, &objective);
    let solver_objective = evaluator.objective(&assignment);
    let as_predicted = terms(&evaluator.raw(&assignment));
    // Raw terms do not depend on the objective.
    let truth = terms(&Evaluator::new(actual, &objective).raw(&assignment));
    Ok(Sample { predicted: as_predicted, truth, solver_objective, decision_s })
}

fn terms(raw: &RawTerms) -> Terms {
    Terms { quality: raw.quality_loss, cost: raw.cost.get(), energy: raw.energy.get(), time: raw.time.get() }
}

/// Eq. 6 over the methods, batch by batch; one judgement per method.
fn judgements(samples: &[Vec<Sample>], weights: Weights, raw: fn(&Sample) -> Terms) -> Vec<Judgement> {
    let batches = samples.first().map_or(0, Vec::len);
    let mut normalised: Vec<Vec<Terms>> = samples.iter().map(|_| Vec::with_capacity(batches)).collect();
    for batch in 0..batches {
        let over = |term: fn(&Terms) -> f64| {
            TermRange::over(samples.iter().map(|of_method| term(&raw(&of_method[batch]))))
        };
        let (quality, cost) = (over(|t| t.quality), over(|t| t.cost));
        let (energy, time) = (over(|t| t.energy), over(|t| t.time));
        for (of_method, normalised) in samples.iter().zip(&mut normalised) {
            let raw = raw(&of_method[batch]);
            normalised.push(Terms {
                quality: quality.normalise(raw.quality),
                cost: cost.normalise(raw.cost),
                energy: energy.normalise(raw.energy),
                time: time.normalise(raw.time),
            });
        }
    }
    let judgement = |(samples, normalised): (&Vec<Sample>, &Vec<Terms>)| {
        let objectives: Vec<f64> = normalised.iter().map(|terms| weighted(terms, weights)).collect();
        Judgement {
            objective: mean(&objectives),
            objective_ci95: ci95_half(&objectives),
            normalised: mean_terms(normalised.iter().copied()),
            raw: mean_terms(samples.iter().map(raw)),
        }
    };
    samples.iter().zip(&normalised).map(judgement).collect()
}

fn weighted(terms: &Terms, w: Weights) -> f64 {
    w.quality * terms.quality + w.cost * terms.cost + w.energy * terms.energy + w.time * terms.time
}

fn outcome(method: &Method, samples: &[Sample], (predicted, truth): (Judgement, Judgement)) -> BatchOutcome {
    let decisions: Vec<f64> = samples.iter().map(|s| s.decision_s).collect();
    BatchOutcome {
        name: method.name().to_owned(),
        predicted,
        truth,
        solver_objective: mean(&samples.iter().map(|s| s.solver_objective).collect::<Vec<_>>()),
        decision: Seconds(mean(&decisions)),
        decision_ci95_s: ci95_half(&decisions),
    }
}

fn mean_terms(terms: impl Iterator<Item = Terms> + Clone) -> Terms {
    let of = |term: fn(&Terms) -> f64| mean(&terms.clone().map(|t| term(&t)).collect::<Vec<_>>());
    Terms { quality: of(|t| t.quality), cost: of(|t| t.cost), energy: of(|t| t.energy), time: of(|t| t.time) }
}

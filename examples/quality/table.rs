//! The table, with 95 % intervals over prompts.

use cema_router::profiler::quality::estimator::profile::Profile;
use cema_router::profiler::quality::evaluation::cost_quality::CostSweep;
use cema_router::profiler::quality::evaluation::{JudgedPrompt, Means, judge};
use cema_router::profiler::quality::store::LabelledProfile;
use cema_router::statistics::{ci95_half, mean};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::methods::{DEFAULT, METHODS};

/// One line per method of what it predicted of the same prompts in the same order.
pub(crate) fn print_table(
    judged: &[Vec<JudgedPrompt>; METHODS.len()],
    models: &[String],
    resamplings: usize,
) {
    // The mean lengths and scores that `judge` compares with are lines of their own here.
    let nothing = LabelledProfile { profile: Profile::new(models.to_vec()), ..LabelledProfile::default() };
    let mut means = Means::new(&nothing);
    means.completion_tokens = vec![Some(0.0); models.len()];
    let sweeps: Vec<Option<CostSweep>> =
        judged.iter().map(|rows| CostSweep::new(rows, models.len())).collect();
    let areas: Vec<Vec<f64>> = sweeps.iter().map(|sweep| resampled(sweep.as_ref(), resamplings)).collect();
    println!("| method | MSE | − default | chosen | bias | calibration | AIQ | − default | tokens |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for (i, method) in METHODS.iter().enumerate() {
        let metrics = judge(&judged[i], models, &means);
        let differences: Vec<f64> =
            errors(&judged[i]).iter().zip(errors(&judged[DEFAULT])).map(|(a, b)| a - b).collect();
        let (centre, half) = (mean(&differences), ci95_half(&differences));
        let area_differences: Vec<f64> = areas[i].iter().zip(&areas[DEFAULT]).map(|(a, b)| a - b).collect();
        let tokens =
            metrics.token_mae_log.filter(|_| judged[i].iter().any(|row| row.completion_tokens[0] > 0.0));
        println!(
            "| {} | {:.4} ± {:.4} | {} | {:.4} ± {:.4} | {:+.3} | {:.3} | {} | {} | {} |",
            method.name(),
            metrics.mse,
            metrics.mse_half,
            if i == DEFAULT { "–".to_owned() } else { range(centre - half, centre + half) },
            metrics.chosen_score,
            metrics.chosen_half,
            metrics.bias_chosen,
            metrics.calibration_error,
            metrics.aiq.map_or("–".to_owned(), |aiq| {
                let (lo, hi) = interval(&areas[i]);
                format!("{aiq:.4} [{lo:.4}, {hi:.4}]")
            }),
            if i == DEFAULT || areas[i].is_empty() {
                "–".to_owned()
            } else {
                let (lo, hi) = interval(&area_differences);
                range(lo, hi)
            },
            tokens.map_or("–".to_owned(), |tokens| format!("{tokens:.4}")),
        );
    }
    let metrics = judge(&judged[DEFAULT], models, &means);
    println!(
        "\n{} predictions of prompts. The best model for each prompt: {:.4}. Variance predicted {:.4}, found {:.4}. Prompts \
         unlike all profiled: {:.1} %. Tokens predicted: {} of the real ones.",
        metrics.rows,
        metrics.oracle,
        metrics.predicted_variance,
        metrics.mse,
        100.0 * metrics.low_evidence,
        metrics.token_ratio.map_or("–".to_owned(), |ratio| format!("{:.3}", ratio)),
    );
}

fn errors(rows: &[JudgedPrompt]) -> Vec<f64> {
    rows.iter().filter_map(|row| row.squared_error(|_, quality| quality)).collect()
}

/// AIQ of resampled prompts, the same ones for every method.
fn resampled(sweep: Option<&CostSweep>, n: usize) -> Vec<f64> {
    let Some(sweep) = sweep else { return Vec::new() };
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut draw = || {
        let mut weights = vec![0.0; sweep.rows()];
        (0..sweep.rows()).for_each(|_| weights[rng.random_range(0..sweep.rows())] += 1.0);
        weights
    };
    (0..n).map(|_| sweep.aiq(Some(&draw()))).collect()
}

fn interval(samples: &[f64]) -> (f64, f64) {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| cema_router::statistics::quantile(&sorted, share);
    (at(0.025), at(0.975))
}

fn range(lo: f64, hi: f64) -> String {
    format!("[{lo:+.4}, {hi:+.4}]")
}

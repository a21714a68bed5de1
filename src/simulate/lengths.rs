//! Synthetic completion lengths, for traces that recorded scores but no tokens.
//!
//! length = task mean × verbosity of the model × exp(0.45 z_request + 0.25 z_pair − 0.13), at least 2, with
//! standard normal z drawn from the row's id (and the model), so that a row has the same lengths in every
//! run. Results that rest on them are labelled `synthetic`.

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use crate::routing::rng_for;
use crate::units::Tokens;

/// Mean length by benchmark, tokens.
const TASK_MEANS: &[(&str, f64)] = &[
    ("mmlu", 220.0),
    ("gsm8k", 200.0),
    ("math", 420.0),
    ("mbpp", 180.0),
    ("human_eval", 220.0),
    ("natural_qa", 60.0),
    ("trivia_qa", 40.0),
    ("commonsense_qa", 150.0),
    ("openbook_qa", 150.0),
    ("arc-challenge", 170.0),
    ("agentverse-mgsm", 220.0),
    ("agentverse-logicgrid", 450.0),
    ("commongen", 80.0),
];
const OTHER_TASK_MEAN: f64 = 200.0;

/// Length of a model's answers beside the task's mean.
const VERBOSITY: &[(&str, f64)] = &[
    ("codegemma-7b", 0.8),
    ("gemma-2-9b-it", 0.9),
    ("llama-3.1-8b-instruct", 1.0),
    ("llama-3.1-nemotron-51b-instruct", 1.15),
    ("llama-3.3-nemotron-super-49b-v1", 1.3),
    ("llama3-chatqa-1.5-70b", 0.5),
    ("llama3-chatqa-1.5-8b", 0.5),
    ("mistral-7b-instruct-v0.3", 1.0),
    ("qwen2.5-7b-instruct", 1.1),
];

const REQUEST_DEVIATION: f64 = 0.45;
const PAIR_DEVIATION: f64 = 0.25;
/// Half the variance: keeps the mean of the log-normal factor at 1.
const MEAN_SHIFT: f64 = 0.13;
const TOKENS_MIN: f64 = 2.0;

/// The length of `model`'s answer to the row `id` of `benchmark`.
#[must_use]
pub fn synthetic_length(id: &str, benchmark: Option<&str>, model: &str) -> Tokens {
    let find =
        |table: &[(&str, f64)], key: &str| table.iter().find(|(name, _)| *name == key).map(|(_, x)| *x);
    let task_mean = benchmark.and_then(|task| find(TASK_MEANS, task)).unwrap_or(OTHER_TASK_MEAN);
    let verbosity = find(VERBOSITY, model).unwrap_or(1.0);
    let z_request = standard_normal(&mut rng_for(fnv1a(id.as_bytes()), 0));
    let z_pair = standard_normal(&mut rng_for(fnv1a(id.as_bytes()), fnv1a(model.as_bytes())));
    let factor = (REQUEST_DEVIATION * z_request + PAIR_DEVIATION * z_pair - MEAN_SHIFT).exp();
    Tokens((task_mean * verbosity * factor).round().max(TOKENS_MIN))
}

/// Box–Muller.
fn standard_normal(rng: &mut ChaCha8Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
}

/// 64-bit FNV-1a, to turn names into seeds that never change.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_same_lengths_in_every_run_and_about_the_mean_over_many() {
        let length = |i: u32| synthetic_length(&format!("row{i}"), Some("math"), "codegemma-7b").get();
        assert!((length(1) - length(1)).abs() < 1e-12);
        let mean = (0..2_000).map(length).sum::<f64>() / 2_000.0;
        // 420 × 0.8, standard error about 1.2 %.
        assert!((mean / 336.0 - 1.0).abs() < 0.05, "{mean}");
    }

    #[test]
    fn unknown_names_have_a_plain_mean() {
        let mean =
            (0..2_000).map(|i| synthetic_length(&format!("r{i}"), None, "mine").get()).sum::<f64>() / 2_000.0;
        assert!((mean / 200.0 - 1.0).abs() < 0.05, "{mean}");
    }

    #[test]
    fn the_hash_is_fnv1a() {
        // Published test vectors.
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}

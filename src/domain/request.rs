//! A request as routing sees it: the few fields a decision needs, never the prompt itself.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::backlog::Work;
use super::completion::TimeTerm;
use super::destination::{Capabilities, DestinationOrd, NodeClass, Throughput};
use super::named::named_enum;
use super::prefix::CachedPrefix;
use crate::units::{Bytes, Quality, Seconds, Tokens};

/// Which models may serve a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelTarget {
    /// A virtual model such as `auto`: every destination is a candidate.
    Any,
    /// Exactly the destinations with this public model name.
    Named(Arc<str>),
}

/// Hard constraints of one request. They hold on every path: planning, fail-over, retry.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Constraints {
    /// Only nodes of this class.
    pub placement: Option<NodeClass>,
    /// Only destinations with at least this predicted quality.
    pub min_quality: Option<Quality>,
    /// Completion wanted within this time of arrival, where some destination can meet it.
    pub deadline: Option<Seconds>,
}

/// The weights ω of Eq. 5. Not negative; at least one is positive.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Weights {
    /// ω_Q, response-quality loss.
    pub quality: f64,
    /// ω_C, money.
    pub cost: f64,
    /// ω_E, energy.
    pub energy: f64,
    /// ω_T, completion time.
    pub time: f64,
}

impl Weights {
    /// The paper's default: a quarter each.
    pub const EQUAL: Self = Self { quality: 0.25, cost: 0.25, energy: 0.25, time: 0.25 };

    /// Reads weights such as `quality=.6,time=.4`, scaled to sum to 1. Terms that are not named get none; none may be
    /// named twice.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let [mut quality, mut cost, mut energy, mut time] = [None; 4];
        for pair in text.split(',') {
            let (term, value) = pair.split_once('=')?;
            let weight = match term.trim() {
                "quality" => &mut quality,
                "cost" => &mut cost,
                "energy" => &mut energy,
                "time" => &mut time,
                _ => return None,
            };
            if weight.replace(value.trim().parse::<f64>().ok()?).is_some() {
                return None;
            }
        }
        let [quality, cost, energy, time] = [quality, cost, energy, time].map(|weight| weight.unwrap_or(0.0));
        Self { quality, cost, energy, time }.normalised()
    }

    /// Scales the weights so that they sum to 1. `None` if one is negative or not finite, or all are zero.
    #[must_use]
    pub fn normalised(self) -> Option<Self> {
        let parts = [self.quality, self.cost, self.energy, self.time];
        let sum: f64 = parts.iter().sum();
        let usable = parts.iter().all(|w| w.is_finite() && *w >= 0.0) && sum > 0.0 && sum.is_finite();
        usable.then(|| Self {
            quality: self.quality / sum,
            cost: self.cost / sum,
            energy: self.energy / sum,
            time: self.time / sum,
        })
    }
}

/// One admitted request r, reduced to what the evaluator needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoutingRequest {
    /// The request id of `x-request-id`.
    pub id: Arc<str>,
    /// Models that may serve it.
    pub target: ModelTarget,
    /// What it needs of a model.
    pub needs: Capabilities,
    /// Prompt length (estimated before an endpoint counts it); of several prompts their sum.
    pub prompt_tokens: Tokens,
    /// The longest prompt alone, which a context must hold: `prompt_tokens` where there is one prompt.
    pub longest_prompt: Tokens,
    /// What destinations are expected to have of the prompt in their caches.
    pub cached: CachedPrefix,
    /// The client's cap on the completion, per choice.
    pub max_completion_tokens: Option<Tokens>,
    /// Completions asked for (`n`, for each prompt); at least 1.
    pub choices: u32,
    /// Body size.
    pub upload: Bytes,
    /// Hard constraints.
    pub constraints: Constraints,
    /// Weights of this request (virtual model or header); `None` = the fleet's.
    pub weights: Option<Weights>,
    /// Time term of this request (virtual model); `None` = the fleet's.
    pub time: Option<TimeTerm>,
}

impl RoutingRequest {
    /// Completion tokens of all choices where `predicted` is the length of one, after the client's cap. An
    /// embedding has none.
    #[must_use]
    pub fn completion(&self, predicted: Tokens) -> Tokens {
        if self.needs.offers(Capabilities::EMBEDDING) {
            return Tokens::ZERO;
        }
        let per_choice = self.max_completion_tokens.map_or(predicted, |cap| predicted.min(cap));
        Tokens(per_choice.0 * f64::from(self.choices))
    }

    /// What it would take `d`, of this speed, alone on the endpoint (s_rd), where `predicted` is the length of one
    /// completion: the prompt but for what is cached there, and all completions.
    #[must_use]
    pub fn work(&self, (d, speed): (DestinationOrd, &Throughput), predicted: Tokens) -> Work {
        speed.work_beyond(self.cached.at(d), self.prompt_tokens, self.completion(predicted))
    }
}

named_enum! {
    /// Where a prediction's quality came from; a metric label and part of the decision record.
    pub enum QualitySource {
        /// Similar prompts of the quality store (Eq. 1).
        Store = "store",
        /// Configured priors: quality has no weight or one destination only, so nothing was looked up.
        Skipped = "skipped",
        /// Configured priors: no store, or no profiled row in it.
        NoProfile = "no_profile",
        /// Configured priors: the embedder is off or failed.
        NoEmbedder = "no_embedder",
        /// Configured priors: the embedding was not there in time, or the embedder's queue was full.
        Late = "late",
    }
}

/// Predicted quality q̂(r, d) and completion length of one request at every destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// q̂ per destination, M entries in `[0, 1]`.
    pub quality: Vec<Quality>,
    /// Completion tokens per destination and choice, M entries, before the client's cap.
    pub completion_tokens: Vec<Tokens>,
    /// Mean quality loss of prompts like it per destination, coarsely (UniRoute's error rate of its prompt cluster): M
    /// entries, or none where no policy asks.
    pub cluster_error: Vec<f64>,
    /// Where `quality` came from.
    pub source: QualitySource,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::fixture::{destination, request};
    use crate::units::TokensPerSec;

    proptest! {
        /// Of 1000 tokens a second and 100 of completion.
        #[test]
        fn what_is_cached_is_no_work_and_the_rest_is(
            prompt in 0.0..1e5_f64,
            cached in 0.0..2e5_f64,
            of_any_prompt in 0.0..1e3_f64,
            tokens in 0.0..1e4_f64,
        ) {
            let mut speed = destination(0, 4, 8).throughput;
            (speed.prefill, speed.cached_prompt) = (TokensPerSec(1e3), Tokens(of_any_prompt));
            let d = DestinationOrd(0);
            let plain = RoutingRequest { prompt_tokens: Tokens(prompt), ..request("r") };
            let known = RoutingRequest { cached: CachedPrefix::new(vec![Tokens(cached)]), ..plain.clone() };
            let (all, rest) = (plain.work((d, &speed), Tokens(tokens)), known.work((d, &speed), Tokens(tokens)));
            prop_assert_eq!(all.decode, rest.decode);
            prop_assert!(Seconds::ZERO <= rest.prefill && rest.prefill <= all.prefill);
            // The larger of both, not their sum, and never what is new.
            let expected_s = (prompt - cached.max(of_any_prompt)).max(0.0) / 1e3;
            prop_assert!((rest.prefill.0 - expected_s).abs() < 1e-9);
            // Elsewhere it is a request like any other.
            let elsewhere = DestinationOrd(1);
            prop_assert_eq!(plain.work((elsewhere, &speed), Tokens(tokens)), known.work((elsewhere, &speed), Tokens(tokens)));
        }
    }

    #[test]
    fn weights_are_scaled_to_one_or_refused() {
        let scaled = Weights { quality: 2.0, cost: 1.0, energy: 0.0, time: 1.0 }.normalised();
        assert_eq!(scaled, Some(Weights { quality: 0.5, cost: 0.25, energy: 0.0, time: 0.25 }));
        assert_eq!(Weights { quality: 0.0, cost: 0.0, energy: 0.0, time: 0.0 }.normalised(), None);
        assert_eq!(Weights { quality: -1.0, ..Weights::EQUAL }.normalised(), None);
        assert_eq!(Weights { time: f64::NAN, ..Weights::EQUAL }.normalised(), None);
        assert_eq!(Weights { time: f64::MAX, cost: f64::MAX, ..Weights::EQUAL }.normalised(), None);
    }
}

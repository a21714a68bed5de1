//! How much a calibration sends: said beforehand, and held to.

use std::sync::{Mutex, PoisonError};

use super::ladder;
use super::prompt::PromptSizer;
use crate::domain::destination::{Price, Throughput};
use crate::units::{Seconds, Tokens, Usd};

/// Completion tokens of a warm-up request.
const WARM_UP_TOKENS: u32 = 8;

/// What is measured at one destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Course {
    /// Prompt tokens at most, for each length; the ladder uses the first.
    pub prompt_tokens: Vec<u32>,
    /// Requests of each length.
    pub repeats: u32,
    /// Completion tokens of a request.
    pub completion_tokens: u32,
    /// Highest concurrency of the ladder.
    pub max_concurrency: u32,
    /// Makes the prompts of one run differ from those of any other.
    pub seed: u64,
}

/// An amount of requests and tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Volume {
    /// Requests.
    pub requests: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Completion tokens.
    pub completion_tokens: u64,
}

impl Volume {
    /// `n` requests of this many tokens each.
    pub(super) fn of(n: u32, prompt: u32, completion: u32) -> Self {
        let n = u64::from(n);
        Self {
            requests: n,
            prompt_tokens: n * u64::from(prompt),
            completion_tokens: n * u64::from(completion),
        }
    }

    /// What it costs at `price`.
    #[must_use]
    pub fn cost(&self, price: &Price) -> Usd {
        let tokens = price.charge(Tokens(self.prompt_tokens as f64), Tokens(self.completion_tokens as f64));
        // `charge` is of one request.
        tokens + Usd(price.request.get() * (self.requests as f64 - 1.0))
    }
}

impl std::ops::AddAssign for Volume {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
    }
}

impl std::iter::Sum for Volume {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), |mut sum, volume| {
            sum += volume;
            sum
        })
    }
}

impl Course {
    /// One volume for each warm-up request.
    pub(super) fn warm_ups() -> impl Iterator<Item = (usize, Volume)> {
        PromptSizer::WARM_UP_WORDS
            .into_iter()
            .map(|n_words| (n_words, Volume::of(1, PromptSizer::warm_up_tokens_max(n_words), WARM_UP_TOKENS)))
    }

    /// A single request with a prompt of up to `prompt_tokens`.
    pub(super) fn single(&self, prompt_tokens: u32) -> Volume {
        Volume::of(1, prompt_tokens, self.completion_tokens)
    }

    /// Requests of all rungs.
    fn ladder_requests(&self) -> u32 {
        ladder::concurrencies(self.max_concurrency).map(|c| c.saturating_mul(ladder::rounds(c))).sum()
    }

    /// Everything it sends at most: less where the ladder ends early or a server fails.
    #[must_use]
    pub fn volume(&self) -> Volume {
        let singles =
            self.prompt_tokens.iter().map(|length| Volume::of(self.repeats, *length, self.completion_tokens));
        let shortest = self.prompt_tokens.first().copied().unwrap_or_default();
        let ladder = Volume::of(self.ladder_requests(), shortest, self.completion_tokens);
        Self::warm_ups().map(|(_, volume)| volume).chain(singles).chain([ladder]).sum()
    }

    /// How long a single request with a prompt of `prompt_tokens` takes at the speeds believed so far.
    pub(super) fn service(&self, believed: &Throughput, prompt_tokens: u32) -> Seconds {
        believed.service_time(Tokens(f64::from(prompt_tokens)), Tokens(f64::from(self.completion_tokens)))
    }

    /// About how long it takes at the speeds believed so far.
    #[must_use]
    pub fn duration(&self, believed: &Throughput) -> Seconds {
        let service = |prompt: u32| self.service(believed, prompt);
        let singles: Seconds = self
            .prompt_tokens
            .iter()
            .map(|length| Seconds(f64::from(self.repeats) * service(*length).get()))
            .sum();
        let first = service(self.prompt_tokens.first().copied().unwrap_or_default()).get();
        let rung = |c: u32| {
            let requests = f64::from(c) * f64::from(ladder::rounds(c));
            Seconds(requests * first / f64::from(c).min(believed.batch_speedup))
        };
        singles + ladder::concurrencies(self.max_concurrency).map(rung).sum()
    }
}

/// What may still be sent. Everything that is sent is taken from it first.
#[derive(Debug)]
pub struct Allowance(Mutex<Volume>);

/// The allowance is used up: prompts came out longer than planned.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "what was announced has been sent, the server counts more tokens than expected; measured is what came until then"
)]
pub struct UsedUp;

impl Allowance {
    /// At most `volume`.
    #[must_use]
    pub fn new(volume: Volume) -> Self {
        Self(Mutex::new(volume))
    }

    /// Takes `volume` out.
    ///
    /// # Errors
    /// Where there is not so much left: then nothing is taken and nothing may be sent.
    pub fn take(&self, volume: Volume) -> Result<(), UsedUp> {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let less = |have: u64, take: u64| have.checked_sub(take).ok_or(UsedUp);
        *left = Volume {
            requests: less(left.requests, volume.requests)?,
            prompt_tokens: less(left.prompt_tokens, volume.prompt_tokens)?,
            completion_tokens: less(left.completion_tokens, volume.completion_tokens)?,
        };
        Ok(())
    }

    /// What was taken as `planned` was really `actual`: what that is more is taken too.
    pub fn settle(&self, planned: Volume, actual: Volume) {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let further =
            |left: u64, planned: u64, actual: u64| left.saturating_sub(actual.saturating_sub(planned));
        left.prompt_tokens = further(left.prompt_tokens, planned.prompt_tokens, actual.prompt_tokens);
        left.completion_tokens =
            further(left.completion_tokens, planned.completion_tokens, actual.completion_tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::TokensPerSec;

    fn course() -> Course {
        Course {
            prompt_tokens: vec![64, 256],
            repeats: 3,
            completion_tokens: 32,
            max_concurrency: 4,
            seed: 1,
        }
    }

    #[test]
    fn the_volume_is_every_request_with_its_tokens() {
        let warm_ups: Volume = Course::warm_ups().map(|(_, volume)| volume).sum();
        assert_eq!(warm_ups.requests, 2);
        // Singles 2 × 3; ladder 4 × 1 + 2 × 2 + 2 × 4 = 16 at 64 tokens.
        let volume = course().volume();
        assert_eq!(volume.requests, 2 + 6 + 16);
        assert_eq!(volume.prompt_tokens, warm_ups.prompt_tokens + 3 * (64 + 256) + 16 * 64);
        assert_eq!(volume.completion_tokens, 2 * u64::from(WARM_UP_TOKENS) + 22 * 32);
    }

    #[test]
    fn the_cost_is_that_of_all_requests() {
        let price = Price { prompt_usd_per_mtok: 1.0, completion_usd_per_mtok: 2.0, request: Usd(0.001) };
        // 0.001 + 0.001 for tokens, 0.003 for three requests.
        let volume = Volume { requests: 3, prompt_tokens: 1_000, completion_tokens: 500 };
        assert!((volume.cost(&price).get() - 0.005).abs() < 1e-12);
    }

    #[test]
    fn the_duration_follows_the_believed_speeds() {
        let believed = Throughput {
            prefill: TokensPerSec(64.0),
            decode: TokensPerSec(32.0),
            batch_speedup: 2.0,
            max_concurrency: 4,
            cached_prompt: Tokens::ZERO,
        };
        // s = 64 / 64 + 32 / 32 = 2 s and 5 s. Singles 3 × 7 s; ladder 4 × 2 / 1 + 4 × 2 / 2 + 8 × 2 / 2.
        assert!((course().duration(&believed).get() - (21.0 + 8.0 + 4.0 + 8.0)).abs() < 1e-9);
    }

    #[test]
    fn no_more_is_given_than_there_is() {
        let allowance = Allowance::new(Volume::of(2, 10, 5));
        assert_eq!(allowance.take(Volume::of(1, 10, 5)), Ok(()));
        // 12 prompt tokens where 10 were planned: two fewer are left.
        allowance.settle(Volume::of(1, 10, 5), Volume::of(1, 12, 4));
        assert_eq!(allowance.take(Volume::of(1, 9, 5)), Err(UsedUp));
        assert_eq!(allowance.take(Volume::of(1, 8, 5)), Ok(()));
        assert_eq!(allowance.take(Volume::of(1, 0, 0)), Err(UsedUp));
    }
}

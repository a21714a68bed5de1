//! Speed of one destination, estimated from the requests that went there. Time is an argument.

use super::filter::{CachedFloor, Decode, DecodeFilter, LogFilter, Prior};
use super::pace::Pace;
use crate::domain::Throughput;
use crate::units::{Seconds, Tokens, TokensPerSec};

/// A figure without a sample for so long is stale. In place of a stale figure that differs from a configured one the
/// configured one is in force again; a mere default is not worth going back to.
pub const STALE_AFTER: Seconds = Seconds(600.0);
/// Largest factor between a measured figure and a configured one.
const CONFIGURED_DRIFT_MAX: f64 = 4.0;
/// Largest factor between a measured figure and a default, which knows nothing of the machine: a small model on a
/// busy processor reads prompts two hundred times slower than on an accelerator.
const DEFAULT_DRIFT_MAX: f64 = 256.0;
/// Largest factor between tokens as counted and as expected before.
const TOKENS_RATIO_MAX: f64 = 4.0;
/// A figure that differs from a configured one by more than this factor has drifted: it is to be calibrated again.
pub const DRIFT_BAND: f64 = 1.5;
/// After so long without a sample, figures slower than usual begin to recover: an endpoint that was slow is tried again,
/// or nothing would ever be seen of it.
const RECOVERS_AFTER: Seconds = Seconds(5.0);
/// Time constant of that.
const RECOVERS_IN: Seconds = Seconds(10.0);
/// Least prompt whose reading says how fast prompts are read; shorter ones take what a request takes anyway.
const PROMPT_MIN: Tokens = Tokens(32.0);
/// Least completion whose generation says how fast tokens are generated.
const COMPLETION_MIN: Tokens = Tokens(4.0);
/// Share of a finished request in what is learnt of lateness.
const LATENESS_SMOOTHING: f64 = 0.1;
/// A request further off than this factor counts as so far off: predictions say what is usual, and a few answers that
/// many others came to delay do not make it.
const LATENESS_STEP: f64 = 1.2;
/// Largest factor of lateness either way.
const LATENESS_MAX: f64 = 2.0;
/// Slowdown assumed of an engine that is configured to have none: it is followed as a factor.
const SLOWDOWN_MIN: f64 = 0.005;

/// Whether the operator gave each figure, or it is a default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Given {
    /// `throughput.prefill_tps`.
    pub prefill: bool,
    /// `throughput.decode_tps`.
    pub decode: bool,
    /// `throughput.batch_speedup`.
    pub batch_speedup: bool,
    /// `throughput.max_concurrency`.
    pub max_concurrency: bool,
    /// `max_inflight` of its endpoint.
    pub max_inflight: bool,
}

/// What was measured at the end of a request that was answered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Part of the prompt that was read, not found in a cache, and how long that took the engine alone.
    pub prompt: Option<(Tokens, Seconds)>,
    /// Completion tokens, and how long the engine took to generate them.
    pub completion: Option<(Tokens, Seconds)>,
    /// Mean number of requests in the engine meanwhile, at least 1.
    pub company: f64,
    /// Tokens of the prompt as the endpoint counted them, and as they were expected.
    pub counted_prompt: Option<(Tokens, Tokens)>,
    /// Tokens of the prompt that were not read, since the engine had them in its cache.
    pub cached_prompt: Option<Tokens>,
    /// The same of the completion.
    pub counted_completion: Option<(Tokens, Tokens)>,
}

/// One figure with where it comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// What is in force.
    pub value: f64,
    /// Whether the operator gave the reference.
    pub is_given: bool,
    /// Ratio of the measured figure to the reference; 1 without samples.
    pub drift: f64,
    /// Samples so far.
    pub samples: u64,
    /// Time since the last one.
    pub age: Option<Seconds>,
}

impl Figure {
    /// Whether its last sample is older than [`STALE_AFTER`].
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.age.is_some_and(|age| age > STALE_AFTER)
    }

    /// Whether what is in force was measured.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.age.is_some() && !(self.is_stale() && self.is_given)
    }

    /// Whether it has left the band around a configured figure.
    #[must_use]
    pub fn has_drifted(&self) -> bool {
        self.is_given && self.is_live() && !(1.0 / DRIFT_BAND..=DRIFT_BAND).contains(&self.drift)
    }
}

/// The speed of a destination as it is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpeedReading {
    /// Tokens a second.
    pub prefill: Figure,
    /// Tokens a second of one request alone.
    pub decode: Figure,
    /// k at the configured slots.
    pub batch_speedup: Figure,
    /// Tokens of a prompt as the endpoint counts them, chat template included, over those expected.
    pub prompt_ratio: Figure,
    /// Tokens of a completion over those expected.
    pub completion_ratio: Figure,
    /// Tokens that the engine finds of any prompt in its cache, as it counts them.
    pub cached_prompt: Figure,
    /// Progress right now relative to these figures.
    pub pace: f64,
    /// Completion times over those predicted by these figures; 1 = as predicted.
    pub lateness: f64,
    /// Which references the operator gave.
    pub given: Given,
}

impl SpeedReading {
    /// `configured` with the figures in force, and the speed-up that follows at its number of slots. Plans count in
    /// expected tokens, so speeds are given in those.
    #[must_use]
    pub fn applied_to(&self, configured: &Throughput) -> Throughput {
        Throughput {
            prefill: TokensPerSec(self.prefill.value / self.prompt_ratio.value),
            decode: TokensPerSec(self.decode.value / self.completion_ratio.value),
            batch_speedup: self.batch_speedup.value,
            max_concurrency: configured.max_concurrency,
            cached_prompt: Tokens(self.cached_prompt.value / self.prompt_ratio.value),
        }
    }
}

/// When a figure was sampled.
#[derive(Debug, Clone, Copy, Default)]
struct Samples {
    n: u64,
    last: Option<Seconds>,
}

impl Samples {
    /// Counts one more; the time since the last.
    fn count(&mut self, now: Seconds) -> f64 {
        self.n += 1;
        self.last.replace(now).map_or(0.0, |last| (now - last).0.max(0.0))
    }
}

/// Follows the speed of one destination.
#[derive(Debug, Clone)]
pub struct SpeedEstimator {
    reference: Throughput,
    given: Given,
    prefill: LogFilter,
    prompt_ratio: LogFilter,
    completion_ratio: LogFilter,
    decode: DecodeFilter,
    cached: CachedFloor,
    n_prefill: Samples,
    n_prompt: Samples,
    n_completion: Samples,
    n_decode: Samples,
    /// Samples with company: only they say anything of the speed-up.
    n_company: Samples,
    n_cached: Samples,
    pace: Pace,
    /// Logarithm of the lateness.
    lateness: f64,
}

impl SpeedEstimator {
    /// Whether it follows the figures of a destination with these references.
    pub(super) fn is_of(&self, reference: &Throughput, given: Given) -> bool {
        self.reference == *reference && self.given == given
    }

    /// Nothing measured yet.
    #[must_use]
    pub fn new(reference: Throughput, given: Given) -> Self {
        let alone =
            Decode { alone_tps: reference.decode.0, slowdown: reference.slowdown().max(SLOWDOWN_MIN) };
        Self {
            reference,
            given,
            prefill: LogFilter::new(prior(given.prefill)),
            prompt_ratio: LogFilter::new(TOKENS_RATIO),
            completion_ratio: LogFilter::new(TOKENS_RATIO),
            decode: DecodeFilter::new(alone, [prior(given.decode), prior(given.batch_speedup)]),
            cached: CachedFloor::default(),
            n_prefill: Samples::default(),
            n_prompt: Samples::default(),
            n_completion: Samples::default(),
            n_decode: Samples::default(),
            n_company: Samples::default(),
            n_cached: Samples::default(),
            pace: Pace::new(),
            lateness: 0.0,
        }
    }

    /// A request has been answered.
    pub fn observe(&mut self, now: Seconds, sample: &Sample) {
        let ratio = |counted: Option<(Tokens, Tokens)>| {
            let (counted, expected) = counted?;
            (counted.0 > 0.0 && expected.0 > 0.0).then(|| counted.0 / expected.0)
        };
        if let Some(ratio) = ratio(sample.counted_prompt) {
            self.prompt_ratio.observe(ratio, self.n_prompt.count(now));
        }
        if let Some(ratio) = ratio(sample.counted_completion) {
            self.completion_ratio.observe(ratio, self.n_completion.count(now));
        }
        if let Some(cached) = sample.cached_prompt {
            self.cached.observe(cached);
            self.n_cached.count(now);
        }
        if let Some((tokens, span)) = sample.prompt.filter(|(n, span)| *n >= PROMPT_MIN && span.0 > 0.0) {
            let since_s = self.n_prefill.count(now);
            self.prefill.observe(tokens.0 / span.0 / self.reference.prefill.0, since_s);
        }
        if let Some((tokens, span)) =
            sample.completion.filter(|(n, span)| *n >= COMPLETION_MIN && span.0 > 0.0)
        {
            let since_s = self.n_decode.count(now);
            self.decode.observe(span.0 / tokens.0, sample.company, since_s);
            if sample.company > COMPANY_MIN {
                self.n_company.count(now);
            }
        }
    }

    /// An answer took so long; it was predicted to with the lateness of then. What the model of a destination leaves
    /// out, above all the requests that come later, makes answers late in a way that can be learnt.
    pub fn finished(&mut self, took: Seconds, predicted: Seconds) {
        if took.0 > 0.0 && predicted.0 > 0.0 {
            let (step, bound) = (LATENESS_STEP.ln(), LATENESS_MAX.ln());
            let off = (took.0 / predicted.0).ln().clamp(-step, step);
            self.lateness = (self.lateness + LATENESS_SMOOTHING * off).clamp(-bound, bound);
        }
    }

    /// Progress seen against progress expected, in seconds at the figures in force; see [`SpeedReading::pace`].
    pub fn progress(&mut self, now: Seconds, span: Seconds, (expected, seen): (Seconds, Seconds)) {
        self.pace.observe(expected.0, seen.0);
        self.pace.advance(span);
        let share = 1.0 - (-span.0 / RECOVERS_IN.0).exp();
        if self.n_decode.last.is_some_and(|last| (now - last) > RECOVERS_AFTER) {
            self.decode.recover(share);
        }
        if self.n_prefill.last.is_some_and(|last| (now - last) > RECOVERS_AFTER) {
            self.prefill.recover(share);
        }
    }

    /// Adds evidence to be weighed at the next [`SpeedEstimator::progress`].
    pub fn evidence(&mut self, expected: Seconds, seen: Seconds) {
        self.pace.observe(expected.0, seen.0);
    }

    /// Seconds a token of one of `n` requests takes at the figures in force.
    #[must_use]
    pub fn token_time(&self, n: f64) -> Seconds {
        Seconds(self.decode.decode().token_time(n))
    }

    /// Seconds of reading so much of a prompt at the figures in force.
    #[must_use]
    pub fn prefill_time(&self, prompt: Tokens) -> Seconds {
        prompt.duration_at(TokensPerSec(self.reference.prefill.0 * self.prefill.ratio()))
    }

    /// Tokens of completions over those expected.
    #[must_use]
    pub fn completion_ratio(&self) -> f64 {
        self.completion_ratio.ratio()
    }

    /// Progress right now relative to the figures.
    #[must_use]
    pub const fn pace(&self) -> f64 {
        self.pace.pace()
    }

    /// What is known at `now`.
    #[must_use]
    pub fn reading(&self, now: Seconds) -> SpeedReading {
        let figure = |reference: f64, measured: f64, is_given: bool, samples: &Samples| {
            let age = samples.last.map(|last| now - last);
            let drift = if samples.n > 0 && reference > 0.0 { measured / reference } else { 1.0 };
            let mut figure = Figure { value: reference, is_given, drift, samples: samples.n, age };
            if figure.is_live() {
                figure.value = measured;
            }
            figure
        };
        let Throughput { prefill, decode, batch_speedup, max_concurrency, .. } = self.reference;
        let found = self.decode.decode();
        let slots = f64::from(max_concurrency);
        let speedup = (slots / (1.0 + found.slowdown * (slots - 1.0))).max(1.0);
        let given = &self.given;
        SpeedReading {
            prefill: figure(prefill.0, prefill.0 * self.prefill.ratio(), given.prefill, &self.n_prefill),
            decode: figure(decode.0, found.alone_tps, given.decode, &self.n_decode),
            batch_speedup: figure(batch_speedup, speedup, given.batch_speedup, &self.n_company),
            prompt_ratio: figure(1.0, self.prompt_ratio.ratio(), false, &self.n_prompt),
            completion_ratio: figure(1.0, self.completion_ratio.ratio(), false, &self.n_completion),
            cached_prompt: figure(0.0, self.cached.floor().0, false, &self.n_cached),
            pace: self.pace(),
            lateness: self.lateness.exp(),
            given: self.given,
        }
    }
}

/// Mean number of requests from which on a sample says something of the speed-up.
const COMPANY_MIN: f64 = 1.25;

/// What is known beforehand of tokens counted over tokens expected.
const TOKENS_RATIO: Prior = Prior { deviation: 0.5, drift_max: TOKENS_RATIO_MAX };

const fn prior(is_given: bool) -> Prior {
    if is_given {
        Prior { deviation: 0.3, drift_max: CONFIGURED_DRIFT_MAX }
    } else {
        Prior { deviation: 1.5, drift_max: DEFAULT_DRIFT_MAX }
    }
}

#[cfg(test)]
mod tests;

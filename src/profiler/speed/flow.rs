//! The requests under way at one destination, as its speed is measured by them. Time is an argument.

use super::estimator::{Sample, SpeedEstimator, SpeedReading};
use crate::endpoint::answer::Timings;
use crate::units::{Seconds, Tokens};

/// A wait that is over counts as so much evidence at most.
const WAIT_COUNTS_MAX: Seconds = Seconds(2.0);
/// Bounds of how far a single wait may be off.
const WAIT_RATIO: std::ops::RangeInclusive<f64> = 0.125..=2.0;
/// Share of a new answer in the mean number of tokens that an event of a stream brings.
const EVENT_SMOOTHING: f64 = 0.1;

/// What is expected of a request that is sent off, without the network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// Time to its first content, of a stream; to the whole answer otherwise.
    pub wait: Seconds,
    /// Time to the whole answer, as predicted with the lateness of then.
    pub finish: Seconds,
    /// Tokens of its prompt, as estimated.
    pub prompt: Tokens,
    /// Tokens of its answer.
    pub completion: Tokens,
    /// Time on the way there and back.
    pub network: Seconds,
    /// Whether it is a stream.
    pub is_stream: bool,
    /// Tokens of its prompt that were sent there before, so that the engine may have them in a cache.
    pub known: Tokens,
    /// Those of them that it is expected to have: `wait` and `finish` are without reading them.
    pub cached: Tokens,
}

/// What was seen of a request that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Answered {
    /// Prompt tokens that were read, not found in a cache.
    pub prompt: Option<Tokens>,
    /// Whether the endpoint says what it found in a cache.
    pub tells_cached: bool,
    /// Prompt tokens, where the endpoint counted them.
    pub counted_prompt: Option<Tokens>,
    /// Completion tokens of all choices.
    pub completion: Option<Tokens>,
    /// Events with content, of a stream.
    pub events: u64,
    /// Completions it had; with several the time of one is not known.
    pub choices: u32,
    /// The engine's own clocks.
    pub timings: Option<Timings>,
}

/// Place of a request in a [`Flow`].
pub(super) type Index = usize;

#[derive(Debug, Clone, Copy)]
struct Under {
    expected: Expected,
    /// By how much its wait is shorter if the cache has all that is known, and longer if it has nothing of it.
    slack: (Seconds, Seconds),
    since: Seconds,
    /// The integral of company at its beginning, and at its first content.
    company_from: f64,
    first: Option<(Seconds, f64)>,
    /// Whether it found the engine idle: what it waits for is its own prompt.
    is_alone: bool,
    /// Whether it found a free slot.
    has_slot: bool,
}

/// The requests under way at one destination.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) estimator: SpeedEstimator,
    slots: u32,
    as_of: Seconds,
    under_way: Vec<Option<Under>>,
    free: Vec<Index>,
    n_under_way: u32,
    /// Streams past their first content.
    n_streaming: u32,
    /// ∫ min(requests under way, slots) dt.
    company: f64,
    /// ∫ streams past their first content dt, since the last tick.
    streamed_s: f64,
    /// When the last tick was, and the integral of company then.
    ticked: (Seconds, f64),
    tokens_per_event: f64,
}

impl Flow {
    pub(super) fn new(estimator: SpeedEstimator, slots: u32, now: Seconds) -> Self {
        Self {
            estimator,
            slots,
            as_of: now,
            under_way: Vec::new(),
            free: Vec::new(),
            n_under_way: 0,
            n_streaming: 0,
            company: 0.0,
            streamed_s: 0.0,
            ticked: (now, 0.0),
            tokens_per_event: 1.0,
        }
    }

    /// What has been learnt so far.
    pub(super) const fn estimator(&self) -> &SpeedEstimator {
        &self.estimator
    }

    /// A request is sent off.
    pub(super) fn begin(&mut self, now: Seconds, mut expected: Expected) -> Index {
        self.advance(now);
        // At the usual pace, whatever it is now.
        expected.wait = Seconds(expected.wait.0 * self.estimator.pace());
        let reading = |tokens: Tokens| self.estimator.prefill_time(tokens.max(Tokens::ZERO));
        let under = Under {
            expected,
            slack: (reading(expected.known - expected.cached), reading(expected.cached)),
            since: now,
            company_from: self.company,
            first: None,
            is_alone: self.n_under_way == 0,
            has_slot: self.n_under_way < self.slots,
        };
        self.n_under_way += 1;
        match self.free.pop() {
            Some(index) => {
                self.under_way[index] = Some(under);
                index
            }
            None => {
                self.under_way.push(Some(under));
                self.under_way.len() - 1
            }
        }
    }

    /// The first content of a stream has come.
    pub(super) fn first_content(&mut self, now: Seconds, index: Index) {
        self.advance(now);
        let company = self.company;
        let Some(under) = self.under_way[index].as_mut().filter(|under| under.first.is_none()) else {
            return;
        };
        under.first = Some((now, company));
        self.n_streaming += 1;
        let (waited, wait) = (now - under.since - under.expected.network, under.expected.wait);
        let slack = under.slack;
        self.wait_is_over(waited, wait, slack);
    }

    /// A request is over without an answer.
    pub(super) fn end(&mut self, now: Seconds, index: Index) {
        self.advance(now);
        self.take(index);
    }

    /// A request has been answered.
    pub(super) fn finish(&mut self, now: Seconds, index: Index, answered: &Answered) {
        self.advance(now);
        let Some(under) = self.take(index) else { return };
        let sample = self.sample(now, &under, answered);
        if !under.expected.is_stream {
            let expected = under.expected.completion.0 * self.estimator.completion_ratio();
            let surplus = answered.completion.map_or(0.0, |n| n.0 - expected);
            let wait = under.expected.wait.0 + surplus * self.estimator.token_time(sample.company).0;
            self.wait_is_over(
                now - under.since - under.expected.network,
                Seconds(wait.max(0.0)),
                under.slack,
            );
        }
        if under.first.is_some()
            && answered.events > 0
            && let Some(completion) = answered.completion
        {
            let per_event = completion.0 / answered.events as f64;
            self.tokens_per_event += EVENT_SMOOTHING * (per_event - self.tokens_per_event);
        }
        self.estimator.observe(now, &sample);
        self.estimator.finished(now - under.since, under.expected.finish);
    }

    /// Half a second or so has passed, in which `n_events` events with content have come.
    pub(super) fn tick(&mut self, now: Seconds, n_events: u64) {
        self.advance(now);
        let span = now - self.ticked.0;
        if span.0 <= 0.0 {
            return;
        }
        let company = ((self.company - self.ticked.1) / span.0).max(1.0);
        let mut expected_s = std::mem::take(&mut self.streamed_s);
        let tokens = n_events as f64 * self.tokens_per_event;
        let mut seen_s = tokens * self.estimator.token_time(company).0;
        if expected_s <= 0.0 {
            // Events of streams that ended within the tick: their time is not in it.
            seen_s = 0.0;
        }
        for under in self.under_way.iter().flatten().filter(|under| under.first.is_none()) {
            let waited_s = (now - under.since - under.expected.network).0;
            let longest_s = (under.expected.wait + under.slack.1).0;
            let overdue_s = (waited_s - longest_s).min(span.0);
            if overdue_s > 0.0 {
                expected_s += overdue_s;
                seen_s += overdue_s * longest_s / waited_s;
            }
        }
        self.ticked = (now, self.company);
        self.estimator.progress(now, span, (Seconds(expected_s), Seconds(seen_s)));
    }

    pub(super) fn reading(&self, now: Seconds) -> SpeedReading {
        self.estimator.reading(now)
    }

    fn advance(&mut self, now: Seconds) {
        let span_s = (now - self.as_of).0.max(0.0);
        self.company += f64::from(self.n_under_way.min(self.slots)) * span_s;
        self.streamed_s += f64::from(self.n_streaming) * span_s;
        self.as_of = self.as_of.max(now);
    }

    fn take(&mut self, index: Index) -> Option<Under> {
        let under = self.under_way.get_mut(index)?.take()?;
        self.free.push(index);
        self.n_under_way -= 1;
        self.n_streaming -= u32::from(under.first.is_some());
        Some(under)
    }

    /// What a wait says of the pace; what a cache had or had not does not say anything.
    fn wait_is_over(&mut self, waited: Seconds, expected: Seconds, (sooner, later): (Seconds, Seconds)) {
        let (shortest, longest) = ((expected - sooner).max(Seconds::ZERO), expected + later);
        let is_within = shortest < waited && waited < longest;
        if waited.0 > 0.0 && !is_within {
            let weight = waited.min(WAIT_COUNTS_MAX);
            let nearest = waited.max(shortest).min(longest);
            let ratio = (nearest.0 / waited.0).clamp(*WAIT_RATIO.start(), *WAIT_RATIO.end());
            self.estimator.evidence(weight, Seconds(weight.0 * ratio));
        }
    }

    /// What an answer says of the speed. The engine's own clocks where it has them; else those of the router, as far
    /// as the request waited for nothing but itself.
    fn sample(&self, now: Seconds, under: &Under, answered: &Answered) -> Sample {
        let (from, company_from) = under.first.unwrap_or((under.since, under.company_from));
        let lasted = now - from;
        let company = ((self.company - company_from) / lasted.0.max(1e-9)).max(1.0);
        let expected = &under.expected;
        let is_known = expected.known.max(expected.cached).0 > 0.0;
        let mut sample = Sample {
            prompt: None,
            completion: None,
            company,
            counted_prompt: answered.counted_prompt.map(|counted| (counted, expected.prompt)),
            // What is found of any prompt is seen of new ones.
            cached_prompt: answered.counted_prompt.filter(|_| !is_known).and_then(|counted| {
                let read = answered.timings.map(|timings| timings.prompt.0).or(answered.prompt)?;
                Some((counted - read).max(Tokens::ZERO))
            }),
            counted_completion: answered.completion.map(|counted| (counted, expected.completion)),
        };
        if answered.choices > 1 {
            return sample;
        }
        if let Some(timings) = answered.timings {
            (sample.prompt, sample.completion) = (Some(timings.prompt), Some(timings.completion));
            return sample;
        }
        let token = self.estimator.token_time(company);
        if let Some((first_at, _)) = under.first {
            if under.is_alone
                && (answered.tells_cached || !is_known)
                && let Some(prompt) = answered.prompt
            {
                // The first token was generated as well.
                sample.prompt = Some((prompt, first_at - under.since - under.expected.network - token));
            }
            sample.completion = answered.completion.map(|n| (Tokens(n.0 - 1.0), lasted));
        } else if under.has_slot
            && let (Some(prompt), Some(completion)) = (answered.prompt, answered.completion)
        {
            let reading = self.estimator.prefill_time(prompt);
            let generating = lasted - under.expected.network - reading;
            // Where reading takes the larger part, what is left of the time says little.
            if generating > reading {
                sample.completion = Some((completion, generating));
            }
        }
        sample
    }
}

#[cfg(test)]
mod tests;

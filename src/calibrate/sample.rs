//! What is measured: requests with their times, alone and in rungs of the ladder.

use super::fit::{Spread, median};
use crate::units::{Seconds, TokensPerSec};

/// One answered request. Times count from the start of the measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Prompt tokens that the server counts, less those it had cached.
    pub prompt_tokens: u64,
    /// Of these, held in the server's cache.
    pub cached_tokens: u64,
    /// Completion tokens that the server counts.
    pub completion_tokens: u64,
    /// When it was sent.
    pub sent: Seconds,
    /// When its first content came.
    pub first: Seconds,
    /// When its last content came.
    pub last: Seconds,
    /// What the server says of itself (llama.cpp's `timings`), to check against.
    pub server: Option<ServerTimings>,
}

/// llama.cpp's own account of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServerTimings {
    /// Prompt tokens per second.
    pub prefill: TokensPerSec,
    /// Completion tokens per second.
    pub decode: TokensPerSec,
}

impl Sample {
    /// Time to first token.
    #[must_use]
    pub fn ttft(&self) -> Seconds {
        self.first - self.sent
    }

    /// Generation alone: the tokens after the first over the time they took. `None` for fewer than two tokens, or
    /// where they came at one instant.
    #[must_use]
    pub fn decode(&self) -> Option<TokensPerSec> {
        let took = (self.last - self.first).get();
        let later = self.completion_tokens.saturating_sub(1);
        (later > 0 && took > 0.0).then(|| TokensPerSec(later as f64 / took))
    }
}

/// Requests of `concurrency` clients, each sending one after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct Rung {
    /// Clients.
    pub concurrency: u32,
    /// Requests that were answered.
    pub samples: Vec<Sample>,
    /// Requests that were not.
    pub failures: u32,
}

impl Rung {
    /// Completion tokens over the time from the first request's start to the last token; zero without an answer.
    #[must_use]
    pub fn aggregate(&self) -> TokensPerSec {
        let tokens: u64 = self.samples.iter().map(|sample| sample.completion_tokens).sum();
        let began = self.samples.iter().map(|sample| sample.sent.get()).fold(f64::INFINITY, f64::min);
        let ended = self.samples.iter().map(|sample| sample.last.get()).fold(0.0, f64::max);
        if ended > began { TokensPerSec(tokens as f64 / (ended - began)) } else { TokensPerSec::ZERO }
    }

    /// Most answers that were under way at one instant, first to last content: what the engine truly ran at once.
    #[must_use]
    pub fn running_max(&self) -> u32 {
        let mut edges: Vec<(f64, i32)> = Vec::with_capacity(2 * self.samples.len());
        for sample in &self.samples {
            edges.extend([(sample.first.get(), 1), (sample.last.get(), -1)]);
        }
        // At one instant an end comes before a start.
        edges.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let (mut running, mut most) = (0_i32, 0);
        for (_, change) in edges {
            running += change;
            most = most.max(running);
        }
        most.unsigned_abs()
    }

    /// Median time to first token.
    #[must_use]
    pub fn ttft(&self) -> Seconds {
        let times: Vec<f64> = self.samples.iter().map(|sample| sample.ttft().get()).collect();
        Seconds(median(&times).unwrap_or_default())
    }

    /// Generation of one request among the others.
    #[must_use]
    pub fn decode(&self) -> Option<Spread> {
        let rates: Vec<f64> = self.samples.iter().filter_map(|s| s.decode().map(TokensPerSec::get)).collect();
        Spread::of(&rates)
    }
}

/// Everything measured at one destination so far.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Measured {
    /// The first request, where the server had to load the model for it.
    pub cold: Option<Sample>,
    /// Requests one at a time, prompts of several lengths.
    pub singles: Vec<Sample>,
    /// The ladder, concurrency rising.
    pub rungs: Vec<Rung>,
    /// Requests that its server can run at once, where it says so.
    pub slots: Option<u32>,
    /// What was left out, and why.
    pub notes: Vec<String>,
    /// What ended it early.
    pub failure: Option<String>,
}

#[cfg(test)]
pub(super) mod testing {
    use super::{Rung, Sample};
    use crate::units::Seconds;

    /// A request of these times in seconds.
    pub(crate) fn sample(prompt: u64, completion: u64, [sent, first, last]: [f64; 3]) -> Sample {
        Sample {
            prompt_tokens: prompt,
            cached_tokens: 0,
            completion_tokens: completion,
            sent: Seconds(sent),
            first: Seconds(first),
            last: Seconds(last),
            server: None,
        }
    }

    /// A rung with this aggregate in tokens per second, `running` answers at once, times to first token of `ttft` s.
    pub(crate) fn rung(concurrency: u32, aggregate: f64, running: u32, ttft: f64) -> Rung {
        let samples = (0..concurrency).map(|n| {
            let sent = f64::from(n / running) * 10.0;
            sample(8, 0, [sent, sent + ttft, sent + 10.0])
        });
        let mut rung = Rung { concurrency, samples: samples.collect(), failures: 0 };
        let elapsed = rung.samples.iter().map(|s| s.last.get()).fold(0.0, f64::max);
        let tokens = aggregate * elapsed;
        assert!((tokens - tokens.round()).abs() < 1e-9, "not a whole number of tokens");
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small whole number")]
        let tokens = tokens.round() as u64;
        rung.samples[0].completion_tokens = tokens;
        rung
    }
}

#[cfg(test)]
mod tests {
    use super::testing::sample;
    use super::*;

    #[test]
    fn decode_leaves_out_the_first_token() {
        // 11 tokens, ten of them in 2 s.
        let timed = sample(40, 11, [1.0, 1.5, 3.5]);
        assert!((timed.decode().unwrap().get() - 5.0).abs() < 1e-12);
        assert!((timed.ttft().get() - 0.5).abs() < 1e-12);
        assert_eq!(sample(40, 1, [1.0, 1.5, 1.5]).decode(), None);
    }

    #[test]
    fn a_rung_counts_tokens_over_its_wall_time_and_what_ran_at_once() {
        // Three clients of two slots: the third begins when the first is over.
        let samples = vec![
            sample(8, 10, [0.0, 0.5, 2.0]),
            sample(8, 10, [0.0, 0.5, 2.5]),
            sample(8, 10, [0.0, 2.0, 4.0]),
        ];
        let rung = Rung { concurrency: 3, samples, failures: 0 };
        assert!((rung.aggregate().get() - 7.5).abs() < 1e-12);
        assert_eq!(rung.running_max(), 2);
        assert!((rung.ttft().get() - 0.5).abs() < 1e-12);
        let none = Rung { concurrency: 3, samples: Vec::new(), failures: 3 };
        assert!(none.aggregate().get().abs() < 1e-12 && none.running_max() == 0);
    }
}

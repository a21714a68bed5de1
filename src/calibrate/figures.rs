//! From measurements to the figures of the configuration.

use serde::Serialize;

use super::fit::{LineFit, Spread, theil_sen};
use super::ladder::{self, LadderFit};
use super::sample::{Measured, Sample};
use crate::units::{Seconds, TokensPerSec};

/// The longest prompts must take this many times the residual longer than the shortest, or the slope is noise.
const NOISE_FACTOR: f64 = 2.0;

/// The prompt's side of a destination.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PrefillFit {
    /// Prompt tokens per second: one over the slope.
    #[serde(rename = "prefill_tps")]
    pub speed: TokensPerSec,
    /// The intercept: what a request takes until its first token whatever its length, network included.
    #[serde(rename = "overhead_s")]
    pub overhead: Seconds,
    /// Median distance of the measurements from the line.
    #[serde(rename = "residual_s")]
    pub residual: Seconds,
    /// Requests it is made of.
    pub n: usize,
    /// Fewest and most prompt tokens of them.
    pub range_tokens: [u64; 2],
}

impl PrefillFit {
    /// Time to first token of a prompt alone on the endpoint.
    #[must_use]
    pub fn ttft(&self, prompt_tokens: f64) -> Seconds {
        Seconds(self.overhead.get() + prompt_tokens / self.speed.get())
    }

    fn of(singles: &[Sample]) -> Option<Self> {
        let points: Vec<[f64; 2]> =
            singles.iter().map(|sample| [sample.prompt_tokens as f64, sample.ttft().get()]).collect();
        let LineFit { slope, intercept, residual } = theil_sen(&points)?;
        let lengths = || singles.iter().map(|sample| sample.prompt_tokens);
        let range_tokens = [lengths().min()?, lengths().max()?];
        let longer = slope * (range_tokens[1] - range_tokens[0]) as f64;
        (longer > NOISE_FACTOR * residual && slope > 0.0).then(|| Self {
            speed: TokensPerSec(1.0 / slope),
            overhead: Seconds(intercept),
            residual: Seconds(residual),
            n: points.len(),
            range_tokens,
        })
    }
}

/// What was found out about a destination; `None` = not measured, or not told apart from noise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// Reading prompts.
    pub prefill: Option<PrefillFit>,
    /// Writing completions alone, tokens per second.
    #[serde(rename = "decode_tps")]
    pub decode: Option<Spread>,
    /// Many at once.
    pub ladder: Option<LadderFit>,
    /// What the first request took longer because the server loaded the model for it.
    #[serde(rename = "cold_load_s")]
    pub cold_load: Option<Seconds>,
    /// The server's own figure of prefill, tokens per second, to check against.
    #[serde(rename = "server_prefill_tps")]
    pub server_prefill: Option<Spread>,
    /// The server's own figure of decode.
    #[serde(rename = "server_decode_tps")]
    pub server_decode: Option<Spread>,
}

impl Figures {
    /// The figures of what was measured.
    #[must_use]
    pub fn of(measured: &Measured) -> Self {
        let spread = |of: &dyn Fn(&Sample) -> Option<TokensPerSec>| {
            let values: Vec<f64> =
                measured.singles.iter().filter_map(|s| of(s).map(TokensPerSec::get)).collect();
            Spread::of(&values)
        };
        let prefill = PrefillFit::of(&measured.singles);
        let cold_load = measured.cold.as_ref().map(|cold| {
            let warm = prefill.map_or(Seconds::ZERO, |fit| fit.ttft(cold.prompt_tokens as f64));
            (cold.ttft() - warm).max(Seconds::ZERO)
        });
        Self {
            prefill,
            decode: spread(&Sample::decode),
            ladder: ladder::fit(&measured.rungs, measured.slots),
            cold_load,
            server_prefill: spread(&|sample| sample.server.map(|server| server.prefill)),
            server_decode: spread(&|sample| sample.server.map(|server| server.decode)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::sample::testing::{rung, sample};

    /// A prompt at 500 tokens/s after 0.2 s, 21 tokens at 40 tokens/s.
    fn single(prompt: u64, sent: f64) -> Sample {
        let first = sent + 0.2 + prompt as f64 / 500.0;
        sample(prompt, 21, [sent, first, first + 0.5])
    }

    #[test]
    fn figures_are_those_of_the_requests() {
        let measured = Measured {
            singles: vec![single(50, 0.0), single(200, 5.0), single(800, 10.0), single(50, 15.0)],
            rungs: vec![rung(1, 20.0, 1, 0.3), rung(2, 30.0, 2, 0.3)],
            slots: Some(2),
            // 10 s to load, then 0.2 + 100 / 500 as ever.
            cold: Some(sample(100, 8, [0.0, 10.4, 11.0])),
            ..Measured::default()
        };
        let figures = Figures::of(&measured);
        let prefill = figures.prefill.unwrap();
        assert!((prefill.speed.get() - 500.0).abs() < 1e-6 && (prefill.overhead.get() - 0.2).abs() < 1e-9);
        assert_eq!((prefill.n, prefill.range_tokens), (4, [50, 800]));
        assert!((figures.decode.unwrap().median - 40.0).abs() < 1e-9);
        assert!((figures.ladder.unwrap().batch_speedup - 1.5).abs() < 1e-9);
        assert!((figures.cold_load.unwrap().get() - 10.0).abs() < 1e-9);
        assert_eq!(figures.server_decode, None);
    }

    #[test]
    fn a_slope_within_the_noise_is_no_speed() {
        // 1 ms between the lengths, 50 ms between the repeats.
        let times = [(100, 0.100), (100, 0.150), (100, 0.200), (200, 0.101), (200, 0.151), (200, 0.201)];
        let singles = times.map(|(prompt, ttft)| sample(prompt, 21, [0.0, ttft, ttft + 0.5])).to_vec();
        let figures = Figures::of(&Measured { singles, ..Measured::default() });
        assert_eq!(figures.prefill, None);
        assert!(figures.decode.is_some() && figures.ladder.is_none());
    }

    #[test]
    fn nothing_measured_says_nothing() {
        let figures = Figures::of(&Measured::default());
        assert!(figures.prefill.is_none() && figures.decode.is_none() && figures.cold_load.is_none());
    }
}

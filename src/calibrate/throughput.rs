//! Measuring one destination: warm-up, requests one at a time, the ladder.

use futures_util::future::join_all;
use tokio::time::Instant;

use super::course::{Allowance, Course, UsedUp, Volume};
use super::ladder::{self, Ending};
use super::prompt::{PromptSizer, prompt};
use super::request::{AskError, Target, ask};
use super::sample::{Measured, Rung, Sample};
use super::server;
use crate::domain::Destination;
use crate::endpoint::EndpointPool;
use crate::units::Seconds;

/// How a measurement is told of as it goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// A request is over, answered or not.
    Request,
    /// So many of the announced requests will not be sent.
    Skipped(u64),
    /// The first request of each length took so many times as long as believed.
    Pace(f64),
}

/// A destination to measure and how.
pub struct Bench<'a> {
    /// The way to its endpoint.
    pub pool: &'a EndpointPool,
    /// The destination.
    pub destination: &'a Destination,
    /// What is measured.
    pub course: &'a Course,
    /// Called with every step.
    pub on_step: &'a (dyn Fn(Step) + Sync),
}

/// Why a measurement ended early.
#[derive(Debug, thiserror::Error)]
enum MeasureError {
    #[error(transparent)]
    UsedUp(#[from] UsedUp),
    #[error(transparent)]
    Ask(#[from] AskError),
}

/// Measures the destination into `measured`, request by request: whatever ends it early (its `failure`, or the
/// future being dropped) leaves what there is. At most [`Course::volume`] is sent.
pub async fn measure(bench: &Bench<'_>, measured: &mut Measured) {
    let mut run = Run {
        bench,
        target: Target { pool: bench.pool, destination: bench.destination, epoch: Instant::now() },
        allowance: Allowance::new(bench.course.volume()),
        sizer: PromptSizer::default(),
        n_prompts: 0,
    };
    if let Err(error) = run.measure(measured).await {
        measured.failure = Some(error.to_string());
    }
}

struct Run<'a> {
    bench: &'a Bench<'a>,
    target: Target<'a>,
    allowance: Allowance,
    sizer: PromptSizer,
    /// Prompts made so far.
    n_prompts: u64,
}

impl Run<'_> {
    async fn measure(&mut self, measured: &mut Measured) -> Result<(), MeasureError> {
        let destination = self.bench.destination;
        measured.slots = server::slots(self.bench.pool, destination.endpoint).await;
        let model = &destination.upstream_model;
        let is_cold = server::is_loaded(self.bench.pool, destination.endpoint, model).await == Some(false);
        for (n, (n_words, volume)) in Course::warm_ups().enumerate() {
            let prompt = self.next_prompt(n_words);
            let sample = self.request(&prompt, volume).await?;
            self.sizer.observe(n_words, sample.prompt_tokens + sample.cached_tokens);
            if n == 0 && is_cold {
                measured.cold = Some(sample);
            }
        }
        let lengths = self.singles(measured).await?;
        match lengths.first() {
            Some(shortest) => self.climb(*shortest, measured).await,
            None => Ok(()),
        }
    }

    /// Requests one at a time; each repeat goes through all lengths, so that a server that slows down or speeds up
    /// meanwhile does not tilt the line. Returns the lengths that can be asked for.
    async fn singles(&mut self, measured: &mut Measured) -> Result<Vec<u32>, MeasureError> {
        let course = self.bench.course;
        let mut lengths = Vec::new();
        for length in &course.prompt_tokens {
            if self.sizer.words_for(*length).is_some() {
                lengths.push(*length);
            } else {
                measured
                    .notes
                    .push(format!("{length} prompt tokens are fewer than its chat template leaves room for"));
                self.skip(u64::from(course.repeats));
            }
        }
        for repeat in 0..course.repeats {
            let mut refused = None;
            let (started, mut believed) = (Instant::now(), Seconds::ZERO);
            for length in &lengths {
                let Some(n_words) = self.sizer.words_for(*length) else { continue };
                let prompt = self.next_prompt(n_words);
                match self.request(&prompt, course.single(*length)).await {
                    Ok(sample) => {
                        self.sizer.observe(n_words, sample.prompt_tokens + sample.cached_tokens);
                        measured.singles.push(sample);
                        believed += course.service(&self.bench.destination.throughput, *length);
                    }
                    Err(MeasureError::Ask(error)) if error.is_about_the_request() => {
                        measured.notes.push(format!("{length} prompt tokens: {error}"));
                        refused = Some(*length);
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
            if repeat == 0 && refused.is_none() && believed > Seconds::ZERO {
                (self.bench.on_step)(Step::Pace(started.elapsed().as_secs_f64() / believed.get()));
            }
            if let Some(refused) = refused {
                let n_before = lengths.len();
                lengths.retain(|length| *length < refused);
                self.skip((n_before - lengths.len()) as u64 * u64::from(course.repeats - repeat - 1));
            }
        }
        Ok(lengths)
    }

    /// The ladder, with prompts of `length` tokens.
    async fn climb(&mut self, length: u32, measured: &mut Measured) -> Result<(), MeasureError> {
        for concurrency in ladder::concurrencies(self.bench.course.max_concurrency) {
            let Some(n_words) = self.sizer.words_for(length) else { return Ok(()) };
            let rung = self.rung(concurrency, n_words, self.bench.course.single(length)).await?;
            measured.rungs.push(rung.0);
            if let Some(error) = rung.1 {
                measured.notes.push(format!("the ladder ended at {concurrency} at once: {error}"));
            }
            if ladder::ending(&measured.rungs) != Ending::Open {
                break;
            }
        }
        Ok(())
    }

    /// One rung, and its first failure.
    async fn rung(
        &mut self,
        concurrency: u32,
        n_words: usize,
        volume: Volume,
    ) -> Result<(Rung, Option<AskError>), UsedUp> {
        let mut clients = Vec::new();
        for _ in 0..concurrency {
            let prompts = (0..ladder::rounds(concurrency)).map(|_| self.next_prompt(n_words));
            clients.push(prompts.collect::<Vec<_>>());
        }
        let run = &*self;
        let client = async |prompts: Vec<String>| {
            let mut answered = Vec::new();
            for prompt in prompts {
                match run.request(&prompt, volume).await {
                    Ok(sample) => answered.push(sample),
                    Err(error) => return (answered, Some(error)),
                }
            }
            (answered, None)
        };
        let mut rung = Rung { concurrency, samples: Vec::new(), failures: 0 };
        let mut failure = None;
        for (samples, error) in join_all(clients.into_iter().map(client)).await {
            rung.samples.extend(samples);
            match error {
                Some(MeasureError::UsedUp(used_up)) => return Err(used_up),
                Some(MeasureError::Ask(error)) => {
                    rung.failures += 1;
                    failure.get_or_insert(error);
                }
                None => {}
            }
        }
        Ok((rung, failure))
    }

    /// One request, taken out of the allowance.
    async fn request(&self, prompt: &str, volume: Volume) -> Result<Sample, MeasureError> {
        self.allowance.take(volume)?;
        let outcome = ask(self.target, prompt, volume.completion_tokens).await;
        (self.bench.on_step)(Step::Request);
        let sample = outcome?;
        let actual = Volume {
            requests: 1,
            prompt_tokens: sample.prompt_tokens + sample.cached_tokens,
            completion_tokens: sample.completion_tokens,
        };
        self.allowance.settle(volume, actual);
        Ok(sample)
    }

    fn next_prompt(&mut self, n_words: usize) -> String {
        self.n_prompts += 1;
        prompt(n_words, self.bench.course.seed, self.n_prompts)
    }

    fn skip(&self, n: u64) {
        (self.bench.on_step)(Step::Skipped(n));
    }
}

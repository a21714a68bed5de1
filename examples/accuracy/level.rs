//! One load: arrivals, requests, samples; and the pilot before them.

use std::time::Duration;

use anyhow::Context;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::client::Base;
use crate::measured::Server;
use crate::prompts::Asked;
use crate::sampling::{Samples, sample};
use crate::truth::{Sent, outstanding};

/// A load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Level {
    /// Share of the capacity.
    pub(crate) load: f64,
    /// Mean arrivals a second.
    pub(crate) per_s: f64,
    pub(crate) sample_every: Duration,
    pub(crate) seed: u64,
    /// Stream of the seed for its arrivals.
    pub(crate) stream: u64,
}

/// One answered request.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Record {
    /// Position in order of arrival.
    pub(crate) arrival: usize,
    /// When it arrived, from the start of the load.
    pub(crate) at_s: f64,
    pub(crate) destination: String,
    pub(crate) predicted_s: f64,
    pub(crate) actual_s: f64,
    /// In the router, before it left.
    pub(crate) window_s: f64,
    pub(crate) ttft_s: f64,
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) max_tokens: u32,
    #[serde(skip)]
    sent: Instant,
    #[serde(skip)]
    finished: Instant,
}

impl Record {
    /// (predicted − actual) / actual.
    pub(crate) fn error(&self) -> f64 {
        (self.predicted_s - self.actual_s) / self.actual_s
    }
}

/// Backlog of a server over time.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Backlog {
    pub(crate) destination: String,
    /// Seconds from the start, the router's belief, the truth.
    pub(crate) points: Vec<[f64; 3]>,
}

/// What came of a load.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) load: f64,
    pub(crate) per_s: f64,
    /// From the first arrival to the last answer.
    pub(crate) elapsed_s: f64,
    /// In order of arrival.
    pub(crate) records: Vec<Record>,
    pub(crate) failures: Vec<String>,
    pub(crate) backlogs: Vec<Backlog>,
}

/// Runs a load to its last answer.
pub(crate) async fn run(
    level: &Level,
    (router, admin): (&Base, &Base),
    servers: &[Server],
    asked: Vec<Asked>,
) -> anyhow::Result<Outcome> {
    let n = asked.len();
    let share = 100.0 * level.load;
    eprintln!("load {share:.0} %: {n} requests, {:.3}/s, about {:.0} s", level.per_s, n as f64 / level.per_s);
    let began = Instant::now();
    let mut samples: Samples = Vec::new();
    let answered = tokio::select! {
        answered = ask_all(level, router, asked, began) => answered,
        () = sample(admin, servers, level.sample_every, &mut samples) => unreachable!("it goes on until dropped"),
    };
    let mut outcome = Outcome {
        load: level.load,
        per_s: level.per_s,
        elapsed_s: began.elapsed().as_secs_f64(),
        records: Vec::new(),
        failures: Vec::new(),
        backlogs: Vec::new(),
    };
    for record in answered {
        match record {
            Ok(record) => outcome.records.push(record),
            Err(error) => outcome.failures.push(format!("{error:#}")),
        }
    }
    outcome.records.sort_by_key(|record| record.arrival);
    for (server, samples) in servers.iter().zip(&samples) {
        let here = outcome.records.iter().filter(|record| record.destination == server.id);
        let sent: Vec<Sent> = here
            .map(|record| Sent {
                dispatched: record.sent + Duration::from_secs_f64(record.window_s),
                finished: record.finished,
                prompt_tokens: record.prompt_tokens as f64,
                completion_tokens: record.completion_tokens as f64,
            })
            .collect();
        let truth = outstanding(server, samples, &sent, level.sample_every);
        let points = samples.iter().zip(truth).map(|(sample, truth_s)| {
            [sample.at.saturating_duration_since(began).as_secs_f64(), sample.backlog_s, truth_s]
        });
        outcome.backlogs.push(Backlog { destination: server.id.clone(), points: points.collect() });
    }
    Ok(outcome)
}

async fn ask_all(
    level: &Level,
    router: &Base,
    asked: Vec<Asked>,
    began: Instant,
) -> Vec<anyhow::Result<Record>> {
    let mut rng = ChaCha8Rng::seed_from_u64(level.seed);
    rng.set_stream(level.stream);
    let mut at_s = 0.0;
    let mut tasks = JoinSet::new();
    for (arrival, one) in asked.into_iter().enumerate() {
        let uniform: f64 = rng.random_range(f64::MIN_POSITIVE..1.0);
        at_s -= uniform.ln() / level.per_s;
        let (router, arrives) = (router.clone(), began + Duration::from_secs_f64(at_s));
        tasks.spawn(async move {
            sleep_until(arrives).await;
            ask(&router, one, arrival, began).await
        });
    }
    tasks.join_all().await
}

async fn ask(router: &Base, asked: Asked, arrival: usize, began: Instant) -> anyhow::Result<Record> {
    let sent = Instant::now();
    let answer = router.chat("auto", &asked.prompt, asked.max_tokens).await?;
    let (Some(first), Some(last)) = (answer.content_at.first(), answer.content_at.last()) else {
        anyhow::bail!("the answer is empty")
    };
    let header = |name: &str| answer.header(name).with_context(|| format!("the router does not tell {name}"));
    let window_s = header("x-cema-window-ms")?.parse::<f64>()? / 1e3;
    let predicted =
        header("x-cema-predicted")?.split(';').find_map(|part| part.trim().strip_prefix("seconds="));
    let since = |from: Instant, to: &Instant| to.duration_since(from).as_secs_f64();
    Ok(Record {
        arrival,
        at_s: since(began, &sent),
        destination: header("x-cema-destination")?.to_owned(),
        predicted_s: predicted.context("no seconds in x-cema-predicted")?.parse()?,
        actual_s: since(sent, last) - window_s,
        window_s,
        ttft_s: since(sent, first),
        prompt_tokens: answer.prompt_tokens,
        completion_tokens: answer.completion_tokens,
        max_tokens: asked.max_tokens,
        sent,
        finished: *last,
    })
}

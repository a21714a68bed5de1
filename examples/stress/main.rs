//! Puts the router under load over real sockets and checks every single answer. Prints a Markdown table; exits 1 if
//! anything was lost, mixed up or refused without a word.
//!
//! ```text
//! cargo build --release --locked --bin cema-router --example stress
//! target/release/examples/stress --router target/release/cema-router
//! ```
//!
//! The router runs as a process of its own in front of four scripted endpoints of limited capacity.
//!
//! - *Streams*: so many at once for so many seconds, each with a text of its own, about one event a second. Every
//!   stream must say its own text, whole, to its `[DONE]`, and all must have been open at the same time.
//! - *Overload*: requests come twice as fast as the endpoints can answer. Each must be answered: 200 with the
//!   words of this very request, or 429 or 503 with `Retry-After` and an OpenAI error. No endpoint may have more
//!   than its `max_inflight`.
//!
//! After each, nothing may be left in the router's books.
#![expect(clippy::print_stdout, reason = "the table is what it is for")]

mod fleet;
#[expect(dead_code, reason = "shared with `measure`")]
#[path = "../measure/net.rs"]
mod net;
mod overload;
mod router;
mod streams;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use rustix::process::{Resource, getrlimit, setrlimit};

use fleet::Fleet;
use router::Router;

/// Violations that are printed; the rest is counted.
const SHOWN_MAX: usize = 10;
/// How long the router may take to be at rest after a load.
const REST_LIMIT: Duration = Duration::from_secs(30);

#[derive(Parser)]
struct Args {
    /// The router's binary.
    #[arg(long, default_value = "target/release/cema-router")]
    router: PathBuf,
    /// Streams at once; 0 = leave them out.
    #[arg(long, default_value_t = 2_000)]
    streams: usize,
    /// Length of each stream.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Requests of the overload; 0 = leave it out.
    #[arg(long, default_value_t = 10_000)]
    requests: usize,
}

/// What came of one request.
enum Fate {
    /// Answered with this status, as it should be.
    Answered(u16),
    /// Not answered, or not as it should be, and why.
    Wrong(String),
}

/// What came of one load.
struct Outcome {
    fates: Vec<Fate>,
    /// What is wrong with the load as a whole.
    faults: Vec<String>,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    raise_open_files(2 * args.streams + 1_000)?;
    let mut violations = Vec::new();
    println!(
        "| load | sent | 200 | 429 | 503 | wrong | took s | RSS before MiB | most | after |\n|---|---|---|---|---|---|---|---|---|---|"
    );
    if args.streams > 0 {
        let fleet = Fleet::start(fleet::FOR_STREAMS).await?;
        let router = Router::start(&args.router, &fleet, "").await?;
        let name = format!("{} streams at once", args.streams);
        let load = streams::run(&router, &fleet, args.streams, args.seconds);
        violations.extend(report(&name, &router, load).await?);
    }
    if args.requests > 0 {
        let fleet = Fleet::start(fleet::FOR_OVERLOAD).await?;
        let router = Router::start(&args.router, &fleet, "limits: {max_queued_requests: 64}").await?;
        let load = overload::run(&router, &fleet, args.requests);
        violations.extend(report("twice the capacity", &router, load).await?);
    }
    for violation in violations.iter().take(SHOWN_MAX) {
        println!("\nviolation: {violation}");
    }
    if !violations.is_empty() {
        println!("\n{} violations.", violations.len());
        return Ok(ExitCode::FAILURE);
    }
    println!("\nEvery answer was as it should be.");
    Ok(ExitCode::SUCCESS)
}

/// Runs a load, prints its row and returns what was wrong.
async fn report(
    name: &str,
    router: &Router,
    load: impl Future<Output = anyhow::Result<Outcome>>,
) -> anyhow::Result<Vec<String>> {
    let before = router.rss_mib()?;
    let began = std::time::Instant::now();
    let mut most = before;
    tokio::pin!(load);
    let outcome = loop {
        tokio::select! {
            outcome = &mut load => break outcome?,
            () = tokio::time::sleep(Duration::from_millis(500)) => most = most.max(router.rss_mib()?),
        }
    };
    let took_s = began.elapsed().as_secs_f64();
    let mut violations = outcome.faults;
    violations.extend(router.unrest(REST_LIMIT).await?);
    let (mut counts, mut n_wrong) = (BTreeMap::<u16, usize>::new(), 0);
    let n_sent = outcome.fates.len();
    for fate in outcome.fates {
        match fate {
            Fate::Answered(status) => *counts.entry(status).or_default() += 1,
            Fate::Wrong(why) => {
                n_wrong += 1;
                violations.push(why);
            }
        }
    }
    let count = |status| counts.get(&status).unwrap_or(&0);
    println!(
        "| {name} | {n_sent} | {} | {} | {} | {n_wrong} | {took_s:.1} | {before:.0} | {most:.0} | {:.0} |",
        count(200),
        count(429),
        count(503),
        router.rss_mib()?,
    );
    Ok(violations)
}

/// Both processes hold two sockets for each request under way.
fn raise_open_files(wanted: usize) -> anyhow::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    ensure!(hard >= wanted as u64, "{wanted} open files are needed and {hard} are allowed (ulimit -Hn)");
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("cannot raise the limit on open files")
}

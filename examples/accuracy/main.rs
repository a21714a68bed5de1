//! How well a running router predicts: real prompts at several shares of the fleet's capacity, predicted against actual
//! completion time, and the router's backlog against the work that the servers still have.
//!
//! `scripts/accuracy.sh` starts three llama.cpp servers and a router, calibrates them and runs this. By hand:
//!
//! ```text
//! cargo build --release --locked --example accuracy
//! target/release/examples/accuracy --router http://127.0.0.1:8080 --admin http://127.0.0.1:9090 \
//!     --server a/m=http://127.0.0.1:8101 --measured measured.json --out results
//! ```
//!
//! `measured.json` is what `profile throughput --format json` printed. Arrivals are an open-loop Poisson process: a
//! request is sent when its time has come, whatever became of those before it.
//!
//! - *Predicted*: `seconds` of `x-cema-predicted`. *Actual*: from leaving the router's window (`x-cema-window-ms`) to the
//!   last token. Error = (predicted − actual) / actual.
//! - *Capacity*: requests a second that all servers together finish at their measured speeds, `Σ k_d / s_d` with `s_d` the
//!   service time of the mean prompt and completion; those means come from a pilot sent straight to the servers.
//!   Its answer lengths can fill the router's quality store (`--profile`), so that it knows how long answers get.
//! - *Backlog*: `cema_backlog_seconds` against the true outstanding work of each server, both sampled together. See
//!   `truth.rs`. Error = Σ |backlog − truth| / Σ truth over samples and servers.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the tables and the progress are what it is for"
)]

mod client;
mod level;
mod measured;
mod pilot;
mod prompts;
mod report;
mod sampling;
mod truth;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;

use client::Base;
use level::Level;
use measured::servers;
use pilot::Pilot;
use prompts::Prompts;

#[derive(Debug, Parser)]
struct Args {
    /// The router.
    #[arg(long, value_name = "URL")]
    router: Base,
    /// Its admin listener.
    #[arg(long, value_name = "URL")]
    admin: Base,
    /// A llama.cpp server behind it, by destination; once for each.
    #[arg(long = "server", value_name = "ID=URL", required = true)]
    servers: Vec<String>,
    /// The output of `profile throughput --format json`: the speeds that capacity and truth are computed with.
    #[arg(long, value_name = "FILE.json")]
    measured: PathBuf,
    /// Rows with a `prompt`.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "data/open9.jsonl.gz,data/routerbench-0shot.jsonl.gz"
    )]
    prompts: Vec<PathBuf>,
    /// Prompts above this many bytes are left out.
    #[arg(long, default_value_t = 300)]
    prompt_bytes_max: usize,
    /// Only prompts of these benchmarks (`task` of the rows), separated by commas; all where none is named.
    #[arg(long, value_delimiter = ',')]
    benchmarks: Vec<String>,
    /// `max_tokens` of a request is one of these, drawn at random.
    #[arg(long, value_delimiter = ',', default_value = "16,32,64")]
    max_tokens: Vec<u32>,
    /// Requests of each load.
    #[arg(long, default_value_t = 100)]
    requests: usize,
    /// Shares of the capacity.
    #[arg(long, value_delimiter = ',', default_value = "0.3,0.6,0.9")]
    loads: Vec<f64>,
    /// What an earlier pilot printed, in place of another one.
    #[arg(long, value_name = "FILE.json")]
    pilot_of: Option<PathBuf>,
    /// Requests of the pilot; their prompts are not used again.
    #[arg(long, default_value_t = 60)]
    pilot: usize,
    /// Only run the pilot: print its means, and write its answer lengths there as rows for `quality import`.
    #[arg(long, value_name = "FILE.jsonl")]
    profile: Option<PathBuf>,
    /// Milliseconds between samples of the backlog.
    #[arg(long, default_value_t = 500)]
    sample_ms: u64,
    /// Seed of prompts, lengths and arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// What to call the results.
    #[arg(long, default_value = "calibrated")]
    label: String,
    /// Folder of the results.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    // One thread: the servers need the cores.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(&args))
}

async fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.loads.iter().all(|load| *load > 0.0), "--loads must be above 0");
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    let mut urls = BTreeMap::new();
    for server in &args.servers {
        let (id, url) =
            server.split_once('=').with_context(|| format!("--server `{server}` is not ID=URL"))?;
        urls.insert(id.to_owned(), url.parse::<Base>()?);
    }
    let servers = servers(&args.measured, urls)?;
    let mut prompts = Prompts::read(
        &args.prompts,
        (args.prompt_bytes_max, &args.benchmarks),
        args.max_tokens.clone(),
        args.seed,
    )?;
    let for_pilot = prompts.take(args.pilot)?;
    let pilot = match &args.pilot_of {
        Some(path) => Pilot::read(path)?,
        None => {
            let profile = pilot::run(&servers, for_pilot, &args.max_tokens).await?;
            if let Some(path) = &args.profile {
                std::fs::write(path, profile.rows(&servers))
                    .with_context(|| format!("cannot write {}", path.display()))?;
                println!("{}", serde_json::to_string(&profile.means)?);
                return Ok(());
            }
            profile.means
        }
    };
    let capacity_per_s: f64 =
        servers.iter().map(|s| s.capacity_per_s(pilot.prompt_tokens, pilot.completion_tokens)).sum();
    eprintln!(
        "mean prompt {:.1}, completion {:.1} tokens: capacity {capacity_per_s:.3} requests/s",
        pilot.prompt_tokens, pilot.completion_tokens
    );
    let mut levels = Vec::new();
    for (load, stream) in args.loads.iter().zip(1..) {
        let level = Level {
            load: *load,
            per_s: load * capacity_per_s,
            sample_every: Duration::from_millis(args.sample_ms),
            seed: args.seed,
            stream,
        };
        let asked = prompts.take(args.requests)?;
        levels.push(level::run(&level, (&args.router, &args.admin), &servers, asked).await?);
    }
    let report = report::Report { label: &args.label, capacity_per_s, pilot, seed: args.seed, levels };
    let write = |name: String, text: String| {
        let path = args.out.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    write(format!("{}.json", args.label), report.json())?;
    write(format!("{}.svg", args.label), report.chart())?;
    let table = report.table();
    write(format!("{}.md", args.label), table.clone())?;
    println!("{table}");
    Ok(())
}

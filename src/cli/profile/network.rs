//! `profile network`: how long a connection to each node takes.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use super::{Format, Outcome, print, report, today};
use crate::app::{endpoint_spec, timeouts};
use crate::calibrate::fragment::{self, NetworkEntry};
use crate::calibrate::network::{Connects, TimeSpread, measure};
use crate::cli::progress::Progress;
use crate::config::Config;
use crate::endpoint::{EndpointPool, EndpointSpec};

/// Measure the way to each node
///
/// Connects to every endpoint a number of times and sends nothing. A TCP connect takes
/// one round trip: its median goes into the node's `network.rtt_ms`. For https the TLS
/// handshake is timed too. A tunnel or proxy on the way answers for itself; then set
/// `rtt_ms` by hand.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct NetworkArgs {
    /// The configuration with the endpoints
    #[arg(long, value_name = "FILE", default_value = "config.yaml")]
    config: PathBuf,

    /// Connects to each endpoint
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    count: u32,

    /// Write the YAML there [default: to standard output, after the table]
    #[arg(long, value_name = "FILE.yaml")]
    out: Option<PathBuf>,

    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// Runs the command.
pub(super) async fn run(args: &NetworkArgs) -> anyhow::Result<ExitCode> {
    let config = Config::load(&args.config)?;
    let specs = config.fleet.endpoints.iter().map(endpoint_spec).collect::<anyhow::Result<Vec<_>>>()?;
    let pool = EndpointPool::new(specs, timeouts(&config)).context("cannot set up TLS")?;
    let progress = Progress::new();
    let mut connects = vec![Connects::default(); config.fleet.endpoints.len()];
    let measuring = async {
        let stage = progress.stage("connects", connects.len() * args.count as usize);
        for ((endpoint, _), connects) in pool.iter().zip(&mut connects) {
            measure(&pool, endpoint, args.count, connects, &|| stage.advance()).await;
        }
    };
    let was_interrupted = tokio::select! {
        () = measuring => false,
        signal = tokio::signal::ctrl_c() => {
            signal.context("cannot listen for Ctrl-C")?;
            true
        }
    };
    let specs: Vec<&EndpointSpec> = pool.iter().map(|(_, spec)| spec).collect();
    tell(args, &config, &specs, &connects, &progress)?;
    let has_failed = connects.iter().any(|connects| connects.failure.is_some());
    Ok(Outcome::of(was_interrupted, has_failed).exit_code())
}

fn tell(
    args: &NetworkArgs,
    config: &Config,
    specs: &[&EndpointSpec],
    connects: &[Connects],
    progress: &Progress,
) -> anyhow::Result<()> {
    let mut entries: Vec<NetworkEntry<'_>> = Vec::new();
    for (endpoint, (spec, connects)) in config.fleet.endpoints.iter().zip(specs.iter().zip(connects)) {
        let Some(tcp) = TimeSpread::of(&connects.tcp) else { continue };
        // Endpoints of one node share its path: the first one reached stands for it.
        if entries.iter().all(|entry| *entry.node != *endpoint.node) {
            let (authority, n) = (spec.authority.as_str(), connects.tcp.len());
            entries.push(NetworkEntry {
                node: &endpoint.node,
                authority,
                tcp,
                n,
                tls: TimeSpread::of(&connects.tls),
            });
        }
    }
    let yaml = fragment::network(&today(), &entries);
    let text = match args.format {
        Format::Table => table(specs, connects),
        Format::Json => json_of(specs, connects),
    };
    print(text, &yaml, (args.format, args.out.as_deref()), progress)
}

fn table(specs: &[&EndpointSpec], connects: &[Connects]) -> String {
    let spread = |what: &str, times: &[_]| {
        TimeSpread::of(times).map(|spread| {
            let [min, median, p95] = [spread.min, spread.median, spread.p95].map(|time| time.get() * 1e3);
            format!("{what} {median:.2} ms (least {min:.2}, 95 % within {p95:.2})")
        })
    };
    let line = |(spec, connects): (&EndpointSpec, &Connects)| {
        let failure = connects.failure.as_ref().map(|failure| format!("FAILED: {failure}"));
        let parts = [spread("connect", &connects.tcp), spread("TLS", &connects.tls), failure];
        (spec.name.clone(), parts.into_iter().flatten().collect::<Vec<_>>().join("; "))
    };
    report::aligned(&specs.iter().copied().zip(connects).map(line).collect::<Vec<_>>())
}

fn json_of(specs: &[&EndpointSpec], connects: &[Connects]) -> String {
    let spread = |times: &[_]| {
        TimeSpread::of(times)
            .map(|spread| json!({"min_s": spread.min, "median_s": spread.median, "p95_s": spread.p95, "n": times.len()}))
    };
    let endpoint = |(spec, connects): (&EndpointSpec, &Connects)| {
        json!({
            "endpoint": spec.name,
            "tcp": spread(&connects.tcp),
            "tls": spread(&connects.tls),
            "failure": connects.failure,
        })
    };
    let endpoints: Vec<_> = specs.iter().copied().zip(connects).map(endpoint).collect();
    json!({ "endpoints": endpoints }).to_string() + "\n"
}

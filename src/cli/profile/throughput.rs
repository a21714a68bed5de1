//! `profile throughput`: prefill, decode, speed-up and concurrency of destinations.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use futures_util::future::join_all;

use super::consent::{self, Announcement};
use super::report::Row;
use super::{Format, Outcome, charts, print, report, today, write_file};
use crate::app::{endpoint_spec, timeouts};
use crate::calibrate::fragment::{self, ThroughputEntry};
use crate::calibrate::throughput::{Bench, Step, measure};
use crate::calibrate::{Course, Figures, Measured, server};
use crate::cli::progress::Progress;
use crate::config::Config;
use crate::domain::{Capabilities, Destination};
use crate::endpoint::EndpointPool;
use crate::units::Seconds;

/// Highest concurrency of a ladder where it is not given.
const MAX_CONCURRENCY_DEFAULT: u32 = 256;

/// By how many times a duration may differ from the one announced without a word.
const TOLERATED: f64 = 1.5;

/// Time for a first token; a server may have to load the model first.
const FIRST_TOKEN_MIN: Duration = Duration::from_mins(10);

/// Measure the speed of each destination
///
/// Sends made-up prompts straight to the endpoints, past any router, and prints what
/// to put under each model's `throughput`:
///
///   prefill_tps      from the time to first token of prompts of several lengths
///   decode_tps       from the time between first and last token, one at a time
///   max_concurrency  from 1, 2, 4, ... at once, until more bring nothing
///   batch_speedup    tokens/s at that concurrency over tokens/s one at a time
///
/// It first says what it will send and asks; it never sends more. Measure while the
/// endpoints have nothing else to do, or the figures are too low. Embedding models
/// are left out. Ctrl-C ends it and tells what was measured until then.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct ThroughputArgs {
    /// The configuration with the endpoints
    #[arg(long, value_name = "FILE", default_value = "config.yaml")]
    config: PathBuf,

    /// Measure this destination (node/model), and others given so [default: all]
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    destination: Vec<String>,

    /// Prompt lengths, in tokens at most; many at once are asked with the first
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "64,256,1024", value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    prompt_tokens: Vec<u32>,

    /// Completion tokens of a request
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=4_096))]
    completion_tokens: u32,

    /// Most requests at once [default: what the server says it runs at once, else twice what is configured]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4_096))]
    max_concurrency: Option<u32>,

    /// Requests of each prompt length
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: u32,

    /// Measure all destinations at the same time: where they share a machine and will be busy together
    #[arg(long)]
    together: bool,

    /// Write the YAML there [default: to standard output, after the table]
    #[arg(long, value_name = "FILE.yaml")]
    out: Option<PathBuf>,

    /// Draw a chart of each destination (SVG) into this folder
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,

    /// Agree beforehand to what will be sent
    #[arg(long)]
    yes: bool,

    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// A destination to measure.
struct Task<'a> {
    destination: &'a Destination,
    course: Course,
}

/// Runs the command.
pub(super) async fn run(args: &ThroughputArgs) -> anyhow::Result<ExitCode> {
    let config = Config::load(&args.config)?;
    let progress = Progress::new();
    let pool = pool(&config)?;
    let mut tasks = Vec::new();
    for destination in chosen(&config, &args.destination)? {
        if destination.capabilities.offers(Capabilities::CHAT) {
            tasks.push(task(args, destination, &pool, &progress).await?);
        } else {
            progress.say(&format!("{}: left out, it does not chat", destination.id));
        }
    }
    if tasks.is_empty() {
        bail!("there is no destination to measure");
    }
    consent::obtain(&announcements(&config, &tasks), (args.together, args.yes), &progress)?;

    let mut measured = vec![Measured::default(); tasks.len()];
    let was_interrupted = tokio::select! {
        () = measure_all(args.together, &tasks, &mut measured, (&pool, &progress)) => false,
        signal = tokio::signal::ctrl_c() => {
            signal.context("cannot listen for Ctrl-C")?;
            progress.say("interrupted: what follows is what was measured until now");
            true
        }
    };
    let figures: Vec<Figures> = measured.iter().map(Figures::of).collect();
    let rows: Vec<Row<'_>> = tasks
        .iter()
        .zip(measured.iter().zip(&figures))
        .map(|(task, (measured, figures))| Row { destination: task.destination, measured, figures })
        .collect();
    tell(args, &config, &rows, &progress)?;
    let has_failed = measured.iter().any(|measured| measured.failure.is_some());
    Ok(Outcome::of(was_interrupted, has_failed).exit_code())
}

pub(super) fn pool(config: &Config) -> anyhow::Result<EndpointPool> {
    let specs = config.fleet.endpoints.iter().map(endpoint_spec).collect::<anyhow::Result<Vec<_>>>()?;
    let mut limits = timeouts(config);
    limits.first_token = limits.first_token.max(FIRST_TOKEN_MIN);
    // Ollama's status line comes when the model is loaded.
    limits.first_byte = limits.first_token;
    EndpointPool::new(specs, limits).context("cannot set up TLS")
}

/// The destinations called for, in the order of the configuration.
pub(super) fn chosen<'a>(config: &'a Config, wanted: &[String]) -> anyhow::Result<Vec<&'a Destination>> {
    let destinations = &config.fleet.destinations;
    for id in wanted {
        if !destinations.iter().any(|d| d.id.as_str() == id) {
            let known: Vec<_> = destinations.iter().map(|d| d.id.as_str()).collect();
            bail!("there is no destination `{id}`; there are {}", known.join(", "));
        }
    }
    let is_wanted = |d: &&Destination| wanted.is_empty() || wanted.iter().any(|id| d.id.as_str() == id);
    Ok(destinations.iter().filter(is_wanted).collect())
}

/// Whether the configuration says how fast `destination` is.
pub(super) fn are_speeds_given(config: &Config, destination: &Destination) -> bool {
    let mut known = config.fleet.destinations.iter().zip(&config.fleet.given);
    known.any(|(d, given)| d.id == destination.id && given.prefill && given.decode)
}

/// What is measured at `destination`; lengths beyond its context are left out.
async fn task<'a>(
    args: &ThroughputArgs,
    destination: &'a Destination,
    pool: &EndpointPool,
    progress: &Progress,
) -> anyhow::Result<Task<'a>> {
    let mut prompt_tokens = args.prompt_tokens.clone();
    if let Some(context) = destination.context {
        let fits = |length: &u32| f64::from(*length) + f64::from(args.completion_tokens) <= context.get();
        prompt_tokens.retain(fits);
        if prompt_tokens.len() < args.prompt_tokens.len() {
            progress.say(&format!(
                "{}: prompts that do not fit its {} tokens of context are left out",
                destination.id,
                context.get()
            ));
        }
    }
    if prompt_tokens.is_empty() {
        bail!(
            "no prompt length fits the context of {}; give shorter ones with --prompt-tokens",
            destination.id
        );
    }
    let max_concurrency = match args.max_concurrency {
        Some(max) => max,
        None => {
            let slots = server::slots(pool, destination.endpoint).await;
            let configured = || destination.throughput.max_concurrency.saturating_mul(2);
            slots.unwrap_or_else(configured).min(MAX_CONCURRENCY_DEFAULT)
        }
    };
    let course = Course {
        prompt_tokens,
        repeats: args.repeats,
        completion_tokens: args.completion_tokens,
        max_concurrency,
        seed: rand::random(),
    };
    Ok(Task { destination, course })
}

fn announcements<'a>(config: &Config, tasks: &'a [Task<'a>]) -> Vec<Announcement<'a>> {
    let announce = |task: &'a Task<'a>| {
        let volume = task.course.volume();
        Announcement {
            destination: task.destination.id.as_str(),
            volume,
            cost: volume.cost(&task.destination.price),
            duration: task.course.duration(&task.destination.throughput),
            are_speeds_given: are_speeds_given(config, task.destination),
        }
    };
    tasks.iter().map(announce).collect()
}

async fn measure_all(
    is_together: bool,
    tasks: &[Task<'_>],
    measured: &mut [Measured],
    (pool, progress): (&EndpointPool, &Progress),
) {
    let one = async |task: &Task<'_>, measured: &mut Measured| {
        let id = task.destination.id.as_str();
        let n_requests = usize::try_from(task.course.volume().requests).unwrap_or(usize::MAX);
        let stage = progress.stage(id, n_requests);
        let on_step = |step| match step {
            Step::Request => stage.advance(),
            Step::Skipped(n) => stage.skip(usize::try_from(n).unwrap_or(usize::MAX)),
            Step::Pace(pace) if (TOLERATED.recip()..=TOLERATED).contains(&pace) => {}
            Step::Pace(pace) => {
                let announced = task.course.duration(&task.destination.throughput);
                let duration = consent::rounded(Seconds(pace * announced.get()));
                progress.say(&format!("{id}: going by its first answers, about {duration} in all"));
            }
        };
        let bench = Bench { pool, destination: task.destination, course: &task.course, on_step: &on_step };
        measure(&bench, measured).await;
        drop(stage);
        let outcome = measured.failure.as_deref().unwrap_or("measured");
        progress.say(&format!("{id}: {outcome}"));
    };
    if is_together {
        join_all(tasks.iter().zip(measured).map(|(task, measured)| one(task, measured))).await;
    } else {
        for (task, measured) in tasks.iter().zip(measured) {
            one(task, measured).await;
        }
    }
}

/// Prints and writes what was measured.
fn tell(args: &ThroughputArgs, config: &Config, rows: &[Row<'_>], progress: &Progress) -> anyhow::Result<()> {
    let entry = |row: &Row<'_>| {
        let endpoint = &config.fleet.endpoints[row.destination.endpoint.idx()];
        (endpoint.url.to_string(), endpoint.name.as_deref(), endpoint.kind)
    };
    let places: Vec<_> = rows.iter().map(entry).collect();
    let entries: Vec<ThroughputEntry<'_>> = rows
        .iter()
        .zip(&places)
        .map(|(row, (url, name, kind))| ThroughputEntry {
            node: &row.destination.node,
            endpoint: row.destination.endpoint,
            endpoint_name: *name,
            url: url.clone(),
            kind: *kind,
            model: &row.destination.model,
            upstream: &row.destination.upstream_model,
            figures: row.figures,
        })
        .collect();
    let yaml = fragment::throughput(&today(), &entries);
    let text = match args.format {
        Format::Table => report::table(rows),
        Format::Json => report::json(rows).to_string() + "\n",
    };
    if let Some(folder) = &args.plot {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make folder {}", folder.display()))?;
        for chart in charts::throughput(rows) {
            let path = folder.join(chart.file_name);
            write_file(&path, &chart.svg)?;
            progress.say(&format!("chart {}", path.display()));
        }
    }
    print(text, &yaml, (args.format, args.out.as_deref()), progress)
}

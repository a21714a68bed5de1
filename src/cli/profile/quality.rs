//! `profile quality`: real questions to the endpoints, scores into the quality store.

mod report;
mod writing;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use futures_util::future::join_all;
use tokio::sync::mpsc;

use super::consent::{self, Announcement};
use super::throughput::{are_speeds_given, chosen, pool};
use super::{Outcome as Ended, print};
use crate::calibrate::quality::{Judge, Outcome, Question, Run, Seat, ShippedWorkload, Workload};
use crate::calibrate::{Volume, server};
use crate::cli::progress::{Progress, Stage};
use crate::config::Config;
use crate::domain::destination::Throughput;
use crate::domain::{Capabilities, Destination};
use crate::endpoint::EndpointPool;
use crate::profiler::quality::EmbedderParams;
use crate::profiler::quality::embedder;
use crate::profiler::quality::store::QualityStore;
use crate::units::{Seconds, Tokens};
use report::{Report, Tally};
use writing::{Record, Written};

/// Questions under way at a destination where nobody says how many.
const CONCURRENCY_MAX: u32 = 16;
/// Answers that may wait to be stored.
const QUEUE_MAX: usize = 64;
/// Faulty rows and failed questions told one by one.
const TOLD_MAX: usize = 20;

/// Measure how good the answers of each model are
///
/// Sends questions with known answers straight to the endpoints, past any router,
/// scores what comes back and fills the quality store that `serve` predicts from.
///
///   --workload gsm8k     120 questions of grade-school mathematics (shipped, MIT)
///   --workload mmlu      114 multiple-choice questions of 57 subjects (shipped, MIT)
///   --workload FILE      your own, one JSON object a line, plain or gzip:
///
///   {"id": "q1", "prompt": "...", "scorer": "contains", "answer": "Paris"}
///
/// scorers, each 0 or 1 but for the judge:
///   number       the number the answer ends with (after `####` or in \boxed{} if there)
///   choice       the letter it chooses; `question` and `choices` make the prompt
///   exact        the whole answer, but for white space; `answer` may be a list
///   contains     a part of it, upper or lower case; `answer` may be a list
///   regex        the pattern `answer` occurs in it
///   json_schema  it is JSON as `schema` has it
///   judge        the model of --judge marks it by the `rubric`, `answer` being a right one
///
/// `max_tokens`, `benchmark`, `task`, `source` and `license` are optional. Best are
/// questions like those your clients ask, 200 or more.
///
/// It first says what it will send, and asks. What a model has answered is stored at
/// once: after Ctrl-C or a crash run it again, and only what is missing is asked.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct QualityArgs {
    /// The configuration with the endpoints
    #[arg(long, value_name = "FILE", default_value = "config.yaml")]
    config: PathBuf,

    /// gsm8k, mmlu or a file, or several of them
    #[arg(long, value_name = "NAME|FILE", value_delimiter = ',', required = true)]
    workload: Vec<String>,

    /// So many questions in all, spread evenly and always the same ones [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,

    /// Ask this destination (node/model), and others given so [default: all]
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    destination: Vec<String>,

    /// The destination (node/model) that judges what only a judge can score
    #[arg(long, value_name = "ID")]
    judge: Option<String>,

    /// Questions at once at each destination [default: what the server says it runs at once, else max_concurrency; 16 at most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    concurrency: Option<u32>,

    /// Completion tokens of a question at most, in place of its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=131_072))]
    max_tokens: Option<u32>,

    /// Ask again what is stored already
    #[arg(long)]
    again: bool,

    /// Directory of the store [default: quality.store of the configuration]
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,

    /// Agree beforehand to what will be sent
    #[arg(long)]
    yes: bool,

    /// How to print it; jsonl = a line for each answer as soon as it is on disk
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
    Jsonl,
}

/// What is asked of the destinations of one model.
struct Task<'a> {
    model: &'a str,
    seats: Vec<Seat<'a>>,
    questions: Vec<&'a Question>,
}

/// Runs the command.
pub(super) async fn run(args: &QualityArgs) -> anyhow::Result<ExitCode> {
    let config = Config::load(&args.config)?;
    let progress = Progress::new();
    let pool = pool(&config)?;
    let workload = workload(args, &progress)?;
    let judge = judge(args, &config, &workload)?;
    let folder = args.store.as_ref().unwrap_or(&config.quality.store);
    // Whatever is missing here is said before anything is paid for.
    let embedder = embedder::load(&EmbedderParams {
        library: config.embedder.library.clone(),
        model: config.embedder.model.clone(),
        ..EmbedderParams::of_environment()
    })?;
    let store = QualityStore::open_or_create(folder)?;
    store.check_embedder(&embedder.model_sha256)?;

    let seats = seats(args, &config, &pool, &progress).await?;
    let (tasks, n_known) = tasks(args, seats, &workload, &store)?;
    if n_known > 0 {
        progress
            .say(&format!("{n_known} answers are in {} already and not asked for again", folder.display()));
    }
    if !tasks.is_empty() {
        consent::obtain(&announcements(&config, &tasks, judge), (true, args.yes), &progress)?;
    }
    let judge = judge.map(|destination| Judge { pool: &pool, destination });
    let (records, inbox) = mpsc::channel(QUEUE_MAX);
    let (written, outbox) = mpsc::unbounded_channel();
    let prints_rows = args.format == Format::Jsonl;
    let writer = std::thread::spawn(move || writing::write(store, embedder, inbox, (&written, prints_rows)));
    let mut tally = Tally::default();
    let was_interrupted = ask_all(&tasks, (&pool, judge), (records, outbox), (&mut tally, &progress)).await?;
    writer.join().map_err(|_| anyhow::anyhow!("the thread that stores answers failed"))??;
    let report = Report::new(&tally, folder, &tasks);
    let text = match args.format {
        Format::Table => report.table(),
        Format::Json => report.json() + "\n",
        Format::Jsonl => String::new(),
    };
    print(text, "", (super::Format::Json, None), &progress)?;
    Ok(Ended::of(was_interrupted, report.has_failed()).exit_code())
}

/// The questions, from all that is named.
fn workload(args: &QualityArgs, progress: &Progress) -> anyhow::Result<Vec<Question>> {
    let mut all = Workload::default();
    for name in &args.workload {
        let read = match ShippedWorkload::from_name(name) {
            Some(shipped) => Workload::shipped(shipped),
            None => {
                let file = std::fs::File::open(name).with_context(|| {
                    format!("there is no workload `{name}`: gsm8k, mmlu or a file that can be read")
                })?;
                Workload::read(file)
            }
        };
        let read = read.with_context(|| format!("workload {name}"))?;
        for fault in read.faults.iter().take(TOLD_MAX) {
            progress.say(&format!("{name}, line {}: {}", fault.row, fault.reason));
        }
        if read.faults.len() > TOLD_MAX {
            progress.say(&format!("{name}: {} more faulty lines", read.faults.len() - TOLD_MAX));
        }
        all.questions.extend(read.questions);
    }
    let mut questions =
        all.limited(args.limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))).questions;
    if questions.is_empty() {
        bail!("no question to ask; `profile quality --help` shows the format");
    }
    let mut ids = std::collections::BTreeSet::new();
    if let Some(twice) = questions.iter().find(|question| !ids.insert(question.id.as_str())) {
        bail!("id `{}` stands in two of the workloads; give them ids of their own", twice.id);
    }
    if let Some(max_tokens) = args.max_tokens {
        questions.iter_mut().for_each(|question| question.completion_tokens_max = max_tokens);
    }
    Ok(questions)
}

/// Who judges, where that is needed.
fn judge<'a>(
    args: &QualityArgs,
    config: &'a Config,
    questions: &[Question],
) -> anyhow::Result<Option<&'a Destination>> {
    let n_judged = questions.iter().filter(|question| question.judge_volume().is_some()).count();
    match &args.judge {
        Some(id) => Ok(chosen(config, std::slice::from_ref(id))?.into_iter().next()),
        None if n_judged > 0 => {
            bail!("{n_judged} questions are scored by a judge: name one with --judge NODE/MODEL")
        }
        None => Ok(None),
    }
}

/// The destinations to ask, by model in the order of the configuration.
async fn seats<'a>(
    args: &QualityArgs,
    config: &'a Config,
    pool: &EndpointPool,
    progress: &Progress,
) -> anyhow::Result<Vec<(&'a str, Vec<Seat<'a>>)>> {
    let mut by_model: Vec<(&str, Vec<Seat<'_>>)> = Vec::new();
    for destination in chosen(config, &args.destination)? {
        if !destination.capabilities.offers(Capabilities::CHAT) {
            progress.say(&format!("{}: left out, it does not chat", destination.id));
            continue;
        }
        let concurrency = match args.concurrency {
            Some(n) => n,
            None => {
                let slots = server::slots(pool, destination.endpoint).await;
                slots.unwrap_or(destination.throughput.max_concurrency).clamp(1, CONCURRENCY_MAX)
            }
        };
        let seat = Seat { destination, concurrency };
        match by_model.iter_mut().find(|(model, _)| *model == &*destination.model) {
            Some((_, seats)) => seats.push(seat),
            None => by_model.push((&destination.model, vec![seat])),
        }
    }
    if by_model.is_empty() {
        bail!("there is no destination to ask");
    }
    Ok(by_model)
}

/// What is still to be asked of each model, and how many answers are stored.
fn tasks<'a>(
    args: &QualityArgs,
    seats: Vec<(&'a str, Vec<Seat<'a>>)>,
    questions: &'a [Question],
    store: &QualityStore,
) -> anyhow::Result<(Vec<Task<'a>>, usize)> {
    let mut tasks = Vec::new();
    let mut n_known = 0;
    for (model, seats) in seats {
        let mut missing = Vec::new();
        for question in questions {
            if !args.again && store.is_scored(&question.id, &question.prompt, model)? {
                n_known += 1;
            } else {
                missing.push(question);
            }
        }
        if !missing.is_empty() {
            tasks.push(Task { model, seats, questions: missing });
        }
    }
    Ok((tasks, n_known))
}

/// What is sent where. Destinations of one model share its questions; the dearest price is announced.
fn announcements<'a>(
    config: &Config,
    tasks: &[Task<'a>],
    judge: Option<&'a Destination>,
) -> Vec<Announcement<'a>> {
    let announce = |task: &Task<'a>| {
        let volume: Volume = task.questions.iter().map(|question| question.volume()).sum();
        let costs = task.seats.iter().map(|seat| volume.cost(&seat.destination.price));
        let speeds = task.seats.iter().map(|seat| {
            let believed = &seat.destination.throughput;
            let alone: Seconds =
                task.questions.iter().map(|question| believed_time(believed, question)).sum();
            f64::from(seat.concurrency).min(believed.batch_speedup).max(1.0) / alone.get().max(1e-9)
        });
        Announcement {
            destination: task.model,
            volume,
            cost: costs.reduce(|a, b| if a > b { a } else { b }).unwrap_or_default(),
            duration: Seconds(1.0 / speeds.sum::<f64>().max(1e-9)),
            are_speeds_given: task.seats.iter().all(|seat| are_speeds_given(config, seat.destination)),
        }
    };
    let mut announcements: Vec<_> = tasks.iter().map(announce).collect();
    if let Some(judge) = judge {
        let judged =
            tasks.iter().flat_map(|task| &task.questions).filter_map(|question| question.judge_volume());
        let volume: Volume = judged.sum();
        let believed = &judge.throughput;
        let tokens = |n: u64| Tokens(n as f64);
        let alone = believed.service_time(tokens(volume.prompt_tokens), tokens(volume.completion_tokens));
        let duration = Seconds(alone.get() / believed.batch_speedup.max(1.0));
        let destination = judge.id.as_str();
        announcements.push(Announcement {
            destination,
            volume,
            cost: volume.cost(&judge.price),
            duration,
            are_speeds_given: are_speeds_given(config, judge),
        });
    }
    announcements
}

fn believed_time(believed: &Throughput, question: &Question) -> Seconds {
    let Volume { prompt_tokens, completion_tokens, .. } = question.volume();
    believed.service_time(Tokens(prompt_tokens as f64), Tokens(completion_tokens as f64))
}

/// Asks everything and counts what came of it; whether it was interrupted.
async fn ask_all<'a>(
    tasks: &'a [Task<'a>],
    (pool, judge): (&'a EndpointPool, Option<Judge<'a>>),
    (records, mut outbox): (mpsc::Sender<Record>, mpsc::UnboundedReceiver<Written>),
    (tally, progress): (&mut Tally, &Progress),
) -> anyhow::Result<bool> {
    let stages: BTreeMap<&str, Stage> =
        tasks.iter().map(|task| (task.model, progress.stage(task.model, task.questions.len()))).collect();
    let (failures, mut failed) = mpsc::unbounded_channel();
    let on_outcome = async |outcome: Outcome<'a>| match outcome {
        Outcome::Graded { destination, question, graded } => {
            // Without a writer there is an error to come.
            let _ = records.send(Record::new(destination, question, graded)).await;
        }
        Outcome::Failed { destination, question, reason } => {
            let _ = failures.send((destination, Some(question), reason));
        }
        Outcome::GivenUp { destination, reason } => {
            let _ = failures.send((destination, None, reason));
        }
    };
    let runs = tasks.iter().map(|task| {
        let run = Run { pool, seats: &task.seats, judge, questions: task.questions.clone() };
        let on_outcome = &on_outcome;
        async move { run.all(on_outcome).await }
    });
    let was_interrupted = {
        let mut asking = std::pin::pin!(join_all(runs));
        loop {
            tokio::select! {
                _ = &mut asking => break false,
                Some(written) = outbox.recv() => count(tally, &stages, written),
                Some((destination, question, reason)) = failed.recv() => {
                    tell_failure(tally, progress, (destination, question), &reason);
                }
                signal = tokio::signal::ctrl_c() => {
                    signal.context("cannot listen for Ctrl-C")?;
                    progress.say("interrupted: what is answered is stored; run it again to go on");
                    break true;
                }
            }
        }
    };
    drop(failures);
    while let Some((destination, question, reason)) = failed.recv().await {
        tell_failure(tally, progress, (destination, question), &reason);
    }
    // The writer ends when it has stored what it has been given.
    drop(records);
    while let Some(written) = outbox.recv().await {
        count(tally, &stages, written);
    }
    Ok(was_interrupted)
}

fn count(tally: &mut Tally, stages: &BTreeMap<&str, Stage>, written: Written) {
    if let Some(stage) = stages.get(written.model.as_str()) {
        stage.advance();
    }
    tally.stored(written);
}

fn tell_failure(
    tally: &mut Tally,
    progress: &Progress,
    (destination, question): (&Destination, Option<&Question>),
    reason: &str,
) {
    let n_failures = tally.failed(&destination.model, question.is_some());
    match question {
        None => progress.say(&format!("{}: given up, it keeps failing: {reason}", destination.id)),
        Some(question) if n_failures <= TOLD_MAX => {
            progress.say(&format!("{}, question {}: {reason}", destination.id, question.id));
        }
        Some(_) => {}
    }
}

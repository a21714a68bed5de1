//! `cema-router replay`: logged decisions under another configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use clap::ValueEnum;
use serde::Serialize;

use crate::app::scheduling::plan_params;
use crate::config::Config;
use crate::decision::log_file::{self, Entry, LogError, RequestRecord};
use crate::decision::record::RecordError;
use crate::decision::replay::report::{CAVEAT, Report};
use crate::decision::replay::{Change, Replay};
use crate::domain::Weights;
use crate::plot::{Bar, Content, Figure, Group, Panel};
use crate::routing::PolicyKind;

/// How it is used.
const AFTER_HELP: &str = "\
Examples (the log must have been written with `decision_log`):
  cema-router replay --config config.yaml      # the same again: nothing differs
  cema-router replay --log decisions.jsonl --config new.yaml --policy greedy
  cema-router replay --config config.yaml --weights energy=.7,quality=.3 --plot charts";

/// Decide logged plans again under another configuration, and say what that would have come to
///
/// Every plan is decided in the situation that was logged, by the policy, weights, models and fleet of the configuration
/// (`--config`), with `--policy` and `--weights` over it. Destinations that the configuration no longer has are taken
/// out, new ones join with their configured figures; prices, power and capabilities are the configured ones, while
/// measured speeds and paths stay as logged. With the configuration that was in force the decisions come out exactly as
/// logged: searches are stopped where they were.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ReplayArgs {
    #[command(flatten)]
    log: LogArgs,
    /// Another policy.
    #[arg(long, value_name = "P", value_parser = super::solve::policy_parser())]
    policy: Option<PolicyKind>,
    /// Other weights, such as energy=.7,quality=.1,cost=.1,time=.1; what is not named is 0.
    #[arg(long, value_name = "W")]
    weights: Option<String>,
    /// What is printed.
    #[arg(long, value_enum, default_value_t)]
    format: ReplayFormat,
    /// A folder for a chart, replay.svg.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
}

/// Where the decision log is.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// The decision log; files put aside beside it (F.1, F.2, …) are read before it. The one that --config names by
    /// default.
    #[arg(long, value_name = "F")]
    log: Option<PathBuf>,
    /// A configuration.
    #[arg(long, value_name = "G")]
    config: Option<PathBuf>,
}

/// How the outcome is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ReplayFormat {
    /// For people.
    #[default]
    Table,
    /// One JSON object.
    Json,
}

#[derive(Serialize)]
struct Answer<'a> {
    log: String,
    policy: Option<&'static str>,
    weights: Option<Weights>,
    #[serde(flatten)]
    report: &'a Report,
    /// Plans that could not be decided again, and the first reason.
    n_skipped: u64,
    skipped: Option<String>,
    /// Lines that are no records.
    n_unreadable: u64,
    model_based: &'static str,
}

#[derive(Default)]
struct Skipped {
    n_plans: u64,
    first: Option<String>,
    n_unreadable: u64,
}

impl LogArgs {
    /// The log's file.
    ///
    /// # Errors
    /// Where nothing names one.
    pub(super) fn path(&self) -> anyhow::Result<PathBuf> {
        if let Some(log) = &self.log {
            return Ok(log.clone());
        }
        let Some(config) = self.configuration()? else {
            bail!("say where the decision log is: --log FILE, or --config FILE of a router that writes one");
        };
        config.decision_log.map(|of| of.log.path).context("the configuration has no `decision_log.path`")
    }

    fn configuration(&self) -> anyhow::Result<Option<Config>> {
        Ok(self.config.as_deref().map(Config::load).transpose()?)
    }
}

/// Runs the command: the outcome goes to standard output.
///
/// # Errors
/// A log or configuration that cannot be read, a log without a plan that can be decided again.
pub fn run(args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    let log = args.log.path()?;
    let change = change(args)?;
    let (policy, weights) = (change.policy, change.weights);
    let (replay, skipped) = replayed(&log, change)?;
    let report = replay.report();
    if report.n_plans == 0 {
        let why = skipped.first.unwrap_or_else(|| "there is no plan in it".to_owned());
        bail!("no plan of {} could be decided again: {why}", log.display());
    }
    let mut out = std::io::stdout().lock();
    match args.format {
        ReplayFormat::Table => {
            write!(out, "{}", report.to_table())?;
            if let Some(first) = &skipped.first {
                writeln!(out, "{} plans were passed over, the first because {first}", skipped.n_plans)?;
            }
        }
        ReplayFormat::Json => {
            let answer = Answer {
                log: log.display().to_string(),
                policy: policy.map(PolicyKind::as_str),
                weights,
                report: &report,
                n_skipped: skipped.n_plans,
                skipped: skipped.first,
                n_unreadable: skipped.n_unreadable,
                model_based: CAVEAT,
            };
            writeln!(out, "{}", serde_json::to_string(&answer)?)?;
        }
    }
    if let Some(folder) = &args.plot {
        write_chart(folder, &report)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn change(args: &ReplayArgs) -> anyhow::Result<Change> {
    let mut change = Change { policy: args.policy, ..Change::default() };
    if let Some(config) = args.log.configuration()? {
        // Where policies take turns, every plan keeps its own.
        let kind = args.policy.or(config.switchback.is_none().then_some(config.routing.policy));
        change.policy = kind;
        change.weights = Some(config.routing.weights);
        change.params = Some(plan_params(&config.routing, kind.unwrap_or(config.routing.policy)));
        change.completion = Some(change.params.map_or(config.routing.completion, |of| of.costs.completion));
        change.finish_target = Some(config.window.finish_target);
        change.fleet = Some(config.fleet.destinations.into());
    }
    if let Some(text) = &args.weights {
        let wrong =
            || anyhow!("--weights is {text:?}; write names with numbers, such as energy=.7,quality=.3");
        change.weights = Some(Weights::parse(text).ok_or_else(wrong)?);
    }
    Ok(change)
}

fn replayed(log: &Path, change: Change) -> anyhow::Result<(Replay, Skipped)> {
    let (mut replay, mut skipped) = (Replay::new(change), Skipped::default());
    for file in log_file::files_of(log) {
        log_file::read(&file, |entry| {
            match entry {
                Entry::Plan(plan) => {
                    if let Err(error) = replay.plan(&plan) {
                        skipped.plan(&error);
                    }
                }
                Entry::Request(request) => finished(&mut replay, &request),
                Entry::OldPlan => {
                    skipped.n_plans += 1;
                    let why = || "it is of schema 1, which does not say enough".to_owned();
                    skipped.first.get_or_insert_with(why);
                }
                Entry::Unreadable => skipped.n_unreadable += 1,
                Entry::Other => {}
            }
            Ok::<_, LogError>(())
        })?;
    }
    Ok((replay, skipped))
}

impl Skipped {
    fn plan(&mut self, error: &RecordError) {
        self.n_plans += 1;
        self.first.get_or_insert_with(|| error.to_string());
    }
}

fn finished(replay: &mut Replay, request: &RequestRecord) {
    let actual = &request.actual;
    if request.outcome == "ok"
        && let (Some(usd), Some(seconds)) = (actual.usd, actual.seconds)
    {
        replay.finished(&request.id, (usd, actual.modelled_joules.unwrap_or(0.0), seconds));
    }
}

fn write_chart(folder: &Path, report: &Report) -> anyhow::Result<()> {
    const COLOURS: [&str; 2] = ["#999999", "#0072B2"];
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make folder {}", folder.display()))?;
    let bars = |values: [f64; 2]| {
        let bar = |(value, colour)| Bar { value, half: 0.0, colour };
        values.into_iter().zip(COLOURS).map(bar).collect()
    };
    let panel = |(name, _, was, is): (&'static str, &'static str, f64, f64)| Panel {
        title: name,
        content: Content::Bars(vec![Group { label: String::new(), bars: bars([was, is]) }]),
    };
    let figures = report.figures();
    let titles = figures.into_iter().map(|(name, unit, was, is)| (title(name, unit), unit, was, is));
    let panels: Vec<Panel> = titles.map(panel).collect();
    let ids = report.logged.by_destination.keys().chain(report.replayed.by_destination.keys());
    let ids: BTreeSet<_> = ids.collect();
    let share = |id: &String| {
        let n = |of: &BTreeMap<String, usize>| of.get(id).map_or(0.0, |n| *n as f64);
        let values = [n(&report.logged.by_destination), n(&report.replayed.by_destination)];
        Group { label: id.clone(), bars: bars(values) }
    };
    let mut rows: Vec<Vec<Panel>> = Vec::new();
    for panel in panels {
        match rows.last_mut().filter(|row| row.len() < 3) {
            Some(row) => row.push(panel),
            None => rows.push(vec![panel]),
        }
    }
    let by_destination = Content::Bars(ids.into_iter().map(share).collect());
    rows.push(vec![Panel { title: "requests by destination", content: by_destination }]);
    let figure = Figure {
        title: "Logged and replayed decisions".to_owned(),
        note: format!(
            "{} requests in {} plans; all figures are predictions by the router's model, in the logged situations",
            report.logged.requests, report.n_plans
        ),
        rows,
        legend: [("logged", COLOURS[0]), ("replayed", COLOURS[1])]
            .map(|(name, c)| (name.to_owned(), c))
            .into(),
        width: 900.0,
    };
    let path = folder.join("replay.svg");
    std::fs::write(&path, figure.draw()).with_context(|| format!("cannot write {}", path.display()))
}

fn title(name: &'static str, unit: &'static str) -> &'static str {
    match (name, unit) {
        ("quality", _) => "quality, mean predicted score",
        ("money", _) => "money, USD",
        ("energy", _) => "energy, joules",
        ("latency", _) => "latency, mean seconds",
        ("latency p95", _) => "latency, p95 seconds",
        _ => "objective J of a plan, by the weights of now",
    }
}

//! `simulate`: the router's policies on recorded prompts, in independent batches or under arrivals over time.

mod args;
mod arrivals;
mod embeddings;
mod live_runs;
mod parallel;
mod prepare;
mod settings;
mod trace;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};

use crate::cli::progress::Progress;
pub use args::SimulateArgs;
use args::{Format, Knowledge};
use live_runs::LiveCommand;
use prepare::ProfileSource;
use settings::{Settings, methods};

use crate::config::Scenario;
use crate::cpu_time::thread_cpu_time;
use crate::routing::{CompletionModel, PolicyKind, TimeTerm};
use crate::simulate::batches::{self, BatchParams};
use crate::simulate::report::{BatchRun, Header, Report, Rows, Runs};
use crate::simulate::{Method, Workload, plot};

/// Shipped scenarios by name.
const SHIPPED: [(&str, &str); 6] = [
    ("routerbench", include_str!("../../scenarios/routerbench.yaml")),
    ("six-node", include_str!("../../scenarios/six-node.yaml")),
    ("small-slots", include_str!("../../scenarios/small-slots.yaml")),
    ("mixed-edge", include_str!("../../scenarios/mixed-edge.yaml")),
    ("six-node-live", include_str!("../../scenarios/six-node-live.yaml")),
    ("routerbench-live", include_str!("../../scenarios/routerbench-live.yaml")),
];

/// Runs the command: results go to standard output, progress to standard error.
///
/// # Errors
/// Rows and fleet that do not go together, a scenario, policy or file that is not there, a closed output.
pub fn run(args: &SimulateArgs) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    let scenario = load_scenario(&args.scenario)?;
    let methods = methods(args)?;
    let settings = Settings::new(args, &scenario, &methods)?;
    let (workload, header) = prepare(args, &scenario, &settings, &progress)?;
    progress.say(&format!("seed {}", args.seed));
    let runs = if settings.is_live {
        let command = LiveCommand { args, methods: &methods, settings: &settings };
        Runs::Live(command.run(&workload, &progress)?)
    } else {
        Runs::Batch(batch_runs(args, &workload, &methods, &settings, &progress)?)
    };
    let report = Report { header, sweep: settings.sweep, runs };
    if let Some(folder) = &args.plot {
        write_charts(folder, &report, &progress)?;
    }
    let text = match args.format {
        Format::Table => report.to_table(),
        Format::Json => report.to_json()?,
        Format::Csv => report.to_csv(),
    };
    std::io::stdout().lock().write_all(text.as_bytes()).context("cannot write the results")?;
    if methods.iter().all(|method| !method.name().starts_with(PolicyKind::Greedy.as_str())) {
        progress.say(
            "note: `greedy` is not among the compared policies; it is the rival that batching must beat",
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn load_scenario(name: &str) -> anyhow::Result<Scenario> {
    if let Some((_, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
        let in_line = |faults: Vec<crate::config::Fault>| {
            let faults: Vec<_> = faults.iter().map(|fault| format!("line {}: {fault}", fault.line)).collect();
            anyhow::anyhow!("shipped scenario {name}: {}", faults.join("; "))
        };
        return Scenario::parse(text).map_err(in_line);
    }
    let path = Path::new(name);
    if !path.exists() {
        let known = SHIPPED.map(|(name, _)| name).join(", ");
        bail!("unknown scenario `{name}`; there are {known}, and any scenario or configuration file");
    }
    Ok(Scenario::load(path)?)
}

/// Trace and profile as asked for, joined into a workload.
fn prepare(
    args: &SimulateArgs,
    scenario: &Scenario,
    settings: &Settings,
    progress: &Progress,
) -> anyhow::Result<(Workload, Header)> {
    let mut trace = match (&args.trace, scenario.trace) {
        (Some(path), _) => trace::read(path)?,
        (None, Some(shipped)) => trace::shipped(shipped)?,
        (None, None) => bail!(
            "scenario {} brings no rows; give --trace with scores of its models ({})",
            args.scenario,
            scenario.trace_models.join(", ")
        ),
    };
    let mut is_synthetic = trace.fill_lengths(&scenario.lengths, &scenario.trace_models);
    let mut rows_of_profile = None;
    let workload = if args.quality == Knowledge::Oracle {
        prepare::oracle(scenario, &trace)?
    } else {
        let mut profile = match &args.profile {
            Some(path) => prepare::profile_at(path)?,
            None => {
                let (profile, rest) = trace.split();
                trace = rest;
                ProfileSource::Rows(profile)
            }
        };
        let source = args.profile.as_ref().map_or(String::new(), |path| path.display().to_string());
        rows_of_profile = Some(Rows { source, rows: None });
        if let ProfileSource::Rows(profile) = &mut profile {
            let n_shared = profile.remove_questions_of(&trace);
            if n_shared > 0 {
                progress.say(&format!("{n_shared} profile rows ask what the trace asks and are left out"));
            }
            if profile.rows.is_empty() || trace.rows.is_empty() {
                bail!(
                    "{} and {} share every question; nothing is left to predict from",
                    profile.source,
                    trace.source
                );
            }
            is_synthetic |= profile.fill_lengths(&scenario.lengths, &scenario.trace_models);
            rows_of_profile = Some(Rows { source: profile.source.clone(), rows: Some(profile.rows.len()) });
        }
        prepare::predicted(scenario, &mut trace, profile, &args.embedder.params(), progress)?
    };
    let mut assumptions = scenario.assumptions.clone();
    if is_synthetic {
        assumptions.push(
            "completion lengths were not recorded: task mean x verbosity of the model x log-normal noise"
                .into(),
        );
    }
    let is_paper =
        (scenario.routing.completion, scenario.routing.time) == (CompletionModel::Fifo, TimeTerm::Makespan);
    if !settings.is_live && !is_paper {
        assumptions.push("the objective counts time by Eq. 4 (completion: fifo, time: makespan)".into());
    }
    let header = Header {
        scenario: args.scenario.clone(),
        title: scenario.title.clone(),
        mode: if settings.is_live { "live" } else { "batch" },
        seed: args.seed,
        quality: args.quality.as_str(),
        lengths: if is_synthetic { "synthetic" } else { "recorded" },
        trace: Rows { source: trace.source.clone(), rows: Some(trace.rows.len()) },
        profile: rows_of_profile,
        weights: settings.weights.into(),
        assumptions,
    };
    Ok((workload, header))
}

fn batch_runs(
    args: &SimulateArgs,
    workload: &Workload,
    methods: &[Method],
    settings: &Settings,
    progress: &Progress,
) -> anyhow::Result<Vec<BatchRun>> {
    let n_rows = workload.requests().len();
    let largest = args.batches.batch_size.iter().copied().max().unwrap_or(1) as usize;
    if largest > n_rows {
        bail!("a batch of {largest} needs as many rows; the trace has {n_rows}");
    }
    let n_runs = args.batches.batch_size.len() * args.batches.copies.len();
    let stage = progress.stage("batches", n_runs * args.batches.batches as usize);
    let mut runs = Vec::with_capacity(n_runs);
    for copies in &args.batches.copies {
        let workload = workload.replicated(*copies as usize);
        for batch_size in &args.batches.batch_size {
            let params = BatchParams {
                batch_size: *batch_size as usize,
                batches: args.batches.batches as usize,
                seed: args.seed,
                costs: settings.costs,
                weights: settings.weights,
            };
            let outcomes =
                batches::run(&workload, methods, &params, &thread_cpu_time, &mut || stage.advance())?;
            runs.push(BatchRun {
                batch_size: params.batch_size,
                batches: params.batches,
                copies: *copies as usize,
                destinations: workload.destinations().len(),
                methods: outcomes.into_iter().map(Into::into).collect(),
            });
        }
    }
    Ok(runs)
}

fn write_charts(folder: &Path, report: &Report, progress: &Progress) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make folder {}", folder.display()))?;
    for chart in plot::charts(report) {
        let path = folder.join(&chart.file_name);
        std::fs::write(&path, chart.svg).with_context(|| format!("cannot write {}", path.display()))?;
        progress.say(&format!("chart {}", path.display()));
    }
    Ok(())
}

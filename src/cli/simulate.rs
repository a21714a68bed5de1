//! `simulate`: the router's policies on recorded prompts, in independent batches or under arrivals over time.

mod args;
mod embeddings;
mod prepare;
mod trace;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};

use crate::cli::progress::Progress;
pub use args::SimulateArgs;
use args::{Format, Knowledge};
use prepare::ProfileSource;

use crate::config::Scenario;
use crate::cpu_time::thread_cpu_time;
use crate::domain::Weights;
use crate::planning::WindowParams;
use crate::routing::{CompletionModel, CostModels, PolicyKind, PolicyParams, TimeTerm, rng_for};
use crate::simulate::arrivals::Arrivals;
use crate::simulate::batches::{self, BatchParams};
use crate::simulate::live::{self, Hooks, LiveParams, Visit};
use crate::simulate::live_outcome::LiveTruth;
use crate::simulate::methods::DEFAULT_METHODS;
use crate::simulate::report::{BatchRun, Header, LiveRun, Report, Rows, Runs};
use crate::simulate::{Method, Workload, plot};
use crate::units::Seconds;

/// Shipped scenarios by name.
const SHIPPED: [(&str, &str); 2] = [
    ("routerbench", include_str!("../../scenarios/routerbench.yaml")),
    ("six-node", include_str!("../../scenarios/six-node.yaml")),
];

/// Longest window, as in the configuration.
const WINDOW_MS_MAX: f64 = 1_000.0;

/// Streams of the seed that arrival times and their rows are drawn from; batches use the low ones.
const ARRIVAL_STREAM: u64 = 1 << 40;
const ROW_STREAM: u64 = ARRIVAL_STREAM + 1;

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
        Runs::Live(live_runs(args, &workload, &methods, &settings, &progress)?)
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

fn methods(args: &SimulateArgs) -> anyhow::Result<Vec<Method>> {
    let mut params = PolicyParams::default();
    params.memetic.evaluations_max = Some(args.evaluations);
    let defaults = || DEFAULT_METHODS.map(str::to_owned).to_vec();
    let names = if args.policies.is_empty() { defaults() } else { args.policies.clone() };
    let mut methods = Vec::with_capacity(names.len());
    for name in &names {
        if methods.iter().any(|method: &Method| method.name() == name) {
            bail!("policy `{name}` is given twice");
        }
        methods.push(Method::named(name, params)?);
    }
    if let Some(sweep) = &args.sweep {
        let (name, values) = sweep.split_once('=').context("--sweep wants NAME=X,Y")?;
        for value in values.split(',') {
            let value = value.parse().with_context(|| format!("--sweep: `{value}` is not a number"))?;
            methods.push(Method::paper_variant(name, value)?);
        }
    }
    Ok(methods)
}

/// What the arguments mean for the scenario.
struct Settings {
    is_live: bool,
    sweep: Option<&'static str>,
    weights: Weights,
    costs: CostModels,
    live: LiveParams,
    arrivals: Arrivals,
}

impl Settings {
    fn new(args: &SimulateArgs, scenario: &Scenario, methods: &[Method]) -> anyhow::Result<Self> {
        let arrivals = arrivals(&args.live.arrivals)?;
        let lists = [
            ("batch_size", args.batches.batch_size.len()),
            ("copies", args.batches.copies.len()),
            ("arrivals_per_s", args.live.arrivals_per_s.len()),
            ("load", args.live.load.len()),
        ];
        let mut swept = lists.into_iter().filter(|(_, n)| *n > 1).map(|(name, _)| name);
        let sweep = swept.next();
        if let (Some(one), Some(other)) = (sweep, swept.next()) {
            bail!("{one} and {other} are both lists; only one of them may be");
        }
        let is_listed = matches!(arrivals, Arrivals::At(_));
        let is_live = is_listed || !args.live.arrivals_per_s.is_empty() || !args.live.load.is_empty();
        if is_listed && !(args.live.arrivals_per_s.is_empty() && args.live.load.is_empty()) {
            bail!(
                "arrival times from a file have a rate of their own; leave out --arrivals-per-s and --load"
            );
        }
        if let Some(method) = methods.iter().find(|method| is_live && method.is_batch_only()) {
            bail!("{} is for independent batches only", method.name());
        }
        if is_live && args.batches.batch_size.len() > 1 {
            bail!("--batch-size is for independent batches; leave it out with --arrivals-per-s or --load");
        }
        let weights = args.weights.unwrap_or(scenario.routing.weights);
        let costs = CostModels {
            completion: CompletionModel::Fifo,
            time: TimeTerm::Makespan,
            energy: scenario.routing.energy_model,
        };
        let live = LiveParams {
            window: window(args, scenario)?,
            objective: scenario.routing.objective,
            costs,
            weights,
            seed: args.seed,
        };
        Ok(Self { is_live, sweep, weights, costs, live, arrivals })
    }
}

fn window(args: &SimulateArgs, scenario: &Scenario) -> anyhow::Result<WindowParams> {
    let mut window = scenario.window;
    if let Some(ms) = args.live.window_ms {
        if !(0.0..=WINDOW_MS_MAX).contains(&ms) {
            bail!("--window-ms is {ms}; allowed are 0 to {WINDOW_MS_MAX}");
        }
        window.max_wait = Seconds::from_ms(ms);
    }
    window.close = args.live.window.unwrap_or(window.close);
    Ok(window)
}

fn arrivals(name: &str) -> anyhow::Result<Arrivals> {
    let path = match name {
        "poisson" => return Ok(Arrivals::Poisson),
        "bursty" => return Ok(Arrivals::Bursty),
        path => Path::new(path),
    };
    let text = std::fs::read_to_string(path).with_context(|| {
        format!("--arrivals is `{name}`: neither `poisson` nor `bursty` nor a file that can be read")
    })?;
    let mut times = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let first = line.split(',').next().unwrap_or_default().trim();
        match first.parse::<f64>() {
            Ok(at_s) if at_s.is_finite() && at_s >= 0.0 => times.push(Seconds(at_s)),
            // A line of titles.
            Err(_) if number == 1 => {}
            _ if first.is_empty() => {}
            _ => bail!("{name}: line {number}: `{first}` is not a time in seconds from 0 on"),
        }
    }
    if times.is_empty() {
        bail!("{name}: no arrival times; one in seconds per line is wanted");
    }
    times.sort_by(|a, b| a.get().total_cmp(&b.get()));
    Ok(Arrivals::At(times))
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
    let mut is_synthetic = trace.fill_lengths(&scenario.trace_models);
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
            is_synthetic |= profile.fill_lengths(&scenario.trace_models);
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
    if scenario.routing.completion != CompletionModel::Fifo || scenario.routing.time != TimeTerm::Makespan {
        assumptions.push(
            "planned and served first in, first out with a batch speed-up (completion: fifo, time: makespan)"
                .into(),
        );
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

fn live_runs(
    args: &SimulateArgs,
    workload: &Workload,
    methods: &[Method],
    settings: &Settings,
    progress: &Progress,
) -> anyhow::Result<Vec<LiveRun>> {
    let live = &args.live;
    let n_runs = live.arrivals_per_s.len().max(live.load.len()).max(1) * args.batches.copies.len();
    let stage = progress.stage("requests", n_runs * methods.len() * live.requests as usize);
    let mut runs = Vec::with_capacity(n_runs);
    for copies in &args.batches.copies {
        let workload = workload.replicated(*copies as usize);
        let truth = LiveTruth::new(&workload, &settings.live)?;
        let capacity = truth.capacity_per_s();
        for rate in rates(args, settings, capacity) {
            let visits = visits(args, settings, &workload, rate);
            let mut outcomes = Vec::with_capacity(methods.len());
            for method in methods {
                let mut on_done = || stage.advance();
                let mut hooks = Hooks { clock: &thread_cpu_time, on_done: &mut on_done };
                let run = live::run(&workload, &visits, method, &settings.live, &mut hooks)?;
                outcomes.push(truth.outcome(&workload, method, &settings.live, &run).into());
            }
            runs.push(LiveRun {
                arrivals_per_s: rate,
                load: rate / capacity,
                arrivals: live.arrivals.clone(),
                requests: visits.len(),
                destinations: workload.destinations().len(),
                window: settings.live.window.close.as_str(),
                window_ms: settings.live.window.max_wait.get() * 1e3,
                methods: outcomes,
            });
        }
    }
    Ok(runs)
}

/// Mean arrivals a second of each run.
fn rates(args: &SimulateArgs, settings: &Settings, capacity_per_s: f64) -> Vec<f64> {
    if let Arrivals::At(times) = &settings.arrivals {
        let last = times.last().map_or(0.0, |at| at.get());
        return vec![times.len() as f64 / last.max(f64::MIN_POSITIVE)];
    }
    let loads = args.live.load.iter().map(|load| load * capacity_per_s);
    args.live.arrivals_per_s.iter().copied().chain(loads).collect()
}

/// Arrival times, and rows in rounds of random order so that each is asked about equally often.
fn visits(args: &SimulateArgs, settings: &Settings, workload: &Workload, rate: f64) -> Vec<Visit> {
    use rand::seq::SliceRandom as _;
    let n = args.live.requests as usize;
    let times = settings.arrivals.times(n, rate, &mut rng_for(args.seed, ARRIVAL_STREAM));
    let mut rng = rng_for(args.seed, ROW_STREAM);
    let mut round: Vec<usize> = Vec::new();
    let mut visits = Vec::with_capacity(times.len());
    for at in times {
        if round.is_empty() {
            round = (0..workload.requests().len()).collect();
            round.shuffle(&mut rng);
        }
        visits.extend(round.pop().map(|row| Visit { at, row }));
    }
    visits
}

fn write_charts(folder: &Path, report: &Report, progress: &Progress) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make folder {}", folder.display()))?;
    for chart in plot::charts(report) {
        let path = folder.join(chart.file_name);
        std::fs::write(&path, chart.svg).with_context(|| format!("cannot write {}", path.display()))?;
        progress.say(&format!("chart {}", path.display()));
    }
    Ok(())
}

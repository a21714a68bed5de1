//! What the arguments mean for a scenario.

use anyhow::{Context, bail};

use super::args::SimulateArgs;
use super::arrivals::arrivals;
use crate::config::Scenario;
use crate::domain::Weights;
use crate::planning::WindowParams;
use crate::routing::{CompletionModel, CostModels, PolicyParams, TimeTerm};
use crate::simulate::Method;
use crate::simulate::arrivals::Arrivals;
use crate::simulate::live::LiveParams;
use crate::simulate::methods::{DEFAULT_METHODS, MATCHED_METHODS};
use crate::units::Seconds;

/// Longest window, as in the configuration.
const WINDOW_MS_MAX: f64 = 1_000.0;

/// The methods to compare, each once.
pub(super) fn methods(args: &SimulateArgs) -> anyhow::Result<Vec<Method>> {
    let mut params = PolicyParams::default();
    params.memetic.evaluations_max = Some(args.evaluations);
    let defaults: &[&str] = if args.live.match_quality { &MATCHED_METHODS } else { &DEFAULT_METHODS };
    let mut names = args.policies.clone();
    if names.is_empty() {
        names.extend(defaults.iter().map(|name| (*name).to_owned()));
    }
    if args.live.match_quality && !names.contains(&args.live.reference) {
        names.push(args.live.reference.clone());
    }
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
pub(super) struct Settings {
    pub(super) is_live: bool,
    pub(super) sweep: Option<&'static str>,
    pub(super) weights: Weights,
    pub(super) costs: CostModels,
    pub(super) live: LiveParams,
    pub(super) arrivals: Arrivals,
    /// Which of the methods the others are compared with at equal score, if they are.
    pub(super) reference: Option<usize>,
    /// Seeds of a comparison at equal score, 1 without one.
    pub(super) n_seeds: usize,
}

impl Settings {
    pub(super) fn new(args: &SimulateArgs, scenario: &Scenario, methods: &[Method]) -> anyhow::Result<Self> {
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
        let matching = args.live.match_quality;
        if matching && !is_live {
            bail!("--match-quality compares runs over time; say --load or --arrivals-per-s");
        }
        let weights = args.weights.unwrap_or(scenario.routing.weights);
        let others = weights.cost + weights.energy + weights.time;
        if matching && !(weights.quality > 0.0 && others > 0.0) {
            bail!("--match-quality varies the weight of quality against the others; neither may be 0");
        }
        let is_reference = |method: &Method| method.name() == args.live.reference;
        let reference = methods.iter().position(is_reference).filter(|_| matching);
        let costs = CostModels {
            completion: CompletionModel::Fifo,
            time: TimeTerm::Makespan,
            energy: scenario.routing.energy_model,
        };
        let live = LiveParams {
            window: window(args, scenario)?,
            objective: scenario.routing.objective,
            costs: CostModels {
                completion: scenario.routing.completion,
                time: scenario.routing.time,
                energy: scenario.routing.energy_model,
            },
            engine: args.live.engine.unwrap_or(scenario.engine),
            weights,
            seed: args.seed,
        };
        let n_seeds = if matching { args.live.seeds as usize } else { 1 };
        Ok(Self { is_live, sweep, weights, costs, live, arrivals, reference, n_seeds })
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

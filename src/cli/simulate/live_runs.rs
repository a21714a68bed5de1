//! Arrivals over time: every method, seed and quality weight of a comparison, on all cores.

use rand::seq::SliceRandom as _;

use super::args::SimulateArgs;
use super::parallel;
use super::settings::Settings;
use crate::cli::progress::{Progress, Stage};
use crate::cpu_time::thread_cpu_time;
use crate::domain::Weights;
use crate::routing::rng_for;
use crate::simulate::arrivals::Arrivals;
use crate::simulate::live::{self, Hooks, LiveParams, Visit};
use crate::simulate::live_outcome::{LiveOutcome, LiveTruth};
use crate::simulate::matched::{QUALITY_FACTORS, Sweep, SweepPoint, UNIT_FACTOR, compare};
use crate::simulate::report::{Comparison, LiveRun};
use crate::simulate::{Method, SimulateError, Workload};

/// Streams of a seed that arrival times and their rows are drawn from; solvers use the low ones.
const ARRIVAL_STREAM: u64 = 1 << 40;
const ROW_STREAM: u64 = ARRIVAL_STREAM + 1;

/// One run of one method.
#[derive(Debug, Clone, Copy)]
struct Task {
    /// Index of the seed.
    seed: usize,
    /// Index of the method.
    method: usize,
    /// Multiple of the quality weight.
    factor: f64,
}

/// What all runs of a command share.
pub(super) struct LiveCommand<'a> {
    pub(super) args: &'a SimulateArgs,
    pub(super) methods: &'a [Method],
    pub(super) settings: &'a Settings,
}

impl LiveCommand<'_> {
    /// One comparison for each fleet size and load asked for.
    pub(super) fn run(&self, workload: &Workload, progress: &Progress) -> anyhow::Result<Vec<LiveRun>> {
        let (live, copies) = (&self.args.live, &self.args.batches.copies);
        let tasks = self.tasks();
        let n_runs = live.arrivals_per_s.len().max(live.load.len()).max(1) * copies.len();
        let stage = progress.stage("requests", n_runs * tasks.len() * live.requests as usize);
        let mut runs = Vec::with_capacity(n_runs);
        for copies in copies {
            let workload = workload.replicated(*copies as usize);
            let truth = LiveTruth::new(&workload, &self.settings.live)?;
            for rate in self.rates(truth.capacity_per_s()) {
                let scene = Scene { command: self, workload: &workload, truth: &truth, rate };
                runs.push(scene.compare(&tasks, &stage)?);
            }
        }
        Ok(runs)
    }

    fn seeds(&self) -> impl Iterator<Item = u64> {
        let first = self.args.seed;
        (0..self.settings.n_seeds as u64).map(move |i| first.wrapping_add(i))
    }

    /// Every method at every weight for every seed; a method that does not heed weights, at one.
    fn tasks(&self) -> Vec<Task> {
        let is_swept = self.settings.reference.is_some();
        let mut tasks = Vec::new();
        for seed in 0..self.settings.n_seeds {
            for (method, of) in self.methods.iter().enumerate() {
                let factors: &[f64] =
                    if is_swept && of.heeds_weights() { &QUALITY_FACTORS } else { &[UNIT_FACTOR] };
                tasks.extend(factors.iter().map(|factor| Task { seed, method, factor: *factor }));
            }
        }
        tasks
    }

    /// Mean arrivals a second of each run.
    fn rates(&self, capacity_per_s: f64) -> Vec<f64> {
        if let Arrivals::At(times) = &self.settings.arrivals {
            let last = times.last().map_or(0.0, |at| at.get());
            return vec![times.len() as f64 / last.max(f64::MIN_POSITIVE)];
        }
        let loads = self.args.live.load.iter().map(|load| load * capacity_per_s);
        self.args.live.arrivals_per_s.iter().copied().chain(loads).collect()
    }
}

/// One fleet under one load.
struct Scene<'a> {
    command: &'a LiveCommand<'a>,
    workload: &'a Workload,
    truth: &'a LiveTruth,
    rate: f64,
}

impl Scene<'_> {
    fn compare(&self, tasks: &[Task], stage: &Stage) -> anyhow::Result<LiveRun> {
        let LiveCommand { args, methods, settings } = self.command;
        let visits: Vec<Vec<Visit>> = self.command.seeds().map(|seed| self.visits(seed)).collect();
        let outcomes = parallel::map(tasks, |task| self.outcome(task, &visits[task.seed], stage));
        let outcomes: Vec<LiveOutcome> = outcomes.into_iter().collect::<Result<_, SimulateError>>()?;
        let n_requests = visits.first().map_or(0, Vec::len);
        let is_shown = |task: &Task| task.seed == 0 && (task.factor - UNIT_FACTOR).abs() < f64::EPSILON;
        let shown = tasks.iter().zip(&outcomes).filter(|(task, _)| is_shown(task));
        let sweep = |m: usize| Sweep {
            method: methods[m].name().to_owned(),
            seeds: (0..visits.len())
                .map(|seed| {
                    let of =
                        tasks.iter().zip(&outcomes).filter(|(task, _)| (task.seed, task.method) == (seed, m));
                    of.map(|(task, outcome)| SweepPoint::new(task.factor, outcome, n_requests)).collect()
                })
                .collect(),
        };
        let comparison = settings.reference.map(|reference| {
            let sweeps: Vec<Sweep> = (0..methods.len()).map(sweep).collect();
            let others = sweeps.iter().enumerate().filter(|(m, _)| *m != reference);
            Comparison {
                matched: others.map(|(_, other)| compare(&sweeps[reference], other)).collect(),
                sweeps: sweeps.iter().map(Sweep::mean).collect(),
            }
        });
        Ok(LiveRun {
            arrivals_per_s: self.rate,
            load: self.rate / self.truth.capacity_per_s(),
            arrivals: args.live.arrivals.clone(),
            engine: settings.live.engine.as_str(),
            requests: n_requests,
            destinations: self.workload.destinations().len(),
            window: settings.live.window.close.as_str(),
            window_ms: settings.live.window.max_wait.get() * 1e3,
            seeds: settings.n_seeds,
            methods: shown.map(|(_, outcome)| outcome.clone().into()).collect(),
            comparison,
        })
    }

    fn outcome(&self, task: &Task, visits: &[Visit], stage: &Stage) -> Result<LiveOutcome, SimulateError> {
        let (settings, method) = (self.command.settings, &self.command.methods[task.method]);
        let params = LiveParams {
            weights: with_quality(settings.live.weights, task.factor),
            seed: settings.live.seed.wrapping_add(task.seed as u64),
            ..settings.live
        };
        let mut on_done = || stage.advance();
        let mut hooks = Hooks { clock: &thread_cpu_time, on_done: &mut on_done };
        let run = live::run(self.workload, visits, method, &params, &mut hooks)?;
        // Realised J under the same weights for all, whatever each was steered by.
        Ok(self.truth.outcome(self.workload, method, &settings.live, &run))
    }

    /// Arrival times, and rows in rounds of random order so that each is asked about equally often.
    fn visits(&self, seed: u64) -> Vec<Visit> {
        let n = self.command.args.live.requests as usize;
        let times = self.command.settings.arrivals.times(n, self.rate, &mut rng_for(seed, ARRIVAL_STREAM));
        let mut rng = rng_for(seed, ROW_STREAM);
        let mut round: Vec<usize> = Vec::new();
        let mut visits = Vec::with_capacity(times.len());
        for at in times {
            if round.is_empty() {
                round = (0..self.workload.requests().len()).collect();
                round.shuffle(&mut rng);
            }
            visits.extend(round.pop().map(|row| Visit { at, row }));
        }
        visits
    }
}

/// The weights with that of quality multiplied, scaled to sum to 1.
fn with_quality(weights: Weights, factor: f64) -> Weights {
    if (factor - UNIT_FACTOR).abs() < f64::EPSILON {
        return weights;
    }
    Weights { quality: weights.quality * factor, ..weights }.normalised().unwrap_or(weights)
}

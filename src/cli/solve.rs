//! `solve`: one problem file, one policy, one JSON answer.

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;

use crate::cpu_time::thread_cpu_time;
use crate::domain::DestinationOrd;
use crate::problem_file::{self, ProblemFile};
use crate::routing::{PolicyKind, PolicyParams, RoutingDecision, for_kind, rng_for};

/// Where problems come from.
const AFTER_HELP: &str = "\
Example, the batch of a recent request of a running router:
  curl -s 127.0.0.1:9090/admin/v1/decisions/REQUEST_ID | jq .problem > problem.json
  cema-router solve --problem problem.json --policy greedy";

/// Assign the requests of a problem file and print the decision as one line of JSON
///
/// Exits with 1 and the reason if the file is not a valid problem, or if the policy needs something the
/// problem does not have.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct SolveArgs {
    /// Problem file, cema-problem/1: tables, destinations and an objective
    ///
    /// Required are `schema`, `objective` (`weights`, and `bounds` [min, max] per term), `destinations` (`id`, `backlog_s`,
    /// `batch_speedup`, `network_s`) and the tables `quality_loss`, `cost_usd`, `energy_j`, `service_s`, a row per request
    /// and a column per destination. With `sum` the time term is the sum of completion times instead of the makespan:
    /// `prefill_s` and `decode_s` (tables), `others_time_weight`, and per destination `rtt_s`, `price_per_s` and
    /// `timeline` (`model` fifo or slots with what is there). The `problem` of a decision at the admin API is such a file.
    #[arg(long, value_name = "F.json")]
    pub problem: PathBuf,

    /// Routing policy
    #[arg(long, default_value = "memetic", value_parser = policy_parser())]
    pub policy: PolicyKind,

    /// CPU time the policy's search may use on its thread, in milliseconds; baselines do not search
    #[arg(long, value_name = "X", default_value_t = 4.0)]
    pub budget_ms: f64,

    /// Seed of the random numbers; the same seed takes the same path
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

pub(super) fn policy_parser() -> impl TypedValueParser<Value = PolicyKind> {
    let names = PolicyKind::ALL.iter().map(|kind| kind.as_str());
    PossibleValuesParser::new(names).try_map(|name| PolicyKind::from_name(&name).ok_or("unknown policy"))
}

#[derive(Serialize)]
struct Answer<'a> {
    policy: &'static str,
    assignment: Vec<&'a str>,
    objective: f64,
    raw: Raw,
    lower_bound: Option<f64>,
    certified_gap: Option<f64>,
    cpu_ms: f64,
    elapsed_ms: f64,
    generations: u64,
    evaluations: u64,
    seed: u64,
}

#[derive(Serialize)]
struct Raw {
    quality: f64,
    cost: f64,
    energy: f64,
    time: f64,
}

/// Runs the command: the answer goes to standard output.
///
/// # Errors
/// A file that cannot be read or is no problem, a policy that cannot solve it, a closed output.
pub fn run(args: &SolveArgs) -> anyhow::Result<ExitCode> {
    if !(args.budget_ms.is_finite() && args.budget_ms >= 0.0) {
        bail!("--budget-ms is {}; it must be a number of milliseconds, not negative", args.budget_ms);
    }
    let file = read(&args.problem)?;
    let (wall, cpu) = (Instant::now(), thread_cpu_time());
    let budget_s = args.budget_ms / 1e3;
    let mut stop = || (thread_cpu_time() - cpu).get() >= budget_s;
    let policy = for_kind(args.policy, &PolicyParams::default());
    let mut rng = rng_for(args.seed, 0);
    let decision = policy.route(&file.problem, &file.objective, &mut rng, &mut stop)?;
    let cpu_ms = (thread_cpu_time() - cpu).get() * 1e3;
    let elapsed_ms = wall.elapsed().as_secs_f64() * 1e3;
    let answer = answer(args, &file, &decision, [cpu_ms, elapsed_ms]);
    let mut line = serde_json::to_string(&answer)?;
    line.push('\n');
    std::io::stdout().lock().write_all(line.as_bytes()).context("cannot write the decision")?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> anyhow::Result<ProblemFile> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
    let bytes = file.metadata().with_context(|| format!("cannot read {shown}"))?.len();
    if bytes > problem_file::FILE_BYTES_MAX {
        bail!("{shown} has {bytes} bytes; problem files may have {}", problem_file::FILE_BYTES_MAX);
    }
    problem_file::from_reader(BufReader::new(file)).with_context(|| shown.to_string())
}

fn answer<'a>(
    args: &SolveArgs,
    file: &'a ProblemFile,
    decision: &RoutingDecision,
    [cpu_ms, elapsed_ms]: [f64; 2],
) -> Answer<'a> {
    let id = |d: &DestinationOrd| file.problem.destination(*d).id.as_str();
    Answer {
        policy: args.policy.as_str(),
        assignment: decision.assignment.iter().map(id).collect(),
        objective: decision.objective,
        raw: Raw {
            quality: decision.raw.quality_loss,
            cost: decision.raw.cost.get(),
            energy: decision.raw.energy.get(),
            time: decision.raw.time.get(),
        },
        lower_bound: decision.lower_bound,
        certified_gap: decision.certified_gap,
        cpu_ms,
        elapsed_ms,
        generations: decision.generations,
        evaluations: decision.evaluations,
        seed: args.seed,
    }
}

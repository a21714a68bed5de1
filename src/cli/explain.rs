//! `cema-router explain`: why one request went where it went, from the decision log.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::json;

use super::replay::LogArgs;
use crate::decision::explanation::Explanation;
use crate::decision::log_file::{self, Entry, LogError, RequestRecord};
use crate::decision::record::PlanRecord;

/// How it is used.
const AFTER_HELP: &str = "\
Examples (the configuration needs `decision_log`):
  cema-router explain req_01ab --config config.yaml
  cema-router explain req_01ab --log decisions.jsonl --json | jq .problem > problem.json";

/// Say why a request went where it went
///
/// The plan that placed it last is read from the decision log and decided again, the search stopped where it was: every
/// destination with what was predicted of the request there, what its choice would have added to the objective J with all
/// others as planned, term by term, what excluded the others, what was outstanding where, and what a greedy choice would
/// have been. `GET /admin/v1/decisions/ID` of a running router says the same of its latest decisions.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ExplainArgs {
    /// The request: the `x-request-id` of its answer.
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    log: LogArgs,
    /// One JSON object, with the batch as a problem file in `problem`, for `solve`.
    #[arg(long)]
    json: bool,
}

/// What the log says of a request.
#[derive(Default)]
struct Found {
    plan: Option<Box<PlanRecord>>,
    n_plans: usize,
    request: Option<Box<RequestRecord>>,
}

/// Runs the command: the explanation goes to standard output.
///
/// # Errors
/// A log that cannot be read, a request that is not in it or has no situation.
pub fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let log: PathBuf = args.log.path()?;
    let found = find(args, &log)?;
    let Some(plan) = found.plan else {
        bail!(
            "no plan in {} placed request `{}`: is the id that of its x-request-id?",
            log.display(),
            args.id
        );
    };
    let again = plan.solve_again()?;
    let is_exact = plan.is_reproduced_by(&again);
    let explanation = Explanation::new(&again, &args.id).context("the plan did not place it")?;
    let mut out = std::io::stdout().lock();
    let actual = found.request.as_ref().map(|request| {
        json!({
            "outcome": request.outcome,
            "destination": request.destination,
            "attempts": request.attempts,
            "seconds": request.actual.seconds,
            "since_arrival_s": request.actual.since_arrival_s,
            "first_content_s": request.actual.first_content_s,
            "completion_tokens": request.actual.completion_tokens,
            "usd": request.actual.usd,
            "modelled_joules": request.actual.modelled_joules,
        })
    });
    if args.json {
        let whole: BTreeMap<&str, serde_json::Value> = [
            ("explanation", serde_json::to_value(&explanation)?),
            ("reproduced", is_exact.into()),
            ("plans", found.n_plans.into()),
            ("actual", actual.into()),
        ]
        .into();
        writeln!(out, "{}", serde_json::to_string(&whole)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    write!(out, "{}", explanation.to_text())?;
    if found.n_plans > 1 {
        writeln!(out, "It was planned {} times; this is the last plan that placed it.", found.n_plans)?;
    }
    if !is_exact {
        writeln!(
            out,
            "This version decides the plan otherwise than it was logged: read the above with care."
        )?;
    }
    if let Some(actual) = actual {
        writeln!(out, "What came of it: {actual}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn find(args: &ExplainArgs, log: &Path) -> anyhow::Result<Found> {
    let mut found = Found::default();
    for file in log_file::files_of(log) {
        log_file::read(&file, |entry| {
            match entry {
                Entry::Plan(plan) if plan.requests.iter().any(|placed| placed.id == args.id) => {
                    found.n_plans += 1;
                    found.plan = Some(plan);
                }
                Entry::Request(request) if request.id == args.id => found.request = Some(request),
                _ => {}
            }
            Ok::<_, LogError>(())
        })?;
    }
    Ok(found)
}

//! `quality prune`: deleting prompts and scores.

use std::io::Write;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;

use super::StoreArgs;
use crate::profiler::quality::store::{PruneFilter, QualityStore};

/// Delete prompts and scores
///
/// What meets all of the conditions given goes, and the file shrinks. Without --yes nothing is
/// deleted and the numbers are shown. `quality export` first makes it undoable.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct PruneArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Prompts of this benchmark; an empty name means prompts without one
    #[arg(long, value_name = "NAME")]
    benchmark: Option<String>,

    /// Prompts from this source
    #[arg(long, value_name = "NAME")]
    source: Option<String>,

    /// Prompts under this licence
    #[arg(long, value_name = "NAME")]
    license: Option<String>,

    /// The prompt with this id
    #[arg(long, value_name = "ID")]
    id: Option<String>,

    /// Only the scores of this model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// Really delete
    #[arg(long)]
    yes: bool,
}

pub(super) fn run(args: &PruneArgs) -> anyhow::Result<ExitCode> {
    let filter = PruneFilter {
        benchmark: args.benchmark.clone(),
        source: args.source.clone(),
        license: args.license.clone(),
        id: args.id.clone(),
        model: args.model.clone(),
    };
    if filter.is_empty() {
        bail!("say what to delete: --benchmark, --source, --license, --id or --model");
    }
    let mut store = QualityStore::open(&args.store.store)?;
    let (scores, prompts) = if args.yes { store.prune(&filter)? } else { store.count_prunable(&filter)? };
    let verb = if args.yes { "deleted" } else { "would be deleted; --yes deletes them" };
    writeln!(std::io::stdout().lock(), "{scores} scores and {prompts} prompts {verb}")?;
    if scores == 0 && prompts == 0 {
        bail!("nothing meets these conditions; `quality stats` names benchmarks and models");
    }
    Ok(ExitCode::SUCCESS)
}

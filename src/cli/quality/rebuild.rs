//! `quality rebuild`: the vectors of every prompt again, by the model at hand.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;

use super::{EmbedderArgs, StoreArgs};
use crate::cli::progress::Progress;
use crate::profiler::quality::QualityParams;
use crate::profiler::quality::embedder::{self, embed_all};
use crate::profiler::quality::estimator::{EXACT_ROWS_MAX, Estimator};
use crate::profiler::quality::evaluation::check::fleet_of;
use crate::profiler::quality::store::QualityStore;

/// Prompts per transaction.
const CHUNK_ROWS: usize = 64;

/// Make the vectors of all prompts again, with another model file for example
///
/// Embeddings of different model files are never compared: after changing `embedder.model`, the
/// store has to be rebuilt. Routers go on with the old vectors until they are restarted. An
/// interrupted rebuild leaves the store as it was; run it again to go on.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct RebuildArgs {
    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    embedder: EmbedderArgs,
}

pub(super) fn run(args: &RebuildArgs) -> anyhow::Result<ExitCode> {
    let mut store = QualityStore::open(&args.store.store)?;
    let mut loaded = embedder::load(&args.embedder.params())?;
    let progress = Progress::new();
    let mut rebuild = store.rebuild(&loaded.model_sha256)?;
    let mut n_made = 0;
    // Prompts that are imported meanwhile make another round.
    loop {
        let stage = progress.stage("embedding prompts", rebuild.n_missing()?);
        loop {
            let texts = rebuild.missing(CHUNK_ROWS)?;
            if texts.is_empty() {
                break;
            }
            let borrowed: Vec<&str> = texts.iter().map(String::as_str).collect();
            let embeddings = embed_all(&borrowed, &mut loaded.workers, &|| stage.advance())?;
            n_made += texts.len();
            rebuild.stage(&texts.into_iter().zip(embeddings).collect::<Vec<_>>())?;
        }
        if rebuild.finish()? {
            break;
        }
    }
    drop(rebuild);
    build_index(&store, &args.store.store, &progress)?;
    let n = store.stats()?.prompts;
    writeln!(
        std::io::stdout().lock(),
        "{}: {n} prompts by model.onnx {:.12}…, {n_made} embedded now",
        args.store.store.display(),
        loaded.model_sha256
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Of a store too large to scan, so that the router does not have to. It is found by a router whose configuration has the
/// store's models and the default mode; another makes its own at its start.
fn build_index(store: &QualityStore, dir: &Path, progress: &Progress) -> anyhow::Result<()> {
    let models = store.models()?;
    let profile = store.load_profile(&models)?;
    if profile.len() > EXACT_ROWS_MAX {
        progress.say(&format!("building the index of {} prompts", profile.len()));
        let estimator = Estimator::new(profile, &fleet_of(&models), &QualityParams::default());
        estimator.prepare(Some(dir)).map_err(anyhow::Error::msg)?;
    }
    Ok(())
}

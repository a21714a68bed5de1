//! `quality export`: the store as a file that `quality import` reads.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use super::StoreArgs;
use crate::cli::progress::Progress;
use crate::profiler::quality::store::{QualityStore, StoredPrompt};

/// Write every prompt with its scores, one JSON object per line
///
/// `quality import` reads the file, here or elsewhere; embeddings are made again there.
#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// File to write, gzip where its name ends in .gz [default: standard output]
    #[arg(long, value_name = "F.jsonl[.gz]")]
    out: Option<PathBuf>,
}

/// A row of the file.
#[derive(Serialize)]
struct Row<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    benchmark: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    license: Option<&'a str>,
    prompt: &'a str,
    models: serde_json::Map<String, serde_json::Value>,
}

pub(super) fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let store = QualityStore::open(&args.store.store)?;
    let n = usize::try_from(store.stats()?.prompts)?;
    let progress = Progress::new();
    let stage = progress.stage("writing prompts", n);
    let Some(path) = &args.out else {
        write_all(&store, &mut BufWriter::new(std::io::stdout().lock()), &|| stage.advance())?;
        return Ok(ExitCode::SUCCESS);
    };
    // Whole or not there: what is under way has another name.
    let mut partial = path.clone().into_os_string();
    partial.push(".partial");
    let open = || File::create(&partial).map(BufWriter::new);
    let mut file = open().with_context(|| format!("cannot write {}", path.display()))?;
    if path.extension().is_some_and(|extension| extension == "gz") {
        let mut encoder = GzEncoder::new(file, Compression::default());
        write_all(&store, &mut encoder, &|| stage.advance())?;
        file = encoder.finish()?;
    } else {
        write_all(&store, &mut file, &|| stage.advance())?;
    }
    file.flush()?;
    file.get_ref().sync_all()?;
    std::fs::rename(&partial, path).with_context(|| format!("cannot write {}", path.display()))?;
    drop(stage);
    progress.say(&format!("{n} prompts in {}", path.display()));
    Ok(ExitCode::SUCCESS)
}

fn write_all(store: &QualityStore, out: &mut dyn Write, on_row: &dyn Fn()) -> anyhow::Result<()> {
    store.for_each_prompt(|prompt| -> anyhow::Result<()> {
        serde_json::to_writer(&mut *out, &row(prompt))?;
        out.write_all(b"\n")?;
        on_row();
        Ok(())
    })?;
    Ok(out.flush()?)
}

fn row(prompt: &StoredPrompt) -> Row<'_> {
    let models = prompt.scores.iter().map(|score| {
        let mut figures = serde_json::Map::new();
        figures.insert("score".into(), score.score.into());
        if let Some(tokens) = score.completion_tokens {
            figures.insert("completion_tokens".into(), tokens.into());
        }
        if let Some(cost) = score.cost_usd {
            figures.insert("cost_usd".into(), cost.into());
        }
        (score.model.clone(), figures.into())
    });
    Row {
        id: &prompt.id,
        source: prompt.source.as_deref(),
        benchmark: prompt.benchmark.as_deref(),
        task: prompt.task.as_deref(),
        license: prompt.license.as_deref(),
        prompt: &prompt.text,
        models: models.collect(),
    }
}

//! `cema-router man`: manual pages of every command.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};

use super::Cli;

/// How to read them.
const AFTER_HELP: &str = "\
Example:
  cema-router man ~/.local/share/man/man1 && man cema-router";

/// Write manual pages, one for each command, into a folder
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ManArgs {
    /// The folder; made if there is none
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Writes the pages.
///
/// # Errors
/// Where the folder cannot be written to.
pub fn run(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let folder = &args.folder;
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
        .with_context(|| format!("cannot write manual pages into {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

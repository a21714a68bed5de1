//! `cema-router completions`: scripts that complete its command line in a shell.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::Cli;

/// Where shells look.
const AFTER_HELP: &str = "\
Examples:
  cema-router completions bash > ~/.local/share/bash-completion/completions/cema-router
  cema-router completions zsh > ~/.zfunc/_cema-router      # a folder of $fpath
  cema-router completions fish > ~/.config/fish/completions/cema-router.fish";

/// Print a script that completes commands and options in a shell
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script.
///
/// # Errors
/// Where it cannot be written.
pub fn run(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "cema-router", &mut script);
    std::io::stdout().lock().write_all(&script).context("cannot write the script")?;
    Ok(ExitCode::SUCCESS)
}

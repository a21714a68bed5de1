//! `cema-router check-config F`: everything wrong with a configuration at once, or a line of what it holds.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::config::{Config, ConfigError};

/// How it is used.
const AFTER_HELP: &str = "\
Examples:
  cema-router check-config config.yaml
  cema-router check-config --without-secrets config.yaml    # in CI, where keys and certificates are not";

/// Check a configuration file and report everything wrong with it at once
///
/// Prints `FILE: ok, …` and ends with exit code 0, or a line `FILE:LINE: KEY: what is wrong` for each fault and ends with
/// exit code 1. Nothing is started and no endpoint is asked. docs/CONFIGURATION.md has every key.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct CheckConfigArgs {
    /// The configuration file.
    #[arg(value_name = "FILE")]
    pub config: PathBuf,
    /// Where the secrets are not, as in CI: environment variables that are not set and TLS files that are not there are
    /// told of and are no faults.
    #[arg(long)]
    pub without_secrets: bool,
}

/// Checks the file: exit code 0 and a summary where it is valid, else 1 and every fault on a line of its own.
///
/// # Errors
/// Where the file cannot be read or the outcome cannot be written.
pub fn run(args: &CheckConfigArgs) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let checked = if args.without_secrets {
        Config::load_without_secrets(&args.config)
    } else {
        Config::load(&args.config).map(|config| (config, Vec::new()))
    };
    match checked {
        Ok((config, absent_secrets)) => {
            for secret in absent_secrets {
                writeln!(out, "{}: not checked: {secret}", args.config.display())?;
            }
            writeln!(out, "{}: ok, {}", args.config.display(), summary(&config))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error @ ConfigError::Invalid { .. }) => {
            writeln!(out, "{error}")?;
            Ok(ExitCode::FAILURE)
        }
        Err(error) => Err(error.into()),
    }
}

fn summary(config: &Config) -> String {
    let counted = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    [
        counted(config.fleet.nodes.len(), "node"),
        counted(config.fleet.endpoints.len(), "endpoint"),
        counted(config.fleet.destinations.len(), "destination"),
        counted(config.virtual_models.len(), "virtual model"),
        counted(config.auth.keys.len(), "API key"),
        format!("listen {}", config.listen),
        format!("policy {}", config.routing.policy),
    ]
    .join(", ")
}

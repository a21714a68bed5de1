//! `cema-router check-config F`: everything wrong with a configuration at once, or a line of what it holds.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::config::{Config, ConfigError};

/// Arguments of `check-config`.
#[derive(Debug, Args)]
pub struct CheckConfigArgs {
    /// The configuration file.
    #[arg(value_name = "FILE")]
    pub config: PathBuf,
}

/// Checks the file: exit code 0 and a summary where it is valid, else 1 and every fault on a line of its own.
///
/// # Errors
/// Where the file cannot be read or the outcome cannot be written.
pub fn run(args: &CheckConfigArgs) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    match Config::load(&args.config) {
        Ok(config) => {
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

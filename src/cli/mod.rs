//! The command line: one file per subcommand.

pub mod check_config;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Infrastructure-aware batch router for mixed fleets of LLM endpoints.
#[derive(Debug, Parser)]
#[command(name = "cema-router", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check a configuration file and report everything wrong with it at once.
    CheckConfig(check_config::CheckConfigArgs),
}

impl Cli {
    /// Runs the chosen subcommand.
    ///
    /// # Errors
    /// What went wrong, for the user to read.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        match &self.command {
            Command::CheckConfig(args) => check_config::run(args),
        }
    }
}

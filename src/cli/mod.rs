//! The command line: one file per subcommand.

pub mod agent;
pub mod check_config;
pub mod explain;
pub mod profile;
mod progress;
pub mod quality;
pub mod replay;
pub mod serve;
pub mod simulate;
pub mod solve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Infrastructure-aware batch router for mixed fleets of LLM endpoints.
///
/// Applications keep their OpenAI SDK and set `base_url` to the router. It gathers concurrent requests and
/// assigns them together, weighing predicted quality, money, energy and completion time.
#[derive(Debug, Parser)]
#[command(name = "cema-router", version, after_help = "Start with `check-config`, then `serve`.")]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the router.
    Serve(serve::ServeArgs),
    /// Check a configuration file and report everything wrong with it at once.
    CheckConfig(check_config::CheckConfigArgs),
    /// Solve a routing problem from a file.
    Solve(solve::SolveArgs),
    // Its own documentation is the help text.
    Simulate(Box<simulate::SimulateArgs>),
    /// Measure what endpoints can do, for the configuration.
    Profile(profile::ProfileArgs),
    /// Fill the quality store and show what it holds.
    Quality(quality::QualityArgs),
    // Its own documentation is the help text.
    Explain(explain::ExplainArgs),
    // Its own documentation is the help text.
    Replay(Box<replay::ReplayArgs>),
    // Its own documentation is the help text.
    Agent(agent::AgentArgs),
}

impl Cli {
    /// Runs the chosen subcommand.
    ///
    /// # Errors
    /// What went wrong, for the user to read.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        match &self.command {
            Command::Serve(args) => serve::run(args),
            Command::CheckConfig(args) => check_config::run(args),
            Command::Solve(args) => solve::run(args),
            Command::Simulate(args) => simulate::run(args),
            Command::Profile(args) => profile::run(args),
            Command::Quality(args) => quality::run(args),
            Command::Explain(args) => explain::run(args),
            Command::Replay(args) => replay::run(args),
            Command::Agent(args) => agent::run(args),
        }
    }
}

//! The command line: one file per subcommand.

pub mod agent;
pub mod check_config;
pub mod completions;
pub mod explain;
pub mod man;
pub mod profile;
mod progress;
pub mod quality;
pub mod replay;
pub mod serve;
pub mod simulate;
pub mod solve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The first steps.
const AFTER_HELP: &str = "\
First steps:
  cema-router check-config config.yaml                 # every fault at once
  cema-router serve --config config.yaml               # base_url http://LISTEN/v1, model auto
  cema-router profile throughput --config config.yaml  # measured speeds beat guessed ones
  cema-router profile quality --config config.yaml --workload gsm8k,mmlu

The least configuration:
  listen: 127.0.0.1:8080
  nodes:
    - endpoints:
        - {url: \"http://10.0.0.5:8000\", kind: vllm, models: [{name: qwen2.5-7b-instruct}]}

`cema-router COMMAND --help` has examples; every key is in docs/CONFIGURATION.md.";

/// Infrastructure-aware batch router for mixed fleets of LLM endpoints.
///
/// Applications keep their OpenAI SDK and set `base_url` to the router. It gathers concurrent requests and
/// assigns them together, weighing predicted quality, money, energy and completion time.
#[derive(Debug, Parser)]
#[command(name = "cema-router", version, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    // The documentation of each one's arguments is its help text; one here would take its place.
    Serve(serve::ServeArgs),
    CheckConfig(check_config::CheckConfigArgs),
    Profile(profile::ProfileArgs),
    Quality(quality::QualityArgs),
    Simulate(Box<simulate::SimulateArgs>),
    Explain(explain::ExplainArgs),
    Replay(Box<replay::ReplayArgs>),
    Solve(solve::SolveArgs),
    Agent(agent::AgentArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
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
            Command::Completions(args) => completions::run(args),
            Command::Man(args) => man::run(args),
        }
    }
}

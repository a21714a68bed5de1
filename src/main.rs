//! The `cema-router` binary: hands over to the command line and turns its outcome into an exit code.

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Assign the requests of a problem file
    Solve(cema_router::cli::solve::SolveArgs),
}

fn main() -> ExitCode {
    let Cli { command: Command::Solve(args) } = Cli::parse();
    cema_router::cli::solve::run(&args).unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "error: {error:#}");
        ExitCode::FAILURE
    })
}

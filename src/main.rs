//! The `cema-router` binary: hands over to the command line and turns its outcome into an exit code.

use std::io::Write as _;
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
    Quality(cema_router::cli::quality::QualityArgs),
}

fn main() -> ExitCode {
    let Cli { command: Command::Quality(args) } = Cli::parse();
    cema_router::cli::quality::run(&args).unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "error: {error:#}");
        ExitCode::FAILURE
    })
}

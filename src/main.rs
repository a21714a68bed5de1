//! The `cema-router` binary: hands over to the command line and turns its outcome into an exit code.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    cema_router::cli::Cli::parse().run().unwrap_or_else(|error| {
        // With stderr gone there is nobody left to tell.
        let _ = writeln!(std::io::stderr(), "error: {error:#}");
        ExitCode::FAILURE
    })
}

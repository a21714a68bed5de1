//! The `cema-router` binary: hands over to the command line and turns its outcome into an exit code.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
// Stands in for malloc, by its feature `override`: a request is a few dozen small allocations that live until its answer
// is over, and glibc's malloc spends a sixth of the router's own time on them. As a `GlobalAlloc` it would go another
// way for each, one that allows for any alignment.
use mimalloc as _;

fn main() -> ExitCode {
    cema_router::cli::Cli::parse().run().unwrap_or_else(|error| {
        // With stderr gone there is nobody left to tell.
        let _ = writeln!(std::io::stderr(), "error: {error:#}");
        ExitCode::FAILURE
    })
}

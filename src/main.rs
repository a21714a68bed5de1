//! The `cema-router` binary: hands over to the command line and turns its outcome into an exit code.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use mimalloc::MiMalloc;

/// A request is a few dozen small allocations that live until its answer is over; glibc's malloc spends a sixth of
/// the router's own time on them.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    cema_router::cli::Cli::parse().run().unwrap_or_else(|error| {
        // With stderr gone there is nobody left to tell.
        let _ = writeln!(std::io::stderr(), "error: {error:#}");
        ExitCode::FAILURE
    })
}

//! The `cema-router` binary: hands over to the command line and turns its outcome into an exit code.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use tikv_jemallocator::Jemalloc;

/// A request is a few dozen small allocations that live until its answer is over. jemalloc hands out again what was freed
/// last, which is still in the processor's cache (docs/PERFORMANCE.md compares allocators).
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    cema_router::cli::Cli::parse().run().unwrap_or_else(|error| {
        // With stderr gone there is nobody left to tell.
        let _ = writeln!(std::io::stderr(), "error: {error:#}");
        ExitCode::FAILURE
    })
}

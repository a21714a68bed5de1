//! Tests without sockets: configuration, commands, simulation, the solver, quality, and the rules of the source tree.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers outside #[test] functions fail the test")]

#[path = "../sockets/support/embedder.rs"]
mod embedder_files;

mod config;
mod packaging;
mod quality;
mod quality_commands;
mod simulate;
mod solve;
mod solver_optima;
mod tidy;

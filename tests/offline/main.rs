//! Tests without sockets: configuration and its reference, commands, simulation, the solver, quality, and the rules of the source tree.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers outside #[test] functions fail the test")]

#[path = "../sockets/support/embedder.rs"]
mod embedder_files;

mod commands;
mod config;
mod configuration_docs;
mod packaging;
mod quality;
mod quality_commands;
mod simulate;
mod solve;
mod solver_optima;
mod tidy;

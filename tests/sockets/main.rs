//! Tests over real sockets: the router as a whole, its parts where only bytes can tell, and real servers and clients.
//!
//! One program for all of them: each would link everything again.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers outside #[test] functions fail the test"
)]

mod support;

mod admin;
mod affinity;
mod body_room;
mod breaker;
mod chat_completions;
mod client_gone;
mod clocks;
mod completions;
mod cooling;
mod deadlines;
mod decision_log;
mod dialects;
mod drain;
mod edge;
mod embeddings;
mod engines;
mod failover;
mod feedback;
mod fidelity;
mod http_edges;
mod keys;
mod killed;
mod legality;
mod metrics_docs;
mod monitor;
mod network;
mod power;
mod profile;
mod profile_quality;
mod public_faults;
mod real_clients;
mod real_embedder;
mod real_llamacpp;
mod real_operations;
mod reload;
mod service;
mod streaming;
mod switchback;
mod traces;
mod usage;
mod window;
mod wire;

//! The command line.

pub mod solve;

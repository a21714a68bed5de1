//! The network profiler: how far away nodes are and how fast bytes move, as measured.

mod measured;

pub use measured::{Measured, Quantity};

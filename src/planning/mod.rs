//! The live planner, sans-IO: events and `now` in, actions out.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod params;

pub use params::{WindowClose, WindowOrder, WindowParams};

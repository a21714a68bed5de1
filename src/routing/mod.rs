//! The routing core: problem tables, evaluator, objective and policies (paper III-C and IV).
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod params;

pub use params::{CompletionModel, EnergyModel, ObjectiveMode, PolicyKind, TimeTerm};

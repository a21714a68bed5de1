//! Profiling of quality: questions with known answers are put to destinations, and what comes back is scored.
//!
//! A [`Workload`] is read and checked as a whole before anything is sent. `ask` sends one question, a [`Grader`] turns
//! the answer into a score from 0 to 1, without a model but for a [`Judge`]; [`Run`] keeps as many requests under way as
//! it is told, tries again what failed for a moment, and leaves a destination alone that keeps failing. Every outcome
//! is handed out as it comes, so that whatever ends a run leaves what there is.
//!
//! Reading order: `workload`, `grade`, `schema` (pure), `judge`, `run` (the sockets).

mod grade;
mod judge;
mod run;
mod schema;
mod workload;

pub use grade::Grader;
pub use judge::Judge;
pub use run::{Answered, Graded, Outcome, Run, Seat};
pub use schema::{Schema, SchemaError};
pub use workload::{Question, RowFault, ShippedWorkload, Workload, WorkloadError};

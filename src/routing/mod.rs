//! The routing core: problem tables, evaluator, objective and policies (paper III-C and IV).
//!
//! A decision is a function of the problem, the objective, the random numbers and the `stop` condition it
//! is given; nothing here reads a clock, does IO or knows a runtime. Reading order: [`legal`] says where
//! a request may go, [`problem`] holds the R × M tables, [`objective`] turns them into J,
//! [`evaluator`] scores an assignment, [`policy`] names what chooses one.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod params;

pub mod legal;
mod places;
pub mod problem;

pub mod completion;
pub mod evaluator;
pub mod objective;

pub mod decision;
pub mod policy;

pub mod baseline;
pub mod memetic;
pub mod memetic_paper;

pub mod check;

#[cfg(test)]
mod laws;
#[cfg(test)]
pub(crate) mod testing;

pub use baseline::greedy_finish;
pub use decision::RoutingDecision;
pub use evaluator::{Evaluator, ObjectiveTerms, RawTerms};
pub use legal::{Exclusion, LegalSet, NoDestination, exclusion, legal_set};
pub use objective::{Bounds, Objective, TermRange};
pub use params::{CompletionModel, EnergyModel, ObjectiveMode, PolicyKind, TimeTerm};
pub use policy::{PolicyError, PolicyParams, RoutingPolicy, for_kind, rng_for};
pub use problem::{
    BatchItem, Clusters, CostModels, DestinationLoad, EarliestFinish, Problem, ProblemError, ProblemTables,
    SumTables,
};

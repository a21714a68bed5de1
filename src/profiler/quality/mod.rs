//! Quality and length prediction: the paper's RAG quality store (section III-B, Eq. 1).
//!
//! The way of one prompt: [`service`] takes the last user message and looks its end up in a cache;
//! [`embedder`] turns it into a vector on a thread of its own; [`mod@format`] adds 14 numbers about its
//! form; [`estimator`] finds the most similar profiled prompts and averages what each model scored on
//! them. The profiled prompts come from the [`store`], a directory that `quality import` fills
//! ([`mod@import`]); [`evaluation`] says what they are worth, and what clients say of answers ([`feedback`]) adds to them.
//! Whatever is missing, the router goes on with configured priors and says so.

mod cache;
pub mod clusters;
pub mod embedder;
pub mod estimator;
pub mod evaluation;
pub mod feedback;
pub mod format;
pub mod import;
pub mod metrics;
pub mod params;
mod queue;
pub mod service;
pub mod store;

pub use params::{DestinationPrior, EmbedderParams, EstimatorMode, FleetPriors, OodGate, QualityParams};
#[cfg(test)]
pub(crate) use service::by_hand;
pub use service::{Predicting, QualityService};

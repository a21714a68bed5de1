//! OpenAI wire types: only what routing reads; everything else passes through untouched.

mod chain;
pub mod error;
mod inputs;
mod messages;
pub mod models;
mod prompt;
pub mod request;

pub(crate) use chain::session_hash;
pub use error::ApiError;
pub use models::ModelList;
pub use prompt::PromptSize;
pub use request::{ApiRequest, RequestFault, parse_request};

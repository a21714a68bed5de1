//! OpenAI wire types: only what routing reads; everything else passes through untouched.

pub mod error;
mod messages;
pub mod models;
mod prompt;
pub mod request;

pub use error::ApiError;
pub use models::ModelList;
pub use prompt::PromptSize;
pub use request::{ChatRequest, RequestFault, parse_chat};

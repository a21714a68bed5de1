//! The HTTP surface: an OpenAI-compatible API on the main listener, metrics and records on the admin one.
//!
//! [`server`] accepts, [`stack`] wraps, [`routes`] tells paths apart, `calls` turns a request into a call
//! for the request manager, [`respond`] turns what comes of it into HTTP.

pub mod access;
pub mod admin;
pub mod agent_page;
pub mod auth;
mod body;
mod calls;
pub mod compressed;
mod connection;
mod connection_metrics;
mod feedback;
mod fleet;
pub mod framing;
mod gate;
mod headers;
pub mod live;
pub mod openai;
pub mod readiness;
pub mod respond;
pub mod routes;
pub mod server;
pub mod stack;
mod unknown_path;

pub use auth::{ApiKey, Auth};
pub use body::BodyRoom;
pub use routes::{Api, ApiParams};

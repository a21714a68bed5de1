//! The heterogeneous endpoint pool (paper III-D): HTTP clients of the LLM servers, and what their
//! answers say.

mod body;
pub mod causes;
mod connect_time;
mod connection;
mod idle;
mod muted_waker;
pub mod pool;
mod upload;

pub mod answer;
pub mod coding;
pub mod dialect;
pub mod echo;
pub mod event_filter;
pub mod meter;
pub mod page;
pub mod retry_after;
pub mod sse;
pub mod upstream_error;
pub mod whole_lines;

pub(crate) mod json;
mod kind;

pub use body::AnswerBody;
pub use connect_time::ConnectTime;
pub use kind::EndpointKind;
pub use pool::{EndpointPool, EndpointSpec, Post, SendError, Timeouts};
pub use upload::Upload;

//! The heterogeneous endpoint pool (paper III-D): HTTP clients of the LLM servers, and what their
//! answers say.

pub mod answer;
mod kind;
pub mod pool;
pub mod sse;

pub use kind::EndpointKind;
pub use pool::{EndpointPool, EndpointSpec, SendError, Timeouts};

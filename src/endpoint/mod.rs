//! The heterogeneous endpoint pool (paper III-D): HTTP clients of the LLM servers.

pub mod sse;

pub(crate) mod json;
mod kind;

pub use kind::EndpointKind;

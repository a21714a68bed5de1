//! The heterogeneous endpoint pool (paper III-D): HTTP clients of the LLM servers.

mod kind;

pub use kind::EndpointKind;

//! The HTTP surface clients see.

pub mod openai;

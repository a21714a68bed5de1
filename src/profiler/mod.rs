//! The profiler (paper III-B): what the router knows about its fleet. It publishes; routing never sees it.

pub mod exposition;
pub mod node;
pub mod power;
pub mod quality;

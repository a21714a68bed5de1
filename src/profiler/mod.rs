//! The profiler (paper III-B): what the router knows about its fleet. It publishes; routing never sees it.

pub mod engine;
pub mod exposition;
pub mod network;
pub mod node;
pub mod power;
pub mod prefix;
pub mod quality;
pub mod speed;
pub mod view;

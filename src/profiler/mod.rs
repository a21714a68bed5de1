//! The profiler of the paper's section III-B: what is known about requests, endpoints and nodes
//! before a batch is assigned.

pub mod quality;

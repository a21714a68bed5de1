//! CEMA-Router: an OpenAI-compatible reverse proxy that assigns whole batches of requests to
//! node–model pairs, weighing predicted quality, money, energy and completion time.
//!
//! ARCHITECTURE.md maps the paper's Fig. 3 to these modules and follows one request through them.

pub mod units;

pub mod domain;
pub mod statistics;

pub mod planning;
pub mod routing;

pub mod decision;
pub mod endpoint;
pub mod plot;
pub mod problem_file;
pub mod profiler;
pub mod scheduler;
pub mod simulate;

pub mod request_manager;

pub mod proxy;

pub mod telemetry;

mod cpu_time;

pub mod calibrate;

pub mod app;
pub mod cli;
pub mod config;

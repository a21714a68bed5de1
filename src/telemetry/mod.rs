//! What operators see of a running router: logs, traces, and the metrics of each module.

pub mod json_log;
pub mod logging;
pub mod metrics_book;
pub mod traces;

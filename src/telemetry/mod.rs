//! What operators see of a running router: logs, and the metrics of each module.

pub mod json_log;
pub mod logging;
pub mod metrics_book;

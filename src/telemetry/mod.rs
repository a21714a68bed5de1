//! What operators see of a running router: logs, and the metrics of each module.

pub mod decision_log;
pub mod logging;

//! Charts.
use crate::simulate::report::Report;
/// A chart.
pub struct Chart {
    /// f
    pub file_name: &'static str,
    /// s
    pub svg: String,
}
/// All.
pub fn charts(_report: &Report) -> Vec<Chart> {
    Vec::new()
}

//! What is configured of a node's power.

use std::path::PathBuf;
use std::sync::Arc;

use http::Uri;

use crate::domain::destination::Power;

/// A meter of a node's power.
#[derive(Debug, Clone, PartialEq)]
pub enum PowerSource {
    /// A Prometheus exporter.
    Scrape {
        /// The exporter's metrics page.
        url: Uri,
        /// What is read of it; `None` = the first it has of the names that are known.
        metric: Option<ScrapedMetric>,
    },
    /// A board of the router's own host, by NVML.
    Nvml {
        /// The board's NVML index.
        index: u32,
        /// The library; `None` = `libnvidia-ml.so.1`, wherever the system has it.
        library: Option<PathBuf>,
    },
}

/// A metric of an exporter; the samples of several boards are added up.
#[derive(Debug, Clone, PartialEq)]
pub struct ScrapedMetric {
    /// Its name. One that ends in `_total` counts energy, any other is power, unless it is a name that is known.
    pub name: String,
    /// Factor that turns a sample into watts, or joules of a counter, above 0; `None` = that of the known name, else 1.
    pub scale: Option<f64>,
}

/// A node as its power is concerned.
#[derive(Debug, Clone, PartialEq)]
pub struct NodePower {
    /// Its name.
    pub name: Arc<str>,
    /// In order of preference; the first that answers is used. Empty = the configured watts are all there is.
    pub sources: Vec<PowerSource>,
    /// The configured watts, for while no source answers.
    pub configured: Power,
}

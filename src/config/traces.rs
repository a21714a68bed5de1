//! Traces for an OpenTelemetry collector (`tracing`).

use http::Uri;

use super::address::absolute_url;
use super::reader::Section;
use crate::telemetry::traces::{IS_BUILT_IN, otlp};

/// `tracing`: where traces of requests go.
#[derive(Debug, Clone, PartialEq)]
pub struct TracingConfig {
    /// Where they are posted to: `otlp_endpoint` (required), with the path of OTLP over HTTP.
    pub traces: Uri,
    /// `sample`: share of requests that are traced where their client does not say, 0 to 1; default 1.
    pub sample: f64,
}

impl TracingConfig {
    /// Reads `tracing`. `None` with a fault noted, also where this binary exports no traces.
    pub(super) fn read(s: &mut Section<'_>) -> Option<Self> {
        const ALLOWED: &str = "URL of a collector, such as http://127.0.0.1:4318";
        let traces = s.require("otlp_endpoint", ALLOWED).and_then(|field| {
            let base = absolute_url(&field)?.to_string();
            let base = base.trim_end_matches('/').trim_end_matches(otlp::PATH);
            format!("{base}{}", otlp::PATH).parse().ok()
        });
        let sample = s.float("sample", 0.0..=1.0, 1.0);
        if !IS_BUILT_IN {
            let mend = "no `tracing`, or a binary built with `cargo build --release --features otlp`";
            s.fault("otlp_endpoint", "this binary was built without the feature `otlp`", mend);
            return None;
        }
        Some(Self { traces: traces?, sample })
    }
}

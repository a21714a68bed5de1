//! Metrics of prefix caches.

use prometheus::{Counter, CounterVec, Gauge, GaugeVec, Opts, Registry};

use crate::domain::Destination;
use crate::units::Tokens;

/// What is counted, by destination.
#[derive(Debug)]
pub(super) struct PrefixMetrics {
    tokens: CounterVec,
    ratio: GaugeVec,
}

impl PrefixMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let tokens = CounterVec::new(
            Opts::new(
                "cema_prefix_tokens_total",
                "Prompt tokens of answers whose endpoint says what its cache held: expected = sent there before \
                 as part of the same conversation, found = in the cache, whoever sent them.",
            ),
            &["destination", "type"],
        )?;
        let ratio = GaugeVec::new(
            Opts::new(
                "cema_prefix_found_ratio",
                "Share of tokens sent before that plans expect to find in the cache of the destination.",
            ),
            &["destination"],
        )?;
        registry.register(Box::new(tokens.clone()))?;
        registry.register(Box::new(ratio.clone()))?;
        Ok(Self { tokens, ratio })
    }

    pub(super) fn at(&self, destination: &Destination, ratio: f64) -> PrefixMetricsAt {
        let id = destination.id.as_str();
        let shown = self.ratio.with_label_values(&[id]);
        shown.set(ratio);
        PrefixMetricsAt {
            expected: self.tokens.with_label_values(&[id, "expected"]),
            found: self.tokens.with_label_values(&[id, "found"]),
            ratio: shown,
        }
    }
}

/// The same of one destination.
#[derive(Debug)]
pub(super) struct PrefixMetricsAt {
    expected: Counter,
    found: Counter,
    ratio: Gauge,
}

impl PrefixMetricsAt {
    /// Of `expected` tokens `found` were there, as the engine counts them.
    pub(super) fn count(&self, expected: Tokens, found: Tokens) {
        self.expected.inc_by(expected.0);
        self.found.inc_by(found.0);
    }

    pub(super) fn show(&self, ratio: f64) {
        self.ratio.set(ratio);
    }
}

//! Reads a node's power, for ever.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::{info, warn};

use super::chain::Chain;
use super::series::{Dropped, Figure, Reading, Series};
use super::source::{Source, SourceError};
use super::{NodeWatts, STATIC, Shared};
use crate::units::Seconds;

/// Time between readings of a node.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Readings are spread by up to this part of it, so that the nodes of a fleet are not read at the same moment.
const JITTER: f64 = 0.1;
/// Requests that are over are settled after this even if no reading came: dcgm-exporter looks every 30 s.
const SETTLE_WITHIN: Seconds = Seconds(90.0);

/// The meter of one node.
#[derive(Debug)]
pub struct NodeMeter {
    shared: Arc<Shared>,
    /// Position of the node.
    node: usize,
    sources: Vec<Source>,
    chain: Chain,
    series: Series,
    /// End of the last interval that was shared.
    measured_until: Seconds,
    /// Source of the last reading.
    label: &'static str,
}

impl NodeMeter {
    pub(super) fn new(shared: Arc<Shared>, node: usize, sources: Vec<Source>) -> Self {
        let chain = Chain::new(sources.len());
        let series = Series::default();
        Self { shared, node, sources, chain, series, measured_until: Seconds::ZERO, label: STATIC }
    }

    /// Reads for ever.
    pub async fn run(mut self) {
        loop {
            self.sample().await;
            sleep(SAMPLE_EVERY.mul_f64(1.0 + JITTER * (rand::random::<f64>() - 0.5))).await;
        }
    }

    async fn sample(&mut self) {
        for idx in 0..self.sources.len() {
            if !self.chain.is_due(idx, self.shared.now()) {
                continue;
            }
            let read = self.sources[idx].read().await;
            let plausible =
                read.and_then(|read| if read.is_plausible() { Ok(read) } else { Err(SourceError::Absurd) });
            match plausible {
                Ok(reading) => return self.answered(idx, reading),
                Err(error) => {
                    if !self.failed(idx, &error) {
                        self.settle_overdue();
                        return;
                    }
                }
            }
        }
        self.unmetered();
    }

    /// Notes that a source has no reading; whether the next one is to be asked.
    fn failed(&mut self, idx: usize, error: &SourceError) -> bool {
        let name = &*self.shared.nodes[self.node].name;
        let reason = match error {
            SourceError::Absurd => Dropped::Absurd.as_str(),
            _ => "missed",
        };
        if idx == self.chain.used() {
            self.shared.metrics.dropped(name, reason);
        }
        let failed = self.chain.failed(idx, self.shared.now(), error.is_final());
        if failed.is_news {
            let source = self.sources[idx].describe();
            warn!(node = name, source, %error, "power source does not answer: on to the next, and back to it when it does");
        }
        failed.go_on
    }

    fn answered(&mut self, idx: usize, reading: Reading) {
        let now = self.shared.now();
        self.use_source(idx);
        let interval = self.series.read(now, reading);
        let watts = match (reading.figure, &interval) {
            (Figure::Power(watts), _) => Some(watts),
            (Figure::Counter { .. }, Ok(Some(interval))) => Some(interval.watts()),
            (Figure::Counter { .. }, _) => None,
        };
        if let Some(watts) = watts {
            self.publish(NodeWatts { watts, source: self.sources[idx].label() });
        }
        let node = &self.shared.nodes[self.node];
        match interval {
            Ok(Some(interval)) => {
                let mut books = node.books();
                let shared = books.ledger.share(interval);
                let settled = books.ledger.settle(interval.to);
                drop(books);
                self.measured_until = interval.to;
                self.shared.metrics.shared(&node.name, shared);
                self.shared.emit(settled);
            }
            Ok(None) => {
                if self.settle_overdue() && matches!(reading.figure, Figure::Counter { .. }) {
                    self.failed(idx, &SourceError::StandsStill);
                }
            }
            Err(dropped) => self.shared.metrics.dropped(&node.name, dropped.as_str()),
        }
    }

    /// No source answers: the configured watts, by whether anything runs.
    fn unmetered(&mut self) {
        self.use_source(self.sources.len());
        let node = &self.shared.nodes[self.node];
        let is_busy = node.books().ledger.n_running() > 0;
        let watts = if is_busy { node.configured.active() } else { node.configured.idle };
        self.publish(NodeWatts { watts, source: STATIC });
    }

    /// Changes over to a source, if it is another than before; what is over and was not measured to its end will not be.
    fn use_source(&mut self, idx: usize) {
        let Some(was) = self.chain.answered(idx) else { return };
        let now = self.shared.now();
        self.series.forget();
        self.measured_until = now;
        let node = &self.shared.nodes[self.node];
        let mut books = node.books();
        books.is_metered = idx < self.sources.len();
        let settled = books.ledger.settle(now);
        drop(books);
        self.shared.emit(settled);
        let describe = |idx: usize| self.sources.get(idx).map_or_else(|| STATIC.to_owned(), Source::describe);
        info!(node = &*node.name, from = describe(was), to = describe(idx), "power source");
    }

    fn publish(&mut self, is: NodeWatts) {
        let node = &self.shared.nodes[self.node];
        self.shared.metrics.watts(&node.name, is, std::mem::replace(&mut self.label, is.source));
        node.books().now = Some(is);
    }

    /// Lets nobody wait for ever for a reading that does not come; whether it was time to.
    fn settle_overdue(&mut self) -> bool {
        let now = self.shared.now();
        if (now - self.measured_until).0 <= SETTLE_WITHIN.0 {
            return false;
        }
        // Those settled have no part in the energy that a later reading would tell of this time.
        self.series.forget();
        self.measured_until = now;
        let settled = self.shared.nodes[self.node].books().ledger.settle(now);
        self.shared.emit(settled);
        true
    }
}

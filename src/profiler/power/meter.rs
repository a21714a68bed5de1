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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use prometheus::Registry;
    use tokio::sync::broadcast;
    use tokio::time::{Instant, advance, pause};

    use super::*;
    use crate::domain::DestinationOrd;
    use crate::domain::fixture::destination;
    use crate::profiler::power::source::Quantity;
    use crate::profiler::power::{EnergySource, ExpectedWork, NodePower, PowerProfiler, Settled};
    use crate::units::{Joules, Tokens, Watts};

    type Script = fn(u32) -> Result<Reading, SourceError>;

    struct Rig {
        power: PowerProfiler,
        meter: NodeMeter,
        settled: broadcast::Receiver<Settled>,
    }

    impl Rig {
        fn new(scripts: &[Script]) -> Self {
            pause();
            let at = destination(0, 4, 8);
            let node = NodePower { name: Arc::clone(&at.node), sources: Vec::new(), configured: at.power };
            let (power, _) = PowerProfiler::new(vec![node], &[at], &Registry::new()).unwrap();
            let scripted = |script: &Script| Source::Scripted(AtomicU32::new(0), *script);
            let sources = scripts.iter().map(scripted).collect();
            let meter = NodeMeter::new(Arc::clone(&power.shared), 0, sources);
            let settled = power.settled();
            Self { power, meter, settled }
        }

        /// A request of three seconds, 40 J by the model.
        async fn request(&mut self) {
            let expected = ExpectedWork { tokens: Tokens(300.0), duration: Seconds(3.0) };
            let share = self.power.begin(Instant::now(), "r".into(), DestinationOrd(0), expected);
            self.sample(3).await;
            share.end(Instant::now(), Some(Tokens(300.0)), Some(Joules(40.0)));
        }

        /// `n` readings, a second apart.
        async fn sample(&mut self, n: u32) {
            for _ in 0..n {
                advance(Duration::from_secs(1)).await;
                self.meter.sample().await;
            }
        }

        fn settled(&mut self) -> Option<(f64, EnergySource)> {
            self.settled.try_recv().ok().map(|settled| (settled.joules.0.round(), settled.source))
        }

        fn watts(&self) -> (f64, &'static str) {
            let now = self.power.watts("node-0").unwrap();
            (now.watts.0.round(), now.source)
        }
    }

    fn counted(joules: f64) -> Result<Reading, SourceError> {
        Ok(Reading::counters([Joules(joules)]).unwrap())
    }

    #[tokio::test]
    async fn without_a_source_the_configured_watts_follow_the_load() {
        let mut rig = Rig::new(&[]);
        rig.sample(1).await;
        assert_eq!(rig.watts(), (20.0, "static"));
        rig.request().await;
        assert_eq!(rig.watts(), (80.0, "static"));
        assert_eq!(rig.settled(), Some((40.0, EnergySource::Modelled)), "at once");
    }

    #[tokio::test]
    async fn a_request_is_settled_with_the_reading_after_its_end() {
        let mut rig = Rig::new(&[|n| counted(1e4 + 100.0 * f64::from(n))]);
        rig.sample(2).await;
        assert_eq!(rig.watts(), (100.0, "scripted"));
        rig.request().await;
        assert_eq!(rig.settled(), None);
        rig.sample(1).await;
        assert_eq!(rig.settled(), Some((300.0, EnergySource::Measured)));
    }

    #[tokio::test]
    async fn a_counter_that_stands_still_gives_way_and_holds_nobody_up() {
        let power: Script = |_| Ok(Reading::powers([Watts(70.0)]).unwrap());
        let mut rig = Rig::new(&[|_| counted(1e4), power]);
        rig.sample(1).await;
        rig.request().await;
        rig.sample(86).await;
        assert_eq!(rig.settled(), None, "an exporter may take its time");
        rig.sample(2).await;
        assert_eq!(rig.settled(), Some((40.0, EnergySource::Modelled)));
        rig.sample(1).await;
        assert_eq!(rig.watts(), (70.0, "scripted"));
    }

    #[tokio::test]
    async fn the_energy_of_a_gap_is_told_by_the_counter_after_it() {
        let mut rig = Rig::new(&[|n| match n {
            3 | 4 => Err(SourceError::Stuck),
            n => counted(1e4 + 100.0 * f64::from(n)),
        }]);
        rig.sample(1).await;
        rig.request().await;
        rig.sample(1).await;
        assert_eq!(rig.settled(), None);
        // 200 J were told before; of 300 J over 3 s it takes what is beyond 20 W in the two idle ones.
        rig.sample(1).await;
        assert_eq!(rig.settled(), Some((460.0, EnergySource::Measured)));
        assert_eq!(rig.watts().1, "scripted");
    }

    #[tokio::test]
    async fn when_a_source_is_lost_what_is_over_is_settled_at_once() {
        let mut rig = Rig::new(&[|n| match n {
            0..4 => counted(1e4 + 100.0 * f64::from(n)),
            _ => Err(SourceError::NotSupported { index: 0, quantity: Quantity::Energy }),
        }]);
        rig.sample(1).await;
        rig.request().await;
        rig.sample(1).await;
        // All of its life was covered.
        assert_eq!(rig.settled(), Some((300.0, EnergySource::Measured)));
        assert_eq!(rig.watts(), (20.0, "static"));
    }
}

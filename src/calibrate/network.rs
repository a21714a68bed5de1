//! How far away an endpoint is: the time to connect to it.

use std::time::Duration;

use tokio::time::sleep;

use super::fit::{median, quantile};
use crate::domain::EndpointOrd;
use crate::endpoint::{ConnectTime, EndpointPool};
use crate::units::Seconds;

/// Between two connects, so that they do not measure one moment only.
const GAP: Duration = Duration::from_millis(50);

/// Connect times of one endpoint so far.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Connects {
    /// TCP: one round trip each.
    pub tcp: Vec<Seconds>,
    /// TLS handshakes over them, where its URL is https.
    pub tls: Vec<Seconds>,
    /// What ended it early.
    pub failure: Option<String>,
}

/// The smallest, the middle and the 95 % quantile of some times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeSpread {
    /// The smallest.
    pub min: Seconds,
    /// The median.
    pub median: Seconds,
    /// The 95 % quantile.
    pub p95: Seconds,
}

impl TimeSpread {
    /// Of `times`; `None` where there are none.
    #[must_use]
    pub fn of(times: &[Seconds]) -> Option<Self> {
        let raw: Vec<f64> = times.iter().map(|time| time.get()).collect();
        Some(Self {
            min: Seconds(quantile(&raw, 0.0)?),
            median: Seconds(median(&raw)?),
            p95: Seconds(quantile(&raw, 0.95)?),
        })
    }
}

/// Connects `count` times, one after the other, and sends nothing (but a TLS handshake). `connects` is filled as it
/// goes.
pub async fn measure(
    pool: &EndpointPool,
    endpoint: EndpointOrd,
    count: u32,
    connects: &mut Connects,
    on_connect: &dyn Fn(),
) {
    for n in 0..count {
        if n > 0 {
            sleep(GAP).await;
        }
        match pool.connect_time(endpoint, true).await {
            Ok(ConnectTime { tcp, tls }) => {
                connects.tcp.push(Seconds(tcp.as_secs_f64()));
                connects.tls.extend(tls.map(|tls| Seconds(tls.as_secs_f64())));
            }
            Err(error) => {
                connects.failure = Some(format!("cannot connect: {error}"));
                return;
            }
        }
        on_connect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_quantiles() {
        let times: Vec<_> = (1..=21).map(|n| Seconds(f64::from(n) / 1e3)).collect();
        let spread = TimeSpread::of(&times).unwrap();
        let close = |a: Seconds, ms: f64| (a.get() * 1e3 - ms).abs() < 1e-9;
        assert!(
            close(spread.min, 1.0) && close(spread.median, 11.0) && close(spread.p95, 20.0),
            "{spread:?}"
        );
        assert_eq!(TimeSpread::of(&[]), None);
    }
}

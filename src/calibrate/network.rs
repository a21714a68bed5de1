//! How far away an endpoint is: the time to connect to it.

use std::sync::Arc;
use std::time::Duration;

use http::uri::Scheme;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;

use super::fit::{median, quantile};
use crate::endpoint::EndpointSpec;
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

/// Why an endpoint could not be connected to.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("cannot resolve `{0}`: {1}")]
    Resolve(String, std::io::Error),
    #[error("`{0}` has no address")]
    NoAddress(String),
    #[error("cannot connect: {0}")]
    Connect(std::io::Error),
    #[error("no connection within {0:?}")]
    TooSlow(Duration),
    #[error("no TLS: {0}")]
    Tls(std::io::Error),
}

/// Connects `count` times, one after the other, and sends nothing (but a TLS handshake). Names are looked up
/// beforehand, once. `connects` is filled as it goes.
pub async fn measure(
    spec: &EndpointSpec,
    tls: &Arc<rustls::ClientConfig>,
    (count, limit): (u32, Duration),
    connects: &mut Connects,
    on_connect: &dyn Fn(),
) {
    let outcome = async {
        let host = spec.authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_tls = spec.scheme == Scheme::HTTPS;
        let port = spec.authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let mut found =
            lookup_host((host.as_str(), port)).await.map_err(|e| ConnectError::Resolve(host.clone(), e))?;
        let address = found.next().ok_or_else(|| ConnectError::NoAddress(host.clone()))?;
        for n in 0..count {
            if n > 0 {
                sleep(GAP).await;
            }
            let began = Instant::now();
            let stream = within(limit, TcpStream::connect(address)).await?.map_err(ConnectError::Connect)?;
            connects.tcp.push(Seconds(began.elapsed().as_secs_f64()));
            if is_tls {
                let name = ServerName::try_from(host.clone())
                    .map_err(|e| ConnectError::Tls(std::io::Error::other(e)))?;
                let began = Instant::now();
                let shaking = TlsConnector::from(Arc::clone(tls)).connect(name, stream);
                within(limit, shaking).await?.map_err(ConnectError::Tls)?;
                connects.tls.push(Seconds(began.elapsed().as_secs_f64()));
            }
            on_connect();
        }
        Ok::<_, ConnectError>(())
    };
    if let Err(error) = outcome.await {
        connects.failure = Some(error.to_string());
    }
}

async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Result<T, ConnectError> {
    timeout(limit, future).await.map_err(|_| ConnectError::TooSlow(limit))
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

//! How long a connection to an endpoint takes to stand: a measure of the path to it.

use std::time::Duration;

use http::uri::Scheme;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::pool::EndpointPool;
use crate::domain::EndpointOrd;

/// How long a connection took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectTime {
    /// From SYN to its acknowledgement: one round trip. Looking the name up is no part of it.
    pub tcp: Duration,
    /// The TLS handshake after it, where it was made.
    pub tls: Option<Duration>,
}

impl EndpointPool {
    /// Connects to `endpoint` and hangs up at once; `with_tls` = after the TLS handshake, where it speaks TLS.
    ///
    /// # Errors
    /// No address, no connection or no handshake within the limit on connecting.
    pub async fn connect_time(&self, endpoint: EndpointOrd, with_tls: bool) -> std::io::Result<ConnectTime> {
        timeout(self.timeouts().connect, self.time_connect(endpoint, with_tls)).await?
    }

    async fn time_connect(&self, endpoint: EndpointOrd, with_tls: bool) -> std::io::Result<ConnectTime> {
        let spec = self.spec(endpoint);
        let is_https = spec.scheme == Scheme::HTTPS;
        let host = spec.authority.host().trim_matches(['[', ']']);
        let port = spec.authority.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        let address = lookup_host((host, port)).await?.next();
        let address = address.ok_or_else(|| std::io::Error::other("the name has no address"))?;
        let began = Instant::now();
        let stream = TcpStream::connect(address).await?;
        let tcp = began.elapsed();
        if !(is_https && with_tls) {
            return Ok(ConnectTime { tcp, tls: None });
        }
        let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
        let began = Instant::now();
        TlsConnector::from(self.tls()).connect(name, stream).await?;
        Ok(ConnectTime { tcp, tls: Some(began.elapsed()) })
    }
}

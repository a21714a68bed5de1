//! How long a connection to an endpoint takes to stand: a measure of the path to it.

use std::net::SocketAddr;
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
        let (stream, tcp) = connect_first(lookup_host((host, port)).await?).await?;
        if !(is_https && with_tls) {
            return Ok(ConnectTime { tcp, tls: None });
        }
        let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
        let began = Instant::now();
        TlsConnector::from(self.tls()).connect(name, stream).await?;
        Ok(ConnectTime { tcp, tls: Some(began.elapsed()) })
    }
}

/// Connects to the first of `addresses` that lets it, which is the one that is timed.
async fn connect_first(
    addresses: impl Iterator<Item = SocketAddr>,
) -> std::io::Result<(TcpStream, Duration)> {
    let mut last = None;
    for address in addresses {
        let began = Instant::now();
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok((stream, began.elapsed())),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::Error::other("the name has no address")))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::endpoint::{EndpointKind, EndpointSpec, Timeouts};

    const CERT: &[u8] = include_bytes!("../../tests/fixtures/tls/cert.pem");
    const KEY: &[u8] = include_bytes!("../../tests/fixtures/tls/key.pem");
    const FIRST: EndpointOrd = EndpointOrd(0);

    /// One endpoint, in clear.
    fn pool(authority: &str) -> EndpointPool {
        let limit = Duration::from_secs(60);
        let timeouts = Timeouts {
            connect: limit,
            first_byte: limit,
            first_token: limit,
            idle: limit,
            commit_after: limit,
            load: limit,
        };
        let spec = EndpointSpec {
            name: "a".into(),
            kind: EndpointKind::OpenAi,
            scheme: Scheme::HTTP,
            authority: authority.parse().unwrap(),
            base_path: String::new(),
            api_key: None,
            inject_usage: false,
        };
        EndpointPool::new(vec![spec], timeouts).unwrap()
    }

    /// How the two sides of a connection with the tests' certificate speak.
    fn tls_both_ways() -> (rustls::ServerConfig, rustls::ClientConfig) {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let cert = CertificateDer::from_pem_slice(CERT).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(cert.clone()).unwrap();
        let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert], PrivateKeyDer::from_pem_slice(KEY).unwrap())
            .unwrap();
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        (server, client)
    }

    #[tokio::test]
    async fn a_handshake_is_timed_apart_from_the_round_trip() {
        let (server, client) = tls_both_ways();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        // A name with two addresses on many machines, of which one refuses.
        let authority = format!("localhost:{}", listener.local_addr().unwrap().port());
        let pool = pool(&authority).measured_through(client);
        let server = TlsAcceptor::from(Arc::new(server));
        let serving = async {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                _ = server.accept(stream).await;
            }
        };
        let measuring = async {
            let both = pool.connect_time(FIRST, true).await.unwrap();
            assert!(both.tcp > Duration::ZERO && both.tls.unwrap() > Duration::ZERO, "{both:?}");
            assert_eq!(pool.connect_time(FIRST, false).await.unwrap().tls, None);
        };
        tokio::select! {
            () = measuring => {}
            () = serving => {}
        }
    }

    #[tokio::test]
    async fn where_nothing_listens_there_is_no_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        drop(listener);
        assert!(pool(&authority).connect_time(FIRST, true).await.is_err());
    }
}

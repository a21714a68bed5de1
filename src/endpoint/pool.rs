//! The endpoints of the fleet and the HTTP client they are reached by.

use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Extensions, HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tower::util::MapResponse;

use super::EndpointKind;
use super::connection::{EndpointStream, Traffic};
use crate::domain::EndpointOrd;

/// Idle connections are closed before the servers do it after 5 s.
const POOL_IDLE: Duration = Duration::from_secs(4);
/// Most that is read ahead of a response.
const READ_BUFFER_MAX: usize = 1 << 20;
/// Most that is read of a health page.
const STATUS_BODY_MAX: usize = 64 << 10;

/// Where an endpoint is and how to authenticate to it.
#[derive(Debug, Clone)]
pub struct EndpointSpec {
    /// Name for logs and metrics: `node` or `node/endpoint`.
    pub name: String,
    /// Server software.
    pub kind: EndpointKind,
    /// `http` or `https`.
    pub scheme: Scheme,
    /// Host and port.
    pub authority: Authority,
    /// Path before `/chat/completions`, for example `/v1`.
    pub base_path: String,
    /// The endpoint's own API key.
    pub api_key: Option<HeaderValue>,
    /// Whether streams are asked for token counts that their clients did not ask for.
    pub inject_usage: bool,
}

/// How long an endpoint may take.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// To accept a connection.
    pub connect: Duration,
    /// From sending a request to the response head.
    pub first_byte: Duration,
    /// From sending a request to its first content.
    pub first_token: Duration,
    /// Between two reads of a response under way.
    pub idle: Duration,
    /// A stream without content is committed to the client after this; fail-over ends then.
    pub commit_after: Duration,
}

/// Why an endpoint gave no response head.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No connection: refused, unreachable, or not accepted in time.
    #[error("cannot connect")]
    Connect(#[source] hyper_util::client::legacy::Error),
    /// The connection broke before a response head.
    #[error("connection broke before a response")]
    Broken(#[source] hyper_util::client::legacy::Error),
    /// No response head in time.
    #[error("no response head within {0:?}")]
    FirstByteTimeout(Duration),
    /// The request could not be put together.
    #[error("cannot build the request")]
    Request(#[from] http::Error),
}

type HttpClient = Client<HttpsConnector<TcpConnector>, Full<Bytes>>;
type TcpConnector = MapResponse<HttpConnector, fn(TokioIo<TcpStream>) -> TokioIo<EndpointStream>>;

/// The pool of endpoints, in the order of [`EndpointOrd`].
#[derive(Debug)]
pub struct EndpointPool {
    endpoints: Vec<EndpointSpec>,
    http: HttpClient,
    /// Keeps no connections: each request gets a new one.
    http_anew: HttpClient,
    timeouts: Timeouts,
}

impl EndpointPool {
    /// A pool over `endpoints`.
    ///
    /// # Errors
    /// When the system's certificate store cannot be read and an endpoint needs TLS.
    pub fn new(endpoints: Vec<EndpointSpec>, timeouts: Timeouts) -> std::io::Result<Self> {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(timeouts.connect));
        tcp.set_keepalive(Some(Duration::from_secs(60)));
        let needs_tls = endpoints.iter().any(|e| e.scheme == Scheme::HTTPS);
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(std::io::Error::other)?;
        let tls = if needs_tls {
            tls.with_native_roots()?.with_no_client_auth()
        } else {
            tls.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth()
        };
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(MapResponse::new(tcp, EndpointStream::wrap as fn(_) -> _));
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .http1_max_buf_size(READ_BUFFER_MAX)
            .build(connector.clone());
        let http_anew = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .http1_max_buf_size(READ_BUFFER_MAX)
            .build(connector);
        Ok(Self { endpoints, http, http_anew, timeouts })
    }

    /// The limits in force.
    #[must_use]
    pub const fn timeouts(&self) -> &Timeouts {
        &self.timeouts
    }

    /// Every endpoint with its ordinal.
    pub fn iter(&self) -> impl Iterator<Item = (EndpointOrd, &EndpointSpec)> {
        (0u32..).map(EndpointOrd).zip(&self.endpoints)
    }

    /// What must be kept out of what clients read: an endpoint's host and port, and its key.
    pub fn secrets(&self, endpoint: EndpointOrd) -> impl Iterator<Item = &str> {
        let spec = &self.endpoints[endpoint.idx()];
        let key = spec.api_key.as_ref().and_then(|value| value.to_str().ok());
        let key = key.map(|value| value.strip_prefix("Bearer ").unwrap_or(value));
        key.into_iter().chain([spec.authority.as_str()])
    }

    /// Posts a JSON body to `suffix` (for example `/chat/completions`) below the endpoint's base path.
    ///
    /// # Errors
    /// No response head within the limits; nothing of an answer has been seen then.
    pub async fn post(
        &self,
        endpoint: EndpointOrd,
        suffix: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, SendError> {
        let spec = &self.endpoints[endpoint.idx()];
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(spec.uri(&spec.base_path, suffix)?)
            .body(Full::new(body))?;
        *request.headers_mut() = headers;
        spec.authenticate(request.headers_mut());
        self.send(request, self.timeouts.first_byte).await
    }

    /// What is known of `endpoint`.
    #[must_use]
    pub fn spec(&self, endpoint: EndpointOrd) -> &EndpointSpec {
        &self.endpoints[endpoint.idx()]
    }

    /// Gets `path` from the endpoint's root (not its base path) with its small answer, which is empty where
    /// it does not end in time or is large.
    ///
    /// # Errors
    /// No response head within `limit`.
    pub async fn get_small(
        &self,
        endpoint: EndpointOrd,
        path: &str,
        limit: Duration,
    ) -> Result<(StatusCode, Bytes), SendError> {
        let spec = &self.endpoints[endpoint.idx()];
        let mut request =
            Request::builder().method(Method::GET).uri(spec.uri("", path)?).body(Full::default())?;
        request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("*/*"));
        spec.authenticate(request.headers_mut());
        let response = self.send(request, limit).await?;
        let status = response.status();
        let drained = Limited::new(response.into_body(), STATUS_BODY_MAX).collect();
        let body = match tokio::time::timeout(limit, drained).await {
            Ok(Ok(body)) => body.to_bytes(),
            // The status says enough.
            Ok(Err(_)) | Err(_) => Bytes::new(),
        };
        Ok((status, body))
    }

    /// Sends a request, and once more over a new connection where a kept one turned out to be closed already.
    async fn send(
        &self,
        request: Request<Full<Bytes>>,
        limit: Duration,
    ) -> Result<Response<Incoming>, SendError> {
        let sending = async {
            let outcome = match self.http.request(request.clone()).await {
                Err(error) if traffic(&error).is_some_and(|traffic| traffic.is_stale()) => {
                    self.http_anew.request(request).await
                }
                outcome => outcome,
            };
            if let Ok(response) = &outcome
                && let Some(traffic) = response.extensions().get::<Traffic>()
            {
                traffic.note_answer();
            }
            outcome
        };
        match tokio::time::timeout(limit, sending).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) if error.is_connect() => Err(SendError::Connect(error)),
            Ok(Err(error)) => Err(SendError::Broken(error)),
            Err(_) => Err(SendError::FirstByteTimeout(limit)),
        }
    }
}

/// What passed over the connection that a request failed on.
fn traffic(error: &hyper_util::client::legacy::Error) -> Option<Traffic> {
    let mut extras = Extensions::new();
    error.connect_info()?.get_extras(&mut extras);
    extras.remove()
}

impl EndpointSpec {
    fn uri(&self, base: &str, suffix: &str) -> Result<Uri, http::Error> {
        let path: PathAndQuery = format!("{base}{suffix}").parse().map_err(http::Error::from)?;
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path)
            .build()
    }

    fn authenticate(&self, headers: &mut HeaderMap) {
        if let Some(key) = &self.api_key {
            headers.insert(header::AUTHORIZATION, key.clone());
        }
    }
}

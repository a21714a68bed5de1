//! The endpoints of the fleet and the HTTP client they are reached by.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Collected, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower::ServiceExt;
use tower::util::MapResponse;

use super::EndpointKind;
use super::body::AnswerBody;
use super::connection::{EndpointConnection, WatchedStream};
use super::idle::IdleConnections;
use crate::domain::{ApiCall, EndpointOrd};

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
    /// Added to `first_byte` and `first_token` where a model is known to have to be loaded first.
    pub load: Duration,
}

impl Timeouts {
    /// The limits of a request whose model has to be loaded first.
    #[must_use]
    pub fn with_load(self) -> Self {
        let Self { first_byte, first_token, load, .. } = self;
        Self { first_byte: first_byte + load, first_token: first_token + load, ..self }
    }
}

/// A JSON body for an endpoint.
#[derive(Debug)]
pub struct Post<'a> {
    /// What is called.
    pub call: ApiCall,
    /// Headers beside those that name the endpoint and its key.
    pub headers: &'a [(HeaderName, HeaderValue)],
    /// The body.
    pub body: Bytes,
    /// Longest wait for the head of the answer.
    pub first_byte: Duration,
}

/// What one page of an endpoint may take.
#[derive(Debug, Clone, Copy)]
pub struct PageBounds {
    /// Until its head, and again until its end.
    pub time: Duration,
    /// Of its body.
    pub bytes: usize,
}

/// Why an endpoint gave no response head.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No connection: refused, unreachable, or not accepted in time.
    #[error("cannot connect")]
    Connect(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The connection broke before a response head.
    #[error("connection broke before a response")]
    Broken(#[source] hyper::Error),
    /// No response head in time.
    #[error("no response head within {0:?}")]
    FirstByteTimeout(Duration),
    /// The request could not be put together.
    #[error("cannot build the request")]
    Request(#[from] http::Error),
}

type Connector = HttpsConnector<TcpConnector>;
type TcpConnector = MapResponse<HttpConnector, fn(TokioIo<TcpStream>) -> TokioIo<WatchedStream>>;

/// The pool of endpoints, in the order of [`EndpointOrd`].
#[derive(Debug)]
pub struct EndpointPool {
    endpoints: Vec<Endpoint>,
    connector: Connector,
    tls: Arc<rustls::ClientConfig>,
    timeouts: Timeouts,
}

#[derive(Debug)]
struct Endpoint {
    spec: EndpointSpec,
    host: HeaderValue,
    /// Where it takes calls, by kind.
    paths: Vec<Uri>,
    /// What clients must not read.
    secrets: Arc<[String]>,
    idle: Arc<IdleConnections>,
    /// Probes have connections of their own, so that they never take one from a request.
    idle_for_probes: Arc<IdleConnections>,
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
        let tls = tls_config(needs_tls)?;
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls.clone())
            .https_or_http()
            .enable_http1()
            .wrap_connector(MapResponse::new(tcp, WatchedStream::wrap as fn(_) -> _));
        let endpoints = endpoints.into_iter().map(Endpoint::new).collect::<std::io::Result<_>>()?;
        Ok(Self { endpoints, connector, tls: Arc::new(tls), timeouts })
    }

    /// The limits in force.
    #[must_use]
    pub const fn timeouts(&self) -> &Timeouts {
        &self.timeouts
    }

    /// The same endpoints, measured through TLS with these certificates to trust.
    #[cfg(test)]
    pub(super) fn measured_through(mut self, tls: rustls::ClientConfig) -> Self {
        self.endpoints.iter_mut().for_each(|endpoint| endpoint.spec.scheme = Scheme::HTTPS);
        self.tls = Arc::new(tls);
        self
    }

    /// How TLS is spoken with endpoints.
    pub(super) fn tls(&self) -> Arc<rustls::ClientConfig> {
        Arc::clone(&self.tls)
    }

    /// Every endpoint with its ordinal.
    pub fn iter(&self) -> impl Iterator<Item = (EndpointOrd, &EndpointSpec)> {
        (0u32..).map(EndpointOrd).zip(self.endpoints.iter().map(|endpoint| &endpoint.spec))
    }

    /// What must be kept out of what clients read: an endpoint's key, its host with the port, and its host
    /// alone. A host of one label, as containers have them, may be any word: alone it says nothing.
    #[must_use]
    pub fn secrets(&self, endpoint: EndpointOrd) -> &Arc<[String]> {
        &self.endpoints[endpoint.idx()].secrets
    }

    /// Posts a JSON body to where the endpoint takes calls of its kind. How fast it left is in the extensions of the
    /// answer ([`super::Upload`]), where that could be seen.
    ///
    /// # Errors
    /// No response head within the limits; nothing of an answer has been seen then.
    pub async fn post(
        &self,
        endpoint: EndpointOrd,
        post: Post<'_>,
    ) -> Result<Response<AnswerBody>, SendError> {
        let Post { call, headers, body, first_byte } = post;
        let endpoint = &self.endpoints[endpoint.idx()];
        let request = || endpoint.request(Method::POST, endpoint.path_of(call), headers, &body);
        self.send((endpoint, &endpoint.idle), request, first_byte).await
    }

    /// What is known of `endpoint`.
    #[must_use]
    pub fn spec(&self, endpoint: EndpointOrd) -> &EndpointSpec {
        &self.endpoints[endpoint.idx()].spec
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
        let bounds = PageBounds { time: limit, bytes: STATUS_BODY_MAX };
        let (status, body) = self.get_page(endpoint, path, bounds).await?;
        // The status says enough.
        Ok((status, body.unwrap_or_default()))
    }

    /// Gets `path` from the endpoint's root (not its base path); `None` where the body is larger than allowed
    /// or does not end in time.
    ///
    /// # Errors
    /// No response head in time.
    pub async fn get_page(
        &self,
        endpoint: EndpointOrd,
        path: &str,
        bounds: PageBounds,
    ) -> Result<(StatusCode, Option<Bytes>), SendError> {
        let PageBounds { time: limit, bytes } = bounds;
        let endpoint = &self.endpoints[endpoint.idx()];
        endpoint.idle.sweep();
        endpoint.idle_for_probes.sweep();
        let path = endpoint.spec.path("", path)?;
        let headers = [(header::ACCEPT, HeaderValue::from_static("*/*"))];
        let request = || endpoint.request(Method::GET, path.clone(), &headers, &Bytes::new());
        let response = self.send((endpoint, &endpoint.idle_for_probes), request, limit).await?;
        let status = response.status();
        let drained = Limited::new(response.into_body(), bytes).collect();
        let body = timeout(limit, drained).await.ok().and_then(Result::ok);
        Ok((status, body.map(Collected::to_bytes)))
    }

    /// Sends a request, and once more over a new connection where a kept one turned out to be closed already.
    async fn send(
        &self,
        (endpoint, idle): (&Endpoint, &Arc<IdleConnections>),
        request: impl Fn() -> Request<Full<Bytes>>,
        limit: Duration,
    ) -> Result<Response<AnswerBody>, SendError> {
        // In its place: too large to be moved about.
        let mut sending = pin!(async {
            if let Some(mut kept) = idle.take() {
                match kept.exchange(request()).await {
                    Ok(response) => return Ok(answered(response, kept, idle)),
                    Err(broken) if broken.was_silent => {}
                    Err(broken) => return Err(SendError::Broken(broken.source)),
                }
            }
            // Boxed: large, and most requests find a connection kept.
            Box::pin(self.send_anew(endpoint, idle, request())).await
        });
        timeout(limit, sending.as_mut()).await.unwrap_or(Err(SendError::FirstByteTimeout(limit)))
    }

    async fn send_anew(
        &self,
        endpoint: &Endpoint,
        idle: &Arc<IdleConnections>,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<AnswerBody>, SendError> {
        let mut fresh = self.connect(endpoint).await?;
        match fresh.exchange(request).await {
            Ok(response) => Ok(answered(response, fresh, idle)),
            Err(broken) => Err(SendError::Broken(broken.source)),
        }
    }

    /// A new connection, TLS included, within the limit on connecting.
    async fn connect(&self, endpoint: &Endpoint) -> Result<Box<EndpointConnection>, SendError> {
        let connecting = self.connector.clone().oneshot(endpoint.spec.origin()?);
        match timeout(self.timeouts.connect, connecting).await {
            Ok(Ok(stream)) => EndpointConnection::over(stream).await.map_err(SendError::Broken),
            Ok(Err(error)) => Err(SendError::Connect(error)),
            Err(elapsed) => Err(SendError::Connect(elapsed.into())),
        }
    }
}

impl Endpoint {
    fn new(spec: EndpointSpec) -> std::io::Result<Self> {
        let host = HeaderValue::from_str(spec.authority.as_str()).map_err(std::io::Error::other)?;
        let path_of = |call: &ApiCall| spec.path(&spec.base_path, call.path());
        let paths = ApiCall::ALL.iter().map(path_of).collect::<Result<_, _>>();
        let paths = paths.map_err(std::io::Error::other)?;
        let secrets = spec.secrets().filter(|secret| !secret.is_empty()).map(str::to_owned).collect();
        Ok(Self { spec, host, paths, secrets, idle: Arc::default(), idle_for_probes: Arc::default() })
    }

    /// A request that names the endpoint and shows it its own key.
    fn request(
        &self,
        method: Method,
        path: Uri,
        headers: &[(HeaderName, HeaderValue)],
        body: &Bytes,
    ) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = method;
        *request.uri_mut() = path;
        // Host, the key if there is one, and the length, which hyper adds.
        let n_headers = headers.len() + 2 + usize::from(self.spec.api_key.is_some());
        let mut all = HeaderMap::with_capacity(n_headers);
        all.insert(header::HOST, self.host.clone());
        if let Some(key) = &self.spec.api_key {
            all.insert(header::AUTHORIZATION, key.clone());
        }
        for (name, value) in headers {
            all.append(name, value.clone());
        }
        *request.headers_mut() = all;
        request
    }

    fn path_of(&self, call: ApiCall) -> Uri {
        self.paths[call as usize].clone()
    }
}

/// How TLS is spoken with endpoints. The system's certificate store is read only where it is needed.
///
/// # Errors
/// When it cannot be read.
pub(super) fn tls_config(needs_roots: bool) -> std::io::Result<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(std::io::Error::other)?;
    Ok(if needs_roots {
        builder.with_native_roots()?.with_no_client_auth()
    } else {
        builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth()
    })
}

fn answered(
    response: Response<Incoming>,
    connection: Box<EndpointConnection>,
    idle: &Arc<IdleConnections>,
) -> Response<AnswerBody> {
    let uploaded = connection.uploaded();
    let mut response = response.map(|incoming| AnswerBody::new(incoming, connection, Arc::clone(idle)));
    if let Some(upload) = uploaded {
        response.extensions_mut().insert(upload);
    }
    response
}

impl EndpointSpec {
    fn secrets(&self) -> impl Iterator<Item = &str> {
        let key = self.api_key.as_ref().and_then(|value| value.to_str().ok());
        let key = key.map(|value| value.strip_prefix("Bearer ").unwrap_or(value));
        let host = Some(self.authority.host()).filter(|host| host.contains(['.', ':']));
        key.into_iter().chain([self.authority.as_str()]).chain(host)
    }

    fn path(&self, base: &str, suffix: &str) -> Result<Uri, http::Error> {
        Ok(PathAndQuery::try_from(format!("{base}{suffix}"))?.into())
    }

    /// Where to connect to.
    fn origin(&self) -> Result<Uri, http::Error> {
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query("/")
            .build()
    }
}

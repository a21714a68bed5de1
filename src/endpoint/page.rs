//! Small pages of servers that are no endpoints, such as metrics exporters, and what such servers are told.

use std::error::Error;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

use super::causes::innermost;
use super::pool::tls_config;

/// Most that is read of a page.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Time to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// A connection is kept this long without use.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// Gets pages; connections are kept for the next one. Clones share them.
#[derive(Debug, Clone)]
pub struct PageClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// No connection, or it broke.
    #[error("cannot be reached: {}", innermost(.0))]
    Unreachable(#[source] hyper_util::client::legacy::Error),
    /// An answer with another status than a good one.
    #[error("answers with status {0}")]
    Status(StatusCode),
    /// The body broke off or is too long.
    #[error("its page broke off or is longer than {PAGE_BYTES_MAX} bytes")]
    Body(#[source] Box<dyn Error + Send + Sync>),
    /// It took too long.
    #[error("took longer than {0:?}")]
    Timeout(Duration),
}

impl PageClient {
    /// A client for these pages.
    ///
    /// # Errors
    /// When the system's certificate store cannot be read and a page needs TLS.
    pub fn new<'a>(pages: impl IntoIterator<Item = &'a Uri>) -> io::Result<Self> {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT_LIMIT));
        let needs_tls = pages.into_iter().any(|uri| uri.scheme_str() == Some("https"));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls_config(needs_tls)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new()).pool_idle_timeout(IDLE_LIMIT).build(connector);
        Ok(Self { client })
    }

    /// Gets `page`.
    ///
    /// # Errors
    /// No page with status 200 and a body of reasonable length within `limit`.
    pub async fn get(&self, page: &Uri, limit: Duration) -> Result<Bytes, PageError> {
        timeout(limit, self.get_unhurried(page)).await.unwrap_or(Err(PageError::Timeout(limit)))
    }

    /// Posts a JSON document to `page`.
    ///
    /// # Errors
    /// No answer of success within `limit`.
    pub async fn post_json(&self, page: &Uri, body: String, limit: Duration) -> Result<(), PageError> {
        timeout(limit, self.post_unhurried(page, body)).await.unwrap_or(Err(PageError::Timeout(limit)))
    }

    async fn post_unhurried(&self, page: &Uri, body: String) -> Result<(), PageError> {
        let mut request = Request::new(Full::from(body));
        (*request.method_mut(), *request.uri_mut()) = (Method::POST, page.clone());
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let response = self.client.request(request).await.map_err(PageError::Unreachable)?;
        let status = response.status();
        // The connection can be used again once the answer is read.
        let body = Limited::new(response.into_body(), PAGE_BYTES_MAX).collect().await;
        body.map_err(PageError::Body)?;
        if status.is_success() { Ok(()) } else { Err(PageError::Status(status)) }
    }

    async fn get_unhurried(&self, page: &Uri) -> Result<Bytes, PageError> {
        let mut request = Request::new(Full::default());
        *request.uri_mut() = page.clone();
        request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("text/plain, */*;q=0.5"));
        let response = self.client.request(request).await.map_err(PageError::Unreachable)?;
        if response.status() != StatusCode::OK {
            return Err(PageError::Status(response.status()));
        }
        let body = Limited::new(response.into_body(), PAGE_BYTES_MAX).collect().await;
        Ok(body.map_err(PageError::Body)?.to_bytes())
    }
}

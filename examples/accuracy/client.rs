//! The little HTTP client: one connection per request, since an open loop has no queue of its own.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// Time for a page.
const PAGE_LIMIT: Duration = Duration::from_secs(10);
/// Time for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(600);

/// Host and port of an HTTP server.
#[derive(Debug, Clone)]
pub(crate) struct Base(String);

impl FromStr for Base {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let uri: Uri = text.parse().with_context(|| format!("`{text}` is no URL"))?;
        ensure!(uri.scheme_str() == Some("http"), "`{text}` does not start with http://");
        let authority = uri.authority().with_context(|| format!("`{text}` has no host"))?;
        Ok(Self(authority.to_string()))
    }
}

impl Base {
    /// The body of a page.
    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Bytes> {
        let fetching = async {
            let response = self.send(Method::GET, path, HeaderMap::new(), Bytes::new()).await?;
            ensure!(response.status() == StatusCode::OK, "{}{path} answered {}", self.0, response.status());
            Ok(response.into_body().collect().await?.to_bytes())
        };
        timeout(PAGE_LIMIT, fetching).await.with_context(|| format!("{}{path} did not answer", self.0))?
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> anyhow::Result<Response<Incoming>> {
        let stream =
            TcpStream::connect(&self.0).await.with_context(|| format!("cannot connect to {}", self.0))?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request =
            Request::builder().method(method).uri(path).header("host", &self.0).body(Full::new(body))?;
        request.headers_mut().extend(headers);
        Ok(sender.send_request(request).await?)
    }

    /// A streamed chat, read to its end.
    pub(crate) async fn chat(&self, model: &str, prompt: &str, max_tokens: u32) -> anyhow::Result<Answer> {
        let body = serde_json::json!({
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let headers = [("content-type", "application/json"), ("x-cema-debug", "true")];
        let headers = headers.map(|(name, value)| {
            (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))
        });
        let asking = async {
            let path = "/v1/chat/completions";
            let response =
                self.send(Method::POST, path, HeaderMap::from_iter(headers), body.to_string().into()).await?;
            let (head, mut body) = response.into_parts();
            if head.status != StatusCode::OK {
                let body = body.collect().await?.to_bytes();
                bail!("{}: {}", head.status, String::from_utf8_lossy(&body));
            }
            let mut answer = Answer { headers: head.headers, ..Answer::default() };
            let mut open = Vec::new();
            while let Some(frame) = body.frame().await {
                let Ok(data) = frame?.into_data() else { continue };
                open.extend_from_slice(&data);
                while let Some(end) = open.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = open.drain(..=end).collect();
                    answer.read(&line)?;
                }
            }
            ensure!(answer.completion_tokens > 0, "the answer has no token counts");
            Ok(answer)
        };
        timeout(ANSWER_LIMIT, asking).await.context("no whole answer in time")?
    }
}

/// A streamed answer, read to its end.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    /// When each content event came.
    pub(crate) content_at: Vec<Instant>,
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
}

impl Answer {
    fn read(&mut self, line: &[u8]) -> anyhow::Result<()> {
        let Some(data) = line.strip_prefix(b"data: ") else { return Ok(()) };
        let Ok(event) = serde_json::from_slice::<Value>(data) else { return Ok(()) };
        ensure!(event.get("error").is_none(), "error in the stream: {event}");
        if event["choices"][0]["delta"]["content"].as_str().is_some_and(|content| !content.is_empty()) {
            self.content_at.push(Instant::now());
        }
        if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
            let count = |key: &str| usage[key].as_u64().unwrap_or_default();
            (self.prompt_tokens, self.completion_tokens) =
                (count("prompt_tokens"), count("completion_tokens"));
        }
        Ok(())
    }

    /// A header as text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

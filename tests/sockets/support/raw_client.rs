//! A client that sends exact bytes and sees exact bytes, chunk boundaries included.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::http1::{Framing, Head, Reader};
use super::in_time;

/// One connection.
#[derive(Debug)]
pub(crate) struct RawClient {
    reader: Reader<OwnedReadHalf>,
    write: OwnedWriteHalf,
}

/// An answer as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Status line and headers.
    pub(crate) head: Head,
    /// The HTTP chunks of a chunked body; one piece for other bodies.
    pub(crate) chunks: Vec<Vec<u8>>,
    /// Whether the body came to its end, or was cut by a close or reset.
    pub(crate) is_complete: bool,
}

impl Answer {
    /// The body.
    pub(crate) fn body(&self) -> Vec<u8> {
        self.chunks.concat()
    }

    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body()).unwrap()
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body()).unwrap()
    }
}

impl RawClient {
    pub(crate) async fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (read, write) = stream.into_split();
        Self { reader: Reader::new(read), write }
    }

    /// Sends these bytes and no others.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.write.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Sends a JSON `POST` with its length and the further header lines `headers`, each ended by CR LF.
    pub(crate) async fn post(&mut self, path: &str, headers: &str, body: impl AsRef<[u8]>) {
        let body = body.as_ref();
        let len = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len}\r\n{headers}\r\n"
        );
        self.send([head.as_bytes(), body].concat()).await;
    }

    /// Sends a `GET`.
    pub(crate) async fn get(&mut self, path: &str) {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await;
    }

    /// The next head, interim answers included.
    pub(crate) async fn head(&mut self) -> Head {
        in_time("an answer's head", self.reader.head())
            .await
            .unwrap()
            .expect("the server closed without an answer")
    }

    /// The next HTTP chunk of a chunked body, `None` after the last; an error if the body is cut.
    pub(crate) async fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        in_time("a chunk", self.reader.chunk()).await
    }

    /// The next answer with its body.
    pub(crate) async fn answer(&mut self) -> Answer {
        let head = self.head().await;
        in_time("an answer's body", self.answer_after(head)).await
    }

    /// The next answer if it has no body whatever its headers say, as after `HEAD`.
    pub(crate) async fn answer_to_head(&mut self) -> Answer {
        Answer { head: self.head().await, chunks: Vec::new(), is_complete: true }
    }

    /// Whether nothing comes for `quiet`. That something would have come a little later goes unnoticed.
    pub(crate) async fn stays_silent(&mut self, quiet: Duration) -> bool {
        tokio::time::timeout(quiet, self.reader.wait()).await.is_err()
    }

    /// Whether the server has closed the connection without further bytes; waits for either.
    pub(crate) async fn is_closed(&mut self) -> bool {
        in_time("the server to close", self.reader.some()).await.is_ok_and(|bytes| bytes.is_empty())
    }

    /// What comes next: bytes, or nothing if the server ends the connection, in good order or with a reset.
    pub(crate) async fn some_or_end(&mut self) -> Vec<u8> {
        in_time("bytes or an end", self.reader.some()).await.unwrap_or_default()
    }

    /// Ends the sending side; answers can still be read.
    pub(crate) async fn shutdown(&mut self) {
        self.write.shutdown().await.unwrap();
    }

    /// Leaves with a reset.
    pub(crate) fn reset(self) {
        self.write.as_ref().set_zero_linger().unwrap();
    }

    async fn answer_after(&mut self, head: Head) -> Answer {
        let mut chunks = Vec::new();
        let read = match head.framing() {
            _ if matches!(head.status(), 100..200 | 204 | 304) => Ok(()),
            Framing::Length(len) => self.reader.exact(len).await.map(|body| chunks.push(body)),
            Framing::Chunked => loop {
                match self.reader.chunk().await {
                    Ok(Some(chunk)) => chunks.push(chunk),
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
            },
            Framing::None => loop {
                match self.reader.some().await {
                    Ok(bytes) if bytes.is_empty() => break Ok(()),
                    Ok(bytes) => chunks.push(bytes),
                    Err(error) => break Err(error),
                }
            },
        };
        Answer { head, chunks, is_complete: read.is_ok() }
    }
}

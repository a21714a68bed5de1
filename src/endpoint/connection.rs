//! Connections to endpoints that know whether they went stale.
//!
//! A server may close a connection that was idle in the very moment the next request goes out on it. That
//! is nobody's failure: nothing of the request was answered, and it can go out again.

use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{self, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What has passed over one connection; an extra of its [`Connected`]. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Traffic(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    has_answered: AtomicBool,
    was_heard_since_write: AtomicBool,
}

impl Traffic {
    /// A request was answered over the connection, so that the next one finds it used.
    pub(super) fn note_answer(&self) {
        self.0.has_answered.store(true, Ordering::Relaxed);
    }

    /// Whether an earlier request was answered here, and not a byte came back to the last one.
    pub(super) fn is_stale(&self) -> bool {
        self.0.has_answered.load(Ordering::Relaxed) && !self.0.was_heard_since_write.load(Ordering::Relaxed)
    }

    fn note_read(&self) {
        self.0.was_heard_since_write.store(true, Ordering::Relaxed);
    }

    fn note_write(&self) {
        self.0.was_heard_since_write.store(false, Ordering::Relaxed);
    }
}

/// A TCP connection that keeps its [`Traffic`].
#[derive(Debug)]
pub(super) struct EndpointStream {
    stream: TcpStream,
    traffic: Traffic,
}

impl EndpointStream {
    /// Wraps what a connector made.
    pub(super) fn wrap(stream: TokioIo<TcpStream>) -> TokioIo<Self> {
        TokioIo::new(Self { stream: stream.into_inner(), traffic: Traffic::default() })
    }
}

impl Connection for EndpointStream {
    fn connected(&self) -> Connected {
        self.stream.connected().extra(self.traffic.clone())
    }
}

impl AsyncRead for EndpointStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let n_before = buf.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > n_before {
            self.traffic.note_read();
        }
        outcome
    }
}

impl AsyncWrite for EndpointStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.traffic.note_write();
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.traffic.note_write();
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

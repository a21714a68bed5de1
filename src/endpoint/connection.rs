//! One connection to an endpoint, driven by whoever uses it.
//!
//! A request, its answer's head and every piece of its body are read in the task of the client they are for:
//! no task runs per connection, nothing is handed from task to task, and dropping an answer closes the
//! connection at once, which is how servers learn that a client left.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::client::legacy::connect::{Connected, Connection as Connectable};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::muted_waker::MutedWaker;
use super::upload::{Upload, UploadClock};

/// Most that is read ahead of a response.
const READ_BUFFER_MAX: usize = 1 << 20;

/// A plain stream to an endpoint, or one through TLS, which is a kilobyte that plain ones do without.
type Stream = TokioIo<Either<WatchedStream, Box<TlsStream<TokioIo<TokioIo<WatchedStream>>>>>>;

/// A connection with nothing, or one exchange, under way.
pub(super) struct EndpointConnection {
    sender: SendRequest<Full<Bytes>>,
    /// `None` once the connection is over: it owns the queue of requests, and one that came too late to be taken from
    /// there is answered only when the queue goes.
    driver: Option<Connection<Stream, Full<Bytes>>>,
    watch: Arc<Watch>,
    /// What the driver wakes, and the same as a waker.
    muted: Arc<MutedWaker>,
    waker: Waker,
}

/// The connection broke before the head of an answer.
#[derive(Debug)]
pub(super) struct Broken {
    /// What hyper says of it.
    pub(super) source: hyper::Error,
    /// Not a byte came back: on a connection that was used before, the server may have closed it while the
    /// request was on its way.
    pub(super) was_silent: bool,
}

impl EndpointConnection {
    /// Speaks HTTP/1.1 over `stream`.
    pub(super) async fn over(stream: MaybeHttpsStream<TokioIo<WatchedStream>>) -> hyper::Result<Box<Self>> {
        let stream = match stream {
            MaybeHttpsStream::Http(plain) => Either::Left(plain.into_inner()),
            MaybeHttpsStream::Https(tls) => Either::Right(Box::new(tls.into_inner())),
        };
        let watched = match &stream {
            Either::Left(plain) => plain,
            Either::Right(tls) => tls.get_ref().0.inner().inner(),
        };
        let watch = Arc::clone(&watched.watch);
        let stream: Stream = TokioIo::new(stream);
        let (sender, driver) = http1::Builder::new().max_buf_size(READ_BUFFER_MAX).handshake(stream).await?;
        let muted = Arc::new(MutedWaker::default());
        let waker = Waker::from(Arc::clone(&muted));
        Ok(Box::new(Self { sender, driver: Some(driver), watch, muted, waker }))
    }

    /// Sends `request` and reads the head of its answer. The body of the answer moves only while the connection
    /// is [driven](Self::drive).
    ///
    /// Cancel-safe in that dropping the future and the connection ends the exchange.
    pub(super) async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Broken> {
        self.watch.was_heard.store(false, Ordering::Relaxed);
        self.watch.upload.reset();
        let mut answer = pin!(self.sender.send_request(request));
        let outcome = poll_fn(|cx| {
            self.drive(cx);
            // The answer moves only when the connection does, which wakes this task itself. A connection that
            // is over has answered, or has dropped the request.
            answer.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        })
        .await;
        let was_silent = !self.watch.was_heard.load(Ordering::Relaxed);
        outcome.map_err(|source| Broken { source, was_silent })
    }

    /// How fast the last request left, where that could be seen.
    pub(super) fn uploaded(&self) -> Option<Upload> {
        self.watch.upload.seen()
    }

    /// Moves what can be moved and has the task woken when there is more.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        self.muted.register(cx.waker());
        // The task runs for other reasons too: what was not woken has nothing to move.
        if let Some(driver) = &mut self.driver
            && self.muted.take_wake()
            // An error is told to the exchange under way too.
            && Pin::new(driver).poll(&mut Context::from_waker(&self.waker)).is_ready()
        {
            self.driver = None;
        }
    }

    /// Keeps wakes back while its user is at it.
    pub(super) fn mute(&self) {
        self.muted.mute();
    }

    /// Passes wakes on again; says whether one was kept back.
    pub(super) fn unmute(&self) -> bool {
        self.muted.unmute()
    }

    /// Whether it is kept for another request: the last answer was read to its end. Its user is not woken any more.
    pub(super) fn is_free(&mut self) -> bool {
        self.muted.register(Waker::noop());
        // Reading the end of an answer mostly got it ready for the next request.
        if self.sender.is_ready() { self.driver.is_some() } else { self.is_reusable() }
    }

    /// Whether another request can be sent: the last answer was read to its end and the server has not hung up.
    pub(super) fn is_reusable(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.driver.is_some() && self.sender.is_ready()
    }
}

impl fmt::Debug for EndpointConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointConnection").field("is_over", &self.driver.is_none()).finish_non_exhaustive()
    }
}

/// A TCP stream that notes when bytes come in and how they leave.
#[derive(Debug)]
pub(super) struct WatchedStream {
    stream: TcpStream,
    watch: Arc<Watch>,
}

/// What is noted of one exchange.
#[derive(Debug, Default)]
struct Watch {
    was_heard: AtomicBool,
    upload: UploadClock,
}

impl WatchedStream {
    /// Wraps what a connector made.
    pub(super) fn wrap(stream: TokioIo<TcpStream>) -> TokioIo<Self> {
        TokioIo::new(Self { stream: stream.into_inner(), watch: Arc::default() })
    }
}

impl Connectable for WatchedStream {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let n_before = buf.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > n_before {
            self.watch.was_heard.store(true, Ordering::Relaxed);
        }
        outcome
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch.upload.wrote(&outcome);
        outcome
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch.upload.wrote(&outcome);
        outcome
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    fn request() -> Request<Full<Bytes>> {
        Request::post("http://t/v1").header("host", "t").body(Full::new(Bytes::from_static(b"{}"))).unwrap()
    }

    #[tokio::test]
    async fn a_request_that_meets_the_end_of_a_kept_connection_is_silently_broken() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let stream = MaybeHttpsStream::Http(WatchedStream::wrap(TokioIo::new(client)));
        let mut connection = EndpointConnection::over(stream).await.unwrap();
        let serve = async {
            server.read_buf(&mut Vec::with_capacity(1024)).await.unwrap();
            server.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        };
        let (first, ()) = tokio::join!(connection.exchange(request()), serve);
        assert_eq!(first.unwrap().status(), 204);
        assert!(connection.is_reusable());
        // Its end is there after the last look and before the request.
        drop(server);
        let mut was_polled = false;
        let woken = poll_fn(|cx| {
            connection.muted.register(cx.waker());
            if std::mem::replace(&mut was_polled, true) { Poll::Ready(()) } else { Poll::Pending }
        });
        woken.await;
        let outcome = timeout(Duration::from_secs(5), connection.exchange(request()));
        let broken = outcome.await.expect("an outcome at once").unwrap_err();
        assert!(broken.was_silent, "{}", broken.source);
    }
}

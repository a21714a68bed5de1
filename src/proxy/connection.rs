//! One client connection: its clocks, and what its bytes say that hyper does not pass on.
//!
//! No clock runs while nothing is waited for. A clock that was set is left to run and looked at when it
//! goes off, which is far cheaper than to set and stop one for each request.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Sleep as HyperSleep, Timer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_rustls::server::TlsStream;

use super::connection_metrics::{ConnectionMetrics, CutReason};
use super::framing::FramingTracker;

/// No request, no moment.
const NO_REQUEST: u32 = u32::MAX;
const NO_MOMENT: u64 = u64::MAX;

/// How long a client may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionClocks {
    /// Without a request.
    pub keep_alive: Duration,
    /// From the first byte of a request's head to its last.
    pub head: Duration,
    /// Without taking a byte of an answer that is there for it.
    pub write_idle: Duration,
}

/// What the parts of one connection tell each other.
#[derive(Debug)]
pub(super) struct Watch {
    clocks: ConnectionClocks,
    metrics: ConnectionMetrics,
    opened: Instant,
    /// When the head that is coming began, in nanoseconds since `opened`.
    head_began_ns: AtomicU64,
    /// Number of the request with two lengths.
    two_lengths: AtomicU32,
    head_timer: Mutex<LazyTimer>,
}

impl Watch {
    pub(super) fn new(clocks: ConnectionClocks, metrics: ConnectionMetrics) -> Self {
        Self {
            clocks,
            metrics,
            opened: Instant::now(),
            head_began_ns: AtomicU64::new(NO_MOMENT),
            two_lengths: AtomicU32::new(NO_REQUEST),
            head_timer: Mutex::default(),
        }
    }

    pub(super) const fn clocks(&self) -> &ConnectionClocks {
        &self.clocks
    }

    /// Whether request number `n` of the connection, from 0, came with two lengths.
    pub(super) fn has_two_lengths(&self, n: u32) -> bool {
        self.two_lengths.load(Ordering::Relaxed) == n
    }

    /// Counts a connection that is ended for `reason`.
    pub(super) fn cut(&self, reason: CutReason) {
        self.metrics.cut(reason);
    }

    fn head_began(&self) -> Option<Instant> {
        match self.head_began_ns.load(Ordering::Relaxed) {
            NO_MOMENT => None,
            ns => Some(self.opened + Duration::from_nanos(ns)),
        }
    }

    /// Everything runs in the connection's task; atomics only make it shareable.
    fn note(&self, tracker: &FramingTracker) {
        let was_in_head = self.head_began_ns.load(Ordering::Relaxed) != NO_MOMENT;
        if tracker.is_in_head() != was_in_head {
            let now_ns = || u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(NO_MOMENT - 1);
            let began = if was_in_head { NO_MOMENT } else { now_ns() };
            self.head_began_ns.store(began, Ordering::Relaxed);
        }
        if let Some(n) = tracker.two_lengths() {
            self.two_lengths.store(n, Ordering::Relaxed);
        }
    }
}

/// Tells hyper how long to wait for a head: long while none has begun, not so long once one has.
#[derive(Debug, Clone)]
pub(super) struct HeadTimer(pub(super) Arc<Watch>);

impl Timer for HeadTimer {
    /// hyper starts one clock when it begins to wait for a head, and no others on a server's connection.
    fn sleep(&self, _: Duration) -> Pin<Box<dyn HyperSleep>> {
        Box::pin(HeadWait { watch: Arc::clone(&self.0), since: Instant::now() })
    }

    fn sleep_until(&self, _: std::time::Instant) -> Pin<Box<dyn HyperSleep>> {
        self.sleep(Duration::ZERO)
    }

    fn now(&self) -> std::time::Instant {
        Instant::now().into()
    }
}

/// The wait for one head.
#[derive(Debug)]
struct HeadWait {
    watch: Arc<Watch>,
    since: Instant,
}

impl HyperSleep for HeadWait {}

impl Future for HeadWait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Watch { clocks, .. } = *self.watch;
        // A head that began while the answer before it was under way has not been read since.
        let head_began = self.watch.head_began().map(|began| began.max(self.since));
        let deadline = head_began.map_or(self.since + clocks.keep_alive, |began| began + clocks.head);
        let mut timer = self.watch.head_timer.lock().unwrap_or_else(PoisonError::into_inner);
        ready!(timer.poll_until(deadline, cx));
        if head_began.is_some() {
            self.watch.cut(CutReason::SlowHead);
        }
        Poll::Ready(())
    }
}

/// A timer for deadlines that mostly move on before they come: it is set anew only when it goes off too
/// early or would go off too late.
#[derive(Debug, Default)]
struct LazyTimer(Option<Pin<Box<Sleep>>>);

impl LazyTimer {
    fn poll_until(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() > deadline {
            timer.as_mut().reset(deadline);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if timer.deadline() >= deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

/// A connection's bytes, in clear or through TLS.
#[derive(Debug)]
pub(super) enum ClientStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection's bytes with an eye on them.
#[derive(Debug)]
pub(super) struct ClientIo {
    stream: ClientStream,
    watch: Arc<Watch>,
    tracker: FramingTracker,
    /// Since when the client has taken nothing of what is there for it.
    blocked_since: Option<Instant>,
    write_timer: LazyTimer,
}

impl ClientIo {
    pub(super) fn new(stream: ClientStream, watch: Arc<Watch>) -> Self {
        Self {
            stream,
            watch,
            tracker: FramingTracker::default(),
            blocked_since: None,
            write_timer: LazyTimer::default(),
        }
    }

    /// Lets a write that waits for the client wait so long and no longer.
    fn within_limit<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.blocked_since = None;
            return written;
        }
        let since = *self.blocked_since.get_or_insert_with(Instant::now);
        ready!(self.write_timer.poll_until(since + self.watch.clocks.write_idle, cx));
        self.watch.cut(CutReason::WriteIdle);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing of its answer")))
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let n_before = buf.filled().len();
        ready!(match &mut this.stream {
            ClientStream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            ClientStream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        })?;
        this.tracker.push(&buf.filled()[n_before..]);
        this.watch.note(&this.tracker);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = match &mut this.stream {
            ClientStream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            ClientStream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        };
        this.within_limit(written, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = match &mut this.stream {
            ClientStream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            ClientStream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        };
        this.within_limit(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            ClientStream::Plain(stream) => stream.is_write_vectored(),
            ClientStream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = match &mut this.stream {
            ClientStream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            ClientStream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        };
        this.within_limit(flushed, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let closed = match &mut this.stream {
            ClientStream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            ClientStream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        };
        this.within_limit(closed, cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    async fn went_off(timer: &mut LazyTimer, deadline: Instant) -> Instant {
        poll_fn(|cx| timer.poll_until(deadline, cx)).await;
        Instant::now()
    }

    #[tokio::test(start_paused = true)]
    async fn a_lazy_timer_goes_off_at_the_deadline_it_is_asked_about() {
        let start = Instant::now();
        let second = |n: u64| start + Duration::from_secs(n);
        let mut timer = LazyTimer::default();
        let set = |timer: &mut LazyTimer, n| {
            let mut cx = Context::from_waker(std::task::Waker::noop());
            assert!(timer.poll_until(second(n), &mut cx).is_pending());
        };
        set(&mut timer, 5);
        assert_eq!(went_off(&mut timer, second(9)).await, second(9), "later than it was set to");
        set(&mut timer, 30);
        assert_eq!(went_off(&mut timer, second(12)).await, second(12), "earlier than it was set to");
        assert_eq!(went_off(&mut timer, second(13)).await, second(13), "after it went off");
    }

    fn watch() -> Arc<Watch> {
        let clocks = ConnectionClocks {
            keep_alive: Duration::from_secs(75),
            head: Duration::from_secs(30),
            write_idle: Duration::from_secs(60),
        };
        let metrics = ConnectionMetrics::register(&prometheus::Registry::new(), "api").unwrap();
        Arc::new(Watch::new(clocks, metrics))
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_has_begun_has_less_time_than_one_that_has_not() {
        let watch = watch();
        let start = Instant::now();
        HeadTimer(Arc::clone(&watch)).sleep(Duration::ZERO).await;
        assert_eq!(start.elapsed(), Duration::from_secs(75));

        let mut tracker = FramingTracker::default();
        tracker.push(b"GET / HT");
        let start = Instant::now();
        let wait = HeadTimer(Arc::clone(&watch)).sleep(Duration::ZERO);
        tokio::time::sleep(Duration::from_secs(70)).await;
        watch.note(&tracker);
        wait.await;
        assert_eq!(start.elapsed(), Duration::from_secs(100), "30 s for the head, however late it began");

        // Its start came with the request before it, whose answer took long.
        let start = Instant::now();
        HeadTimer(Arc::clone(&watch)).sleep(Duration::ZERO).await;
        assert_eq!(start.elapsed(), Duration::from_secs(30));

        tracker.push(b"TP/1.1\r\n\r\n");
        watch.note(&tracker);
        let start = Instant::now();
        HeadTimer(watch).sleep(Duration::ZERO).await;
        assert_eq!(start.elapsed(), Duration::from_secs(75), "the next one has not begun");
    }
}

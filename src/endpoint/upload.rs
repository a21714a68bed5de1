//! How fast a request's bytes left, as far as a socket shows it.
//!
//! Writing to a socket fills the system's buffer long before the bytes are anywhere. Once that buffer is full, every
//! further byte it takes is one that the other side has acknowledged: from then on the pace of writing is that of
//! the path. What fits into the buffer shows nothing, so only large bodies on slow paths are seen.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Poll;

use tokio::time::Instant;

use crate::units::{Bytes, Seconds};

/// What left of a request while the socket's buffer was full.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Upload {
    /// Bytes that the buffer took after it was full for the first time.
    pub bytes: Bytes,
    /// From then until it took the last of them.
    pub time: Seconds,
}

/// Watches the writes of one exchange.
#[derive(Debug, Default)]
pub(super) struct UploadClock {
    /// Whether the buffer was full since the exchange began; spares the lock where it was not.
    was_full: AtomicBool,
    clogged: Mutex<Option<Clogged>>,
}

#[derive(Debug, Clone, Copy)]
struct Clogged {
    since: Instant,
    until: Instant,
    n_bytes: usize,
}

impl UploadClock {
    /// An exchange begins.
    pub(super) fn reset(&self) {
        if self.was_full.swap(false, Ordering::Relaxed) {
            *self.lock() = None;
        }
    }

    /// A write had this outcome.
    pub(super) fn wrote(&self, outcome: &Poll<std::io::Result<usize>>) {
        match outcome {
            Poll::Ready(Ok(n)) if self.was_full.load(Ordering::Relaxed) => {
                if let Some(clogged) = &mut *self.lock() {
                    clogged.n_bytes += n;
                    clogged.until = Instant::now();
                }
            }
            Poll::Pending => {
                let now = Instant::now();
                self.lock().get_or_insert(Clogged { since: now, until: now, n_bytes: 0 });
                self.was_full.store(true, Ordering::Relaxed);
            }
            Poll::Ready(_) => {}
        }
    }

    /// What was seen since the exchange began.
    pub(super) fn seen(&self) -> Option<Upload> {
        if !self.was_full.load(Ordering::Relaxed) {
            return None;
        }
        let Clogged { since, until, n_bytes } = (*self.lock())?;
        let time = Seconds(until.duration_since(since).as_secs_f64());
        (n_bytes > 0).then_some(Upload { bytes: Bytes(n_bytes as f64), time })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Clogged>> {
        self.clogged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_written_into_a_full_buffer_sets_the_pace() {
        let clock = UploadClock::default();
        clock.wrote(&Poll::Ready(Ok(87_040)));
        assert_eq!(clock.seen(), None, "it fitted");
        clock.wrote(&Poll::Pending);
        assert_eq!(clock.seen(), None, "nothing has left since");
        for _ in 0..4 {
            tokio::time::advance(Duration::from_millis(250)).await;
            clock.wrote(&Poll::Ready(Ok(100_000)));
            clock.wrote(&Poll::Pending);
        }
        // 400 kB in a second; the first 87 kB count for nothing.
        let upload = clock.seen().unwrap();
        assert!(
            (upload.bytes.0 - 400_000.0).abs() < 1e-9 && (upload.time.0 - 1.0).abs() < 1e-9,
            "{upload:?}"
        );
        clock.reset();
        clock.wrote(&Poll::Ready(Ok(100)));
        assert_eq!(clock.seen(), None);
    }
}

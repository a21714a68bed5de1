//! A waker that can be muted by the task it would wake.
//!
//! A connection and the body it feeds are polled one after the other in the same task. Taking from the body wakes
//! whoever feeds it, which would have the task run once more for every piece of a stream, for nothing: it is
//! running, and polls the connection anyway.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Wake, Waker};

use futures_util::task::AtomicWaker;

const OPEN: u8 = 0;
const MUTED: u8 = 1;
const WOKEN: u8 = 2;

/// Passes wakes on to a task unless it is muted.
#[derive(Debug, Default)]
pub(super) struct MutedWaker {
    task: AtomicWaker,
    state: AtomicU8,
}

impl MutedWaker {
    /// From now on `waker` is woken.
    pub(super) fn register(&self, waker: &Waker) {
        self.task.register(waker);
    }

    /// Keeps wakes back.
    pub(super) fn mute(&self) {
        self.state.store(MUTED, Ordering::SeqCst);
    }

    /// Passes wakes on again; says whether one was kept back.
    pub(super) fn unmute(&self) -> bool {
        self.state.swap(OPEN, Ordering::SeqCst) == WOKEN
    }
}

impl Wake for MutedWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let was = self.state.compare_exchange(MUTED, WOKEN, Ordering::SeqCst, Ordering::SeqCst);
        if was == Err(OPEN) {
            self.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn wakes_are_kept_back_and_told_while_muted() {
        let counter = Arc::new(Counter(AtomicUsize::new(0)));
        let muted = Arc::new(MutedWaker::default());
        let waker = Waker::from(Arc::clone(&muted));
        let register = || muted.register(&Waker::from(Arc::clone(&counter)));
        register();
        waker.wake_by_ref();
        assert_eq!(counter.0.load(Ordering::SeqCst), 1);
        register();
        muted.mute();
        waker.wake_by_ref();
        waker.wake_by_ref();
        assert_eq!(counter.0.load(Ordering::SeqCst), 1);
        assert!(muted.unmute() && !muted.unmute());
        waker.wake();
        assert_eq!(counter.0.load(Ordering::SeqCst), 2);
    }
}

//! A waker that can be muted by the task it would wake.
//!
//! A connection and the body it feeds are polled one after the other in the same task. Taking from the body wakes
//! whoever feeds it, which would have the task run once more for every piece of a stream, for nothing: it is
//! running, and polls the connection anyway.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Wake, Waker};

use futures_util::task::AtomicWaker;

const OPEN: u8 = 0;
const MUTED: u8 = 1;
const WOKEN: u8 = 2;

/// Passes wakes on to a task unless it is muted.
#[derive(Debug)]
pub(super) struct MutedWaker {
    task: AtomicWaker,
    state: AtomicU8,
    /// Whether there was a wake, passed on or not, since it was asked last.
    was_woken: AtomicBool,
}

impl Default for MutedWaker {
    fn default() -> Self {
        let (task, state) = (AtomicWaker::new(), AtomicU8::new(OPEN));
        // Nothing was done yet.
        Self { task, state, was_woken: AtomicBool::new(true) }
    }
}

impl MutedWaker {
    /// Whether there was a wake since this was asked last; also the first time.
    pub(super) fn take_wake(&self) -> bool {
        self.was_woken.swap(false, Ordering::SeqCst)
    }

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
        self.was_woken.store(true, Ordering::SeqCst);
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
        assert!(muted.take_wake() && !muted.take_wake());
        waker.wake_by_ref();
        assert_eq!(counter.0.load(Ordering::SeqCst), 1);
        assert!(muted.take_wake() && !muted.take_wake());
        register();
        muted.mute();
        waker.wake_by_ref();
        waker.wake_by_ref();
        assert_eq!(counter.0.load(Ordering::SeqCst), 1);
        assert!(muted.unmute() && !muted.unmute());
        assert!(muted.take_wake(), "it was not passed on, but there was one");
        waker.wake();
        assert_eq!(counter.0.load(Ordering::SeqCst), 2);
    }
}

//! A bounded queue between many submitting tasks and a few plain threads.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// First in, first out; full is an answer, not a wait.
#[derive(Debug)]
pub(super) struct JobQueue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    capacity: usize,
}

#[derive(Debug)]
struct State<T> {
    jobs: VecDeque<T>,
    is_closed: bool,
}

impl<T> JobQueue<T> {
    /// An open queue for at most `capacity` jobs.
    pub(super) fn new(capacity: usize) -> Self {
        let state = State { jobs: VecDeque::new(), is_closed: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), capacity }
    }

    /// Appends `job` without waiting, or hands it back if the queue is full or closed.
    pub(super) fn push(&self, job: T) -> Result<(), T> {
        let mut state = self.lock();
        if state.is_closed || state.jobs.len() >= self.capacity {
            return Err(job);
        }
        state.jobs.push_back(job);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Takes the oldest job, waiting for one; `None` once the queue is closed.
    pub(super) fn pop(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Jobs waiting now.
    pub(super) fn len(&self) -> usize {
        self.lock().jobs.len()
    }

    /// Drops the waiting jobs and ends every [`JobQueue::pop`].
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.jobs.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// A panic between lock and unlock is impossible here, so a poisoned state is still sound.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_and_its_bound() {
        let queue = JobQueue::new(2);
        assert_eq!(queue.push(1), Ok(()));
        assert_eq!(queue.push(2), Ok(()));
        assert_eq!(queue.push(3), Err(3));
        assert_eq!((queue.pop(), queue.len()), (Some(1), 1));
        assert_eq!(queue.push(4), Ok(()));
        assert_eq!((queue.pop(), queue.pop()), (Some(2), Some(4)));
    }

    #[test]
    fn closing_wakes_the_waiting_and_refuses_the_late() {
        let queue = JobQueue::new(4);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.pop());
            queue.close();
            assert_eq!(waiting.join().unwrap(), None);
        });
        assert_eq!(queue.push(1), Err(1));
        assert_eq!(queue.pop(), None::<i32>);
    }
}

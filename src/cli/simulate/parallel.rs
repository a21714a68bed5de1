//! Independent pieces of work on all cores.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `work` of every item, in the order of the items whatever the number of threads.
pub(super) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let n_threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(items.len());
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        while let Some((i, item)) = {
            let i = next.fetch_add(1, Ordering::Relaxed);
            items.get(i).map(|item| (i, item))
        } {
            done.push((i, work(item)));
        }
        done
    };
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..n_threads).map(|_| scope.spawn(take)).collect();
        let mut results = take();
        for thread in threads {
            match thread.join() {
                Ok(done) => results.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        results
    });
    results.sort_by_key(|(i, _)| *i);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_worked_on_once_and_results_stay_in_order() {
        let items: Vec<u32> = (0..1_000).collect();
        let n_calls = AtomicUsize::new(0);
        let squares = map(&items, |i| {
            n_calls.fetch_add(1, Ordering::Relaxed);
            i * i
        });
        assert_eq!(squares, items.iter().map(|i| i * i).collect::<Vec<_>>());
        assert_eq!(n_calls.into_inner(), 1_000);
        assert!(map(&[] as &[u32], |i| *i).is_empty());
    }
}

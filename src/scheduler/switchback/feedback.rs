//! What clients say of answers, for the policy in whose slice they were asked for.

use tokio::sync::broadcast;

use super::Switchback;
use crate::profiler::quality::feedback::Given;

impl Switchback {
    /// Takes in what clients say, for ever.
    pub async fn follow_feedback(self, mut given: broadcast::Receiver<Given>) {
        loop {
            match given.recv().await {
                Ok(given) => self.scored(&given),
                // Some were missed; those that follow are not.
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    }

    pub(super) fn scored(&self, given: &Given) {
        let Some(of) = given.answered.trial else { return };
        let mut books = self.books();
        let kept = books.slices.binary_search_by_key(&of.number, |kept| kept.slice.number);
        if let Some(kept) = kept.ok().and_then(|at| books.slices.get_mut(at)) {
            kept.tally.give(given.score, given.previous);
        }
        if let Some((tally, _)) = books.totals.get_mut(of.policy) {
            tally.give(given.score, given.previous);
        }
    }
}

//! What meters say of requests, a moment after they are over: it takes the place of the modelled energy.

use std::sync::Arc;

use tokio::sync::broadcast;

use super::{Books, Ending, Switchback};
use crate::domain::DestinationOrd;
use crate::planning::Slice;
use crate::profiler::power::{EnergySource, Settled};
use crate::units::Joules;

/// A request of which a meter may still tell.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) slice: Slice,
    /// Where it was answered and what it is taken to have drawn there; `None` while it is under way.
    pub(super) answered: Option<(DestinationOrd, Joules)>,
    /// What it drew at destinations that failed it.
    drawn_before: Joules,
    /// ω_E.
    weight: f64,
}

impl Open {
    pub(super) const fn new(slice: Slice, weight: f64) -> Self {
        Self { slice, answered: None, drawn_before: Joules::ZERO, weight }
    }
}

impl Switchback {
    /// Takes in what `settled` tells, for ever.
    pub async fn follow(self, mut settled: broadcast::Receiver<Settled>) {
        loop {
            match settled.recv().await {
                Ok(settled) => self.settled(&settled),
                // Of some the modelled energy stands.
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    }

    pub(super) fn settled(&self, settled: &Settled) {
        self.books().settled(settled);
    }
}

impl Books {
    /// The open request `id` is over, at `destination`.
    pub(super) fn close(&mut self, id: &Arc<str>, ending: &Ending, destination: Option<DestinationOrd>) {
        let (Ending::Answered(realised), Some(d)) = (ending, destination) else {
            self.open.remove(id);
            return;
        };
        let Some(open) = self.open.get_mut(id) else { return };
        open.answered = Some((d, realised.joules));
        let (slice, drawn_before, weight) = (open.slice, open.drawn_before, open.weight);
        self.correct(slice, drawn_before, weight);
    }

    fn settled(&mut self, settled: &Settled) {
        let is_measured = settled.source == EnergySource::Measured;
        let Some(open) = self.open.get_mut(&settled.request_id) else { return };
        let (slice, weight) = (open.slice, open.weight);
        let more = match open.answered {
            None => {
                if is_measured {
                    open.drawn_before += settled.joules;
                }
                return;
            }
            Some((d, modelled)) if d == settled.destination => {
                self.open.remove(&settled.request_id);
                settled.joules - modelled
            }
            // Of one that failed it, told late.
            Some(_) => settled.joules,
        };
        if is_measured {
            self.correct(slice, more, weight);
        }
    }

    fn correct(&mut self, slice: Slice, more: Joules, weight: f64) {
        if let Some(kept) = self.kept(slice) {
            kept.tally.correct_energy(more, weight);
        }
        self.totals[slice.policy].0.correct_energy(more, weight);
    }
}

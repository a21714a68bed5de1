//! When a request could be done at the earliest, which is what its deadline is held against.

use super::build::{BatchItem, Usage};
use crate::domain::{CompletionModel, Destination, DestinationOrd, DestinationState, RoutingContext};
use crate::routing::completion::timeline::Timeline;
use crate::units::Seconds;

/// A fleet in one state, asked when requests would be done.
#[derive(Debug)]
pub struct EarliestFinish<'c> {
    context: &'c RoutingContext,
    completion: CompletionModel,
    timelines: Vec<Timeline>,
}

impl<'c> EarliestFinish<'c> {
    /// Predicts by `completion` what `context` would do with one request more.
    #[must_use]
    pub fn new(context: &'c RoutingContext, completion: CompletionModel) -> Self {
        let timelines = context.iter().map(|(_, d, state)| Timeline::new(completion, d, state)).collect();
        Self { context, completion, timelines }
    }

    /// The fleet it was made of.
    #[must_use]
    pub const fn context(&self) -> &RoutingContext {
        self.context
    }

    /// Least predicted time from now to the last byte over the legal destinations, were it sent now. What waits in the
    /// router before it does not count.
    #[must_use]
    pub fn of(&self, item: &BatchItem<'_>) -> Seconds {
        let at = |(d, destination, state): (DestinationOrd, &Destination, &DestinationState)| {
            let usage = Usage::new(item, (d, destination, state));
            item.legal.contains(d).then(|| usage.finish(&self.timelines[d.idx()]))
        };
        self.context.iter().filter_map(at).fold(Seconds(f64::INFINITY), Seconds::min)
    }

    /// The same had the destinations nothing else to do.
    #[must_use]
    pub fn alone(&self, item: &BatchItem<'_>) -> Seconds {
        let at = |(d, destination, state): (DestinationOrd, &Destination, &DestinationState)| {
            let DestinationState { availability, pace, warm_up, lateness, .. } = *state;
            let idle = DestinationState { availability, pace, warm_up, lateness, ..DestinationState::idle() };
            let timeline = Timeline::new(self.completion, destination, &idle);
            item.legal.contains(d).then(|| Usage::new(item, (d, destination, &idle)).finish(&timeline))
        };
        self.context.iter().filter_map(at).fold(Seconds(f64::INFINITY), Seconds::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::legal::legal_set;
    use crate::routing::testing::{context, destination, prediction, request};

    #[test]
    fn the_earliest_of_the_legal_destinations_with_what_they_have_to_do_or_without() {
        let mut fleet = context(vec![destination("a", "m"), destination("b", "m")]);
        fleet.states[0].backlog = Seconds(4.0);
        fleet.states[1].backlog = Seconds(9.0);
        (fleet.states[1].pace, fleet.states[1].lateness) = (2.0, 1.5);
        let (request, prediction) = (request(), prediction(&[0.7, 0.9], &[200.0, 100.0]));
        let earliest = EarliestFinish::new(&fleet, CompletionModel::Fifo);
        let of = |excluded: &[DestinationOrd]| {
            let legal = legal_set(&request, None, &fleet, excluded).unwrap();
            let waited = Seconds::ZERO;
            let item = BatchItem { request: &request, prediction: &prediction, legal: &legal, waited };
            (earliest.of(&item).0, earliest.alone(&item).0)
        };
        // At a: 0.02 + 0.0108 + max(2.5, 4 + 2.5 / 4), alone 2.5; at b, twice as fast and half as late again:
        // 0.02 + 0.0104 + 1.5 · (9 + 0.75 / 4), alone 1.5 · 0.75.
        let (a, b) = ((4.6558, 2.5308), (0.0304 + 1.5 * 9.1875, 0.0304 + 1.5 * 0.75));
        let is = |got: (f64, f64), of: f64, alone: f64| (got.0 - of).abs() + (got.1 - alone).abs() < 1e-9;
        assert!(is(of(&[DestinationOrd(1)]), a.0, a.1), "{:?}", of(&[DestinationOrd(1)]));
        assert!(is(of(&[DestinationOrd(0)]), b.0, b.1), "{:?}", of(&[DestinationOrd(0)]));
        assert!(is(of(&[]), a.0, b.1), "{:?}", of(&[]));
    }
}

//! A logged situation with another fleet.
//!
//! What was measured (speeds, slots, paths) stays as it was logged; class, price, power, context and capabilities are
//! those configured now. Destinations that are gone are taken out; new ones are idle, have their configured figures, and
//! predict what a destination of the same model does, else their prior and the mean length.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::domain::{
    CachedPrefix, Destination, DestinationOrd, DestinationState, Network, Prediction, RoutingRequest,
};
use crate::planning::{PlanJob, Waiting};
use crate::units::Tokens;

/// Puts `fleet` in the place of the logged destinations.
pub(super) fn refit(job: &mut PlanJob, fleet: &Arc<[Destination]>) {
    let logged = Arc::clone(&job.context.destinations);
    let position: BTreeMap<&str, usize> =
        logged.iter().enumerate().map(|(at, destination)| (destination.id.as_str(), at)).collect();
    let was: Vec<Option<usize>> = fleet.iter().map(|d| position.get(d.id.as_str()).copied()).collect();
    let figures = |(now, was): (&Destination, &Option<usize>)| match was {
        Some(was) => Destination {
            class: now.class,
            price: now.price,
            power: now.power,
            context: now.context,
            capabilities: now.capabilities,
            endpoint: now.endpoint,
            network: Network {
                transfer_energy: now.network.transfer_energy,
                usd_per_gb: now.network.usd_per_gb,
                ..logged[*was].network
            },
            ..logged[*was].clone()
        },
        None => now.clone(),
    };
    let states = &job.context.states;
    let state = |was: &Option<usize>| was.map_or(DestinationState::idle(), |was| states[was]);
    let next_states: Vec<_> = was.iter().map(state).collect();
    let destinations: Arc<[Destination]> = fleet.iter().zip(&was).map(figures).collect();
    job.context.states = next_states;
    let moved = Moved { logged: &logged, now: &destinations, was: &was };
    job.waiting.iter_mut().for_each(|waiting| moved.refit(waiting));
    job.context.destinations = destinations;
}

struct Moved<'a> {
    logged: &'a [Destination],
    now: &'a [Destination],
    /// Where each destination of now was.
    was: &'a [Option<usize>],
}

impl Moved<'_> {
    fn refit(&self, waiting: &mut Waiting) {
        let is_same = self.was.len() == self.logged.len()
            && self.was.iter().enumerate().all(|(at, was)| *was == Some(at));
        if is_same {
            return;
        }
        let request = &waiting.request;
        let cached = self.was.iter().map(|was| was.map_or(Tokens::ZERO, |was| request.cached.at(ord(was))));
        let cached = CachedPrefix::new(cached.collect());
        waiting.prediction = Arc::new(self.prediction(&waiting.prediction));
        waiting.request = Arc::new(RoutingRequest { cached, ..(**request).clone() });
        let failed = (0..).map(DestinationOrd).zip(self.was);
        let excluded = &waiting.excluded;
        waiting.excluded = failed
            .filter(|(_, was)| was.is_some_and(|was| excluded.contains(&ord(was))))
            .map(|(now, _)| now)
            .collect();
    }

    fn prediction(&self, logged: &Prediction) -> Prediction {
        let alike = |destination: &Destination| self.logged.iter().position(|d| d.model == destination.model);
        let n = logged.completion_tokens.len().max(1) as f64;
        let mean = Tokens(logged.completion_tokens.iter().map(|tokens| tokens.0).sum::<f64>() / n);
        let has_clusters = logged.cluster_error.len() == self.logged.len();
        let error = |(now, was): (&Destination, &Option<usize>)| {
            // Of a destination that nothing is known of: as good as it is taken to be.
            was.or_else(|| alike(now)).map_or(1.0 - now.quality_prior.0, |was| logged.cluster_error[was])
        };
        let pairs = || self.now.iter().zip(self.was);
        let cluster_error = if has_clusters { pairs().map(error).collect() } else { Vec::new() };
        let of = |(now, was): (&Destination, &Option<usize>)| match was.or_else(|| alike(now)) {
            Some(was) => (logged.quality[was], logged.completion_tokens[was]),
            None => (now.quality_prior, mean),
        };
        let (quality, completion_tokens) = pairs().map(of).unzip();
        Prediction { quality, completion_tokens, cluster_error, source: logged.source }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a position in a fleet, whose ordinals are u32")]
const fn ord(at: usize) -> DestinationOrd {
    DestinationOrd(at as u32)
}

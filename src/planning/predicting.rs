//! What is expected of each request where a plan sends it.

use std::sync::Arc;

use super::plan::{Planned, Waiting};
use crate::domain::{CompletionModel, DestinationOrd, RequestEstimate, RoutingContext};
use crate::routing::Problem;
use crate::routing::completion::timeline::Timeline;
use crate::units::Seconds;

/// The timeline of every destination while the requests of a plan go to them, in their order.
pub(super) struct Predicting<'c> {
    context: &'c RoutingContext,
    timelines: Vec<Timeline>,
}

impl<'c> Predicting<'c> {
    pub(super) fn new(context: &'c RoutingContext, completion: CompletionModel) -> Self {
        let timelines = context.iter().map(|(_, d, state)| Timeline::new(completion, d, state)).collect();
        Self { context, timelines }
    }

    /// The next request of the plan, row `row` of `problem`, goes to `d`.
    pub(super) fn planned(
        &mut self,
        waiting: &Waiting,
        d: DestinationOrd,
        (problem, row): (&Problem, usize),
        greedy_finish: Option<Seconds>,
    ) -> Planned {
        let (request, destination) = (&waiting.request, &self.context.destinations[d.idx()]);
        let predicted = waiting.prediction.completion_tokens[d.idx()];
        let mut work = request.work((d, &destination.throughput), predicted);
        let state = &self.context.states[d.idx()];
        work.prefill += Seconds(state.warm_up.0 * state.pace);
        let network = destination.network.rtt + problem.transfer(row, d);
        let timeline = &mut self.timelines[d.idx()];
        let times = timeline.predict(work);
        timeline.push(work);
        let estimate = RequestEstimate {
            quality: problem.quality(row, d),
            usd: problem.cost(row, d),
            joules: problem.energy(row, d),
            service: problem.service(row, d),
            completion: network + Seconds(times.finish.0 * state.lateness),
        };
        Planned {
            ticket: waiting.ticket,
            request_id: Arc::clone(&request.id),
            destination: d,
            estimate,
            completion: request.completion(predicted),
            cached: request.cached.at(d),
            work,
            first_content: network + times.first_content,
            network,
            greedy_finish,
            source: waiting.prediction.source,
        }
    }
}

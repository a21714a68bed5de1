//! What is expected of each request where a plan sends it.

use std::sync::Arc;

use super::plan::{Planned, Waiting};
use crate::domain::{CompletionModel, DestinationOrd, RequestEstimate, RoutingContext};
use crate::routing::completion::slots::SlotTimeline;
use crate::units::Seconds;

/// The slots of every destination while the requests of a plan go to them, in their order.
pub(super) struct Predicting<'c> {
    context: &'c RoutingContext,
    completion: CompletionModel,
    timelines: Vec<SlotTimeline>,
}

impl<'c> Predicting<'c> {
    pub(super) fn new(context: &'c RoutingContext, completion: CompletionModel) -> Self {
        let timelines = match completion {
            CompletionModel::Fifo => Vec::new(),
            CompletionModel::Slots => {
                context.iter().map(|(_, d, state)| SlotTimeline::new(d.throughput, state)).collect()
            }
        };
        Self { context, completion, timelines }
    }

    /// The next request of the plan goes to `d`. `estimate` has its completion by Eq. 4, and `transfer` is its time
    /// on the wire.
    pub(super) fn planned(
        &mut self,
        waiting: &Waiting,
        d: DestinationOrd,
        (mut estimate, transfer): (RequestEstimate, Seconds),
    ) -> Planned {
        let (request, destination) = (&waiting.request, &self.context.destinations[d.idx()]);
        let completion = request.completion(waiting.prediction.completion_tokens[d.idx()]);
        let mut work = destination.throughput.work(request.prompt_tokens, completion);
        let state = &self.context.states[d.idx()];
        work.prefill += state.warm_up;
        let network = destination.network.rtt + transfer;
        let first_content = match self.completion {
            CompletionModel::Fifo => estimate.completion - Seconds(work.decode.0 / state.pace),
            CompletionModel::Slots => {
                let timeline = &mut self.timelines[d.idx()];
                let times = timeline.predict(work);
                timeline.push(work);
                estimate.completion = network + times.finish;
                network + times.first_content
            }
        };
        Planned {
            ticket: waiting.ticket,
            request_id: Arc::clone(&request.id),
            destination: d,
            estimate,
            completion,
            work,
            first_content: first_content.max(Seconds::ZERO),
            network,
            source: waiting.prediction.source,
        }
    }
}

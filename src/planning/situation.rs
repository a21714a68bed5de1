//! What is outstanding where, what that costs, and the scales in force: the dynamic half of the routing context.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::messages::Ticket;
use super::plan::Planned;
use super::planner::PlannerParams;
use super::price::CongestionPrice;
use super::scales::{ScalesAverage, reference_work};
use crate::domain::{
    Availability, BacklogLedger, CompletionModel, Destination, DestinationOrd, DestinationState, FleetView,
    ObjectiveScales, Outstanding, RoutingContext, SlotLoad,
};
use crate::routing::Problem;
use crate::units::Seconds;

/// Room at one destination.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    /// Requests that its engine could start now.
    pub(super) in_slots: u32,
    /// Requests that may go there, the queue of its engine included.
    pub(super) in_queue: u32,
    /// Whether it may be sent anything.
    pub(super) takes_work: bool,
    /// Time until the prompt of another request would begin to be read.
    pub(super) read_in: Seconds,
    pub(super) rtt: Seconds,
}

/// The fleet under load.
#[derive(Debug)]
pub(super) struct Situation {
    /// Backlog, requests in flight, prices and scales as of the last look at it.
    context: RoutingContext,
    completion: CompletionModel,
    ledger: BacklogLedger,
    running: BTreeMap<Ticket, Outstanding>,
    /// What others have at each destination.
    elsewhere: Vec<SlotLoad>,
    /// Waiting requests that the last plan would send to each destination.
    spoken_for: Vec<u32>,
    prices: Option<Vec<CongestionPrice>>,
    /// Whether plans are made with the prices.
    pays_prices: bool,
    scales: ScalesAverage,
}

impl Situation {
    pub(super) fn new(params: &PlannerParams, destinations: Arc<[Destination]>, now: Seconds) -> Self {
        let throughputs = destinations.iter().map(|d| d.throughput);
        let ledger = BacklogLedger::new(params.completion, throughputs, now);
        let scales = ScalesAverage::from_fleet(&destinations);
        let n = destinations.len();
        let prices = params.prices.map(|prices| {
            let of = |d: &Destination| CongestionPrice::new(prices, reference_work(&d.throughput), now);
            destinations.iter().map(of).collect()
        });
        let context = RoutingContext {
            states: vec![DestinationState::idle(); n],
            destinations,
            weights: params.weights,
            scales: scales.current(),
            finish_target: params.window.finish_target,
        };
        Self {
            context,
            completion: params.completion,
            ledger,
            running: BTreeMap::new(),
            elsewhere: vec![SlotLoad::EMPTY; n],
            spoken_for: vec![0; n],
            prices,
            pays_prices: true,
            scales,
        }
    }

    pub(super) const fn destinations(&self) -> &Arc<[Destination]> {
        &self.context.destinations
    }

    /// The fleet as of the last look at it; availability is of now.
    pub(super) const fn latest(&self) -> &RoutingContext {
        &self.context
    }

    pub(super) const fn scales(&self) -> ObjectiveScales {
        self.scales.current()
    }

    /// Whether nothing of this router is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// The fleet as of `now`.
    pub(super) fn at(&mut self, now: Seconds) -> &RoutingContext {
        for i in (0..).map(DestinationOrd).take(self.spoken_for.len()) {
            self.account(now, i);
            let state = &mut self.context.states[i.idx()];
            state.inflight = self.ledger.inflight(i);
            state.load = self.ledger.load(now, i);
            state.backlog = self.ledger.backlog(now, i);
            let prices = self.prices.as_ref().filter(|_| self.pays_prices);
            state.price_per_s = prices.map_or(0.0, |prices| prices[i.idx()].per_s());
            let elsewhere = &self.elsewhere[i.idx()];
            if elsewhere.outstanding() > 0 {
                let throughput = &self.context.destinations[i.idx()].throughput;
                state.load = state.load.with(elsewhere);
                state.backlog += Seconds(elsewhere.drain_time(throughput).0 / state.pace);
            }
        }
        self.context.scales = self.scales.current();
        &self.context
    }

    /// One entry per destination; says whether anything changed.
    pub(super) fn set_availability(&mut self, availability: &[Availability]) -> bool {
        let states = &mut self.context.states;
        let mut has_changed = false;
        if availability.len() != states.len() {
            return false;
        }
        for (i, (state, now)) in states.iter_mut().zip(availability).enumerate() {
            if state.availability == *now {
                continue;
            }
            has_changed = true;
            // What it was worth while others came to it says nothing any more.
            if state.availability.takes_work() != now.takes_work()
                && let Some(prices) = &mut self.prices
            {
                prices[i].reset();
            }
            state.availability = *now;
        }
        has_changed
    }

    /// Says whether the view fits the fleet.
    pub(super) fn set_view(&mut self, now: Seconds, view: &FleetView) -> bool {
        let n = self.context.states.len();
        if (view.destinations.len(), view.moments.len()) != (n, n) {
            return false;
        }
        for (d, (destination, moment)) in
            (0u32..).map(DestinationOrd).zip(view.destinations.iter().zip(&view.moments))
        {
            self.account(now, d);
            self.ledger.set_figures(now, d, destination.throughput, moment.pace);
            let state = &mut self.context.states[d.idx()];
            (state.pace, state.lateness, state.warm_up) = (moment.pace, moment.lateness, moment.warm_up);
            state.verbosity = moment.verbosity;
            self.elsewhere[d.idx()] = moment.elsewhere;
        }
        self.context.destinations = Arc::clone(&view.destinations);
        true
    }

    /// Goes on with other weights, target and prices; prices that are kept already stay.
    pub(super) fn reconfigure(&mut self, now: Seconds, params: &PlannerParams) {
        self.context.weights = params.weights;
        self.context.finish_target = params.window.finish_target;
        if let (None, Some(prices)) = (&self.prices, params.prices) {
            let of = |d: &Destination| CongestionPrice::new(prices, reference_work(&d.throughput), now);
            self.prices = Some(self.context.destinations.iter().map(of).collect());
        }
    }

    /// Whether plans are made with congestion prices from now on; they are kept either way, where there are any.
    pub(super) const fn set_pays_prices(&mut self, pays_prices: bool) {
        self.pays_prices = pays_prices;
    }

    /// A request leaves for its planned destination.
    pub(super) fn dispatch(&mut self, now: Seconds, planned: &Planned) {
        self.account(now, planned.destination);
        if let Some(outstanding) = self.ledger.dispatch(now, planned.destination, planned.work) {
            self.running.insert(planned.ticket, outstanding);
        }
    }

    /// The first content of its answer has come.
    pub(super) fn answering(&mut self, now: Seconds, ticket: Ticket) {
        if let Some(outstanding) = self.running.get(&ticket) {
            self.ledger.answering(now, outstanding);
        }
    }

    /// A request is over; says whether it was running.
    pub(super) fn finish(&mut self, now: Seconds, ticket: Ticket) -> bool {
        let Some(outstanding) = self.running.remove(&ticket) else { return false };
        self.account(now, outstanding.destination());
        self.ledger.finish(now, outstanding);
        true
    }

    /// A waiting request that was planned to the one destination is now planned to the other.
    pub(super) fn speak_for(
        &mut self,
        now: Seconds,
        from: Option<DestinationOrd>,
        to: Option<DestinationOrd>,
    ) {
        for (d, more) in [(from, false), (to, true)] {
            let Some(d) = d else { continue };
            self.account(now, d);
            let n = &mut self.spoken_for[d.idx()];
            *n = if more { n.saturating_add(1) } else { n.saturating_sub(1) };
        }
    }

    /// Takes in the ranges and the work of a planned batch.
    pub(super) fn learn(&mut self, problem: &Problem) {
        self.scales.observe(problem);
        let (Some(prices), Some(sum)) = (&mut self.prices, problem.sum()) else { return };
        for r in 0..problem.n_requests() {
            for d in problem.legal_destinations(r) {
                prices[d.idx()].observe(sum.saturated_work_s(r, d));
            }
        }
    }

    /// Room at `d` at `now`.
    pub(super) fn places(&mut self, now: Seconds, d: DestinationOrd) -> Places {
        let read_in = match self.completion {
            // One server for all.
            CompletionModel::Fifo => Seconds::ZERO,
            CompletionModel::Slots => {
                let reading = self.ledger.load(now, d).prefill + self.elsewhere[d.idx()].prefill;
                Seconds(reading.0 / self.context.states[d.idx()].pace)
            }
        };
        let destination = &self.context.destinations[d.idx()];
        Places {
            in_slots: self.n_free_slots(d),
            in_queue: destination.max_inflight.saturating_sub(self.ledger.inflight(d)),
            takes_work: self.context.states[d.idx()].availability.takes_work(),
            read_in,
            rtt: destination.network.rtt,
        }
    }

    /// Whether anything could be started anywhere (`in_slots`), or sent there.
    pub(super) fn has_room(&self, in_slots: bool) -> bool {
        let has_room = |(d, destination, _): (DestinationOrd, &Destination, &DestinationState)| {
            let n_slots = self.n_free_slots(d);
            if in_slots { n_slots > 0 } else { self.ledger.inflight(d) < destination.max_inflight }
        };
        let mut in_service = self.context.iter().filter(|(.., state)| state.availability.takes_work());
        in_service.any(has_room)
    }

    fn n_free_slots(&self, d: DestinationOrd) -> u32 {
        let n_taken = self.ledger.inflight(d).saturating_add(self.elsewhere[d.idx()].outstanding());
        self.context.destinations[d.idx()].throughput.max_concurrency.saturating_sub(n_taken)
    }

    /// Brings the price of `d` up to date, before what it depends on changes.
    fn account(&mut self, now: Seconds, d: DestinationOrd) {
        let Some(prices) = &mut self.prices else { return };
        let n_here = self.ledger.inflight(d).saturating_add(self.elsewhere[d.idx()].outstanding());
        let n_taken = n_here.saturating_add(self.spoken_for[d.idx()]);
        let slots = self.context.destinations[d.idx()].throughput.max_concurrency;
        prices[d.idx()].advance(now, (n_taken, slots), self.scales.current().time);
    }
}

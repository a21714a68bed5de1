//! Laws of the planner over random histories, with plans that take time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::history::{Event, History, history};
use super::rig::{BestQuality, PLAN, fleet};
use crate::domain::fixture::{prediction, request};
use crate::domain::{Availability, Destination, DestinationOrd, ModelTarget};
use crate::planning::{Action, Arrival, Plan, Planner, Rejection, SolveError, Step, Ticket, WindowClose};
use crate::routing::memetic::{Memetic, MemeticParams};
use crate::routing::{NoDestination, PolicyKind, PolicyParams, RoutingPolicy, for_kind};
use crate::units::Seconds;

/// Longest stay of a request in a history.
const DEADLINE_S: f64 = 30.0;

/// Plays a history and holds what the planner does against a plain account of who is where.
struct Play {
    planner: Planner,
    policy: Box<dyn RoutingPolicy>,
    destinations: Vec<Destination>,
    solve_s: f64,
    now: f64,
    solving: Option<(f64, Result<Plan, SolveError>)>,
    next_ticket: u64,
    waiting: BTreeMap<u64, Arrival>,
    running: BTreeMap<u64, (DestinationOrd, Arrival)>,
    over: BTreeSet<u64>,
    availability: Vec<Availability>,
    refuses_infeasible: bool,
    journal: Vec<String>,
}

impl Play {
    fn new(history: &History) -> Self {
        let destinations = fleet(&history.places);
        let policy: Box<dyn RoutingPolicy> = match history.policy {
            PolicyKind::Uniroute => Box::new(BestQuality),
            PolicyKind::Memetic => Box::new(Memetic::new(MemeticParams {
                evaluations_max: Some(200),
                stall_rounds: 20,
                ..MemeticParams::default()
            })),
            kind => for_kind(kind, &PolicyParams::default()),
        };
        Self {
            planner: Planner::new(history.params, destinations.clone().into(), Seconds::ZERO),
            policy,
            availability: vec![Availability::Ready; destinations.len()],
            destinations,
            solve_s: history.solve_s,
            now: 0.0,
            solving: None,
            next_ticket: 1,
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            over: BTreeSet::new(),
            refuses_infeasible: history.params.refuses_infeasible,
            journal: Vec::new(),
        }
    }

    /// Lets time pass up to `until`, waking the planner exactly when it asked to be woken.
    fn advance(&mut self, until: f64) {
        let mut n_plans_at_once = 0;
        loop {
            let wakeup = self.step();
            let committed_at = self.solving.as_ref().map(|(at, _)| *at);
            let next = wakeup.into_iter().chain(committed_at).reduce(f64::min);
            let Some(next) = next.filter(|next| *next <= until) else { break };
            n_plans_at_once = if next > self.now { 0 } else { n_plans_at_once + 1 };
            assert!(n_plans_at_once <= 2 * self.next_ticket + 8, "round in circles at {}", self.now);
            self.now = next;
            if committed_at.is_some_and(|at| at <= self.now) {
                self.commit();
            }
        }
        self.now = until;
    }

    /// One turn; when the planner wants the next one.
    fn step(&mut self) -> Option<f64> {
        let mut actions = Vec::new();
        let step = self.planner.step(Seconds(self.now), &mut actions);
        self.perform(actions);
        match step {
            Step::Solve(job) => {
                assert!(self.solving.is_none(), "one plan at a time");
                assert!(!job.waiting.is_empty());
                self.solving =
                    Some((self.now + self.solve_s, job.solve(self.policy.as_ref(), &PLAN, &mut || false)));
                self.step()
            }
            Step::Wait(at) => {
                assert!(at.is_none_or(|at| at.0 > self.now), "a wakeup that is due already");
                // Nothing is due before it.
                if self.solving.is_none() {
                    let expiries = self.waiting.values().map(|arrival| arrival.expires.0);
                    let first = expiries.reduce(f64::min);
                    assert!(
                        first.is_none_or(|first| at.is_some_and(|at| at.0 <= first)),
                        "{first:?} < {at:?}"
                    );
                }
                at.map(|at| at.0)
            }
        }
    }

    fn commit(&mut self) {
        let Some((_, outcome)) = self.solving.take() else { return };
        let mut actions = Vec::new();
        match outcome {
            Ok(plan) => self.planner.commit(Seconds(self.now), &plan, &mut actions),
            Err(reason) => self.planner.abandon(Seconds(self.now), &reason.to_string(), &mut actions),
        }
        self.perform(actions);
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            self.journal.push(match &action {
                Action::Send { planned, plan, waited, batch_size, .. } => {
                    format!("{} {:?} {plan} {waited:?} {batch_size}", planned.ticket.0, planned.destination)
                }
                Action::Reject { ticket, reason } => format!("{} {reason:?}", ticket.0),
            });
            match action {
                Action::Send { planned, waited, .. } => {
                    let d = planned.destination;
                    let arrival = self.waiting.remove(&planned.ticket.0).expect("sent while waiting");
                    assert!(waited.0 >= 0.0 && !arrival.excluded.contains(&d));
                    assert_eq!(self.availability[d.idx()], Availability::Ready);
                    if let ModelTarget::Named(model) = &arrival.request.target {
                        assert_eq!(self.destinations[d.idx()].model, *model);
                    }
                    self.running.insert(planned.ticket.0, (d, arrival));
                    let inflight = self.running.values().filter(|(at, _)| *at == d).count();
                    assert!(inflight <= self.destinations[d.idx()].max_inflight as usize);
                }
                Action::Reject { ticket, reason } => {
                    let arrival = self.waiting.remove(&ticket.0).expect("rejected while waiting");
                    if let Rejection::Impossible(NoDestination::Deadline { deadline, earliest, .. }) = reason
                    {
                        assert!(self.refuses_infeasible && earliest.0 > deadline.0);
                        assert_eq!(arrival.request.constraints.deadline, Some(deadline));
                    }
                    self.over.insert(ticket.0);
                }
            }
        }
    }

    fn happens(&mut self, event: &Event) {
        let now = Seconds(self.now);
        let nth_of = |keys: Vec<u64>, nth: usize| keys.get(nth % keys.len().max(1)).copied();
        match *event {
            Event::Arrives { tokens, favourite, awaiting_s, is_named, deadline_s } => {
                let ticket = self.next_ticket;
                self.next_ticket += 1;
                let mut request = request(&ticket.to_string());
                request.constraints.deadline = deadline_s.map(Seconds);
                let favourite = favourite % self.destinations.len();
                if is_named {
                    request.target = ModelTarget::Named(Arc::clone(&self.destinations[favourite].model));
                }
                let arrival = Arrival {
                    ticket: Ticket(ticket),
                    request: Arc::new(request),
                    prediction: Arc::new(self.prefer(favourite, tokens)),
                    awaiting_until: awaiting_s.map(|s| now + Seconds(s)),
                    arrived: now,
                    expires: now + Seconds(DEADLINE_S),
                    excluded: Vec::new(),
                };
                self.enter(arrival);
            }
            Event::IsPredicted { nth, favourite } => {
                let Some(ticket) = nth_of(self.waiting.keys().copied().collect(), nth) else { return };
                let prediction = Arc::new(self.prefer(favourite % self.destinations.len(), 50.0));
                self.planner.predicted(now, Ticket(ticket), prediction);
            }
            Event::Finishes { nth } => {
                let Some(ticket) = nth_of(self.running.keys().copied().collect(), nth) else { return };
                self.running.remove(&ticket);
                self.over.insert(ticket);
                self.planner.finish(now, Ticket(ticket));
            }
            Event::FailsOver { nth } => {
                let Some(ticket) = nth_of(self.running.keys().copied().collect(), nth) else { return };
                let Some((d, mut arrival)) = self.running.remove(&ticket) else { return };
                arrival.excluded.push(d);
                self.enter(arrival);
            }
            Event::Leaves { nth } => {
                let Some(ticket) = nth_of(self.waiting.keys().copied().collect(), nth) else { return };
                self.waiting.remove(&ticket);
                self.over.insert(ticket);
                self.planner.finish(now, Ticket(ticket));
            }
            Event::Turns { destination, availability } => {
                let n = self.availability.len();
                self.availability[destination % n] = availability;
                self.planner.set_availability(&self.availability);
            }
            Event::Switches { gather, pays_prices } => self.planner.follow(now, gather, pays_prices),
            Event::Nothing => {}
        }
    }

    fn enter(&mut self, arrival: Arrival) {
        self.waiting.insert(arrival.ticket.0, arrival.clone());
        self.planner.arrive(Seconds(self.now), arrival);
    }

    fn prefer(&self, favourite: usize, tokens: f64) -> crate::domain::Prediction {
        let quality = |d: usize| if d == favourite { 0.9 } else { 0.5 };
        prediction(&(0..self.destinations.len()).map(quality).collect::<Vec<_>>(), tokens)
    }

    /// Checked whenever the planner is at rest.
    fn check_at_rest(&mut self) {
        assert!(self.planner.n_held() == self.waiting.len(), "nobody is lost, nobody is kept");
        let context = self.planner.context(Seconds(self.now));
        for (d, _, state) in context.iter() {
            let inflight = self.running.values().filter(|(at, _)| *at == d).count();
            assert_eq!(state.inflight as usize, inflight);
            assert!(inflight > 0 || state.backlog == Seconds::ZERO, "{d:?} owes {:?}", state.backlog);
        }
        let everyone = self.waiting.len() + self.running.len() + self.over.len();
        assert_eq!(everyone as u64, self.next_ticket - 1, "everyone is in one place");
    }

    /// With each at once, nobody waits while a place that may serve it has room.
    fn check_no_room_is_left(&self) {
        for (ticket, arrival) in self.waiting.iter().filter(|(_, a)| a.awaiting_until.is_none()) {
            for (d, destination) in (0..).map(DestinationOrd).zip(&self.destinations) {
                let inflight = self.running.values().filter(|(at, _)| *at == d).count();
                let is_target = match &arrival.request.target {
                    ModelTarget::Any => true,
                    ModelTarget::Named(model) => destination.model == *model,
                };
                let has_room = inflight < destination.max_inflight as usize;
                let is_legal = is_target
                    && !arrival.excluded.contains(&d)
                    && self.availability[d.idx()] == Availability::Ready;
                assert!(!(is_legal && has_room), "{ticket} waits at {} with room at {d:?}", self.now);
            }
        }
    }

    fn play(&mut self, history: &History) {
        for (pause, event) in &history.events {
            self.advance(self.now + pause);
            self.happens(event);
        }
        self.advance(self.now);
    }
}

proptest! {
    #[test]
    fn everyone_leaves_once_within_the_bounds(history in history()) {
        let mut play = Play::new(&history);
        for (pause, event) in &history.events {
            play.advance(play.now + pause);
            play.happens(event);
            play.check_at_rest();
        }
        // Liveness: without a single further event everyone goes or is told that it cannot.
        play.advance(play.now + DEADLINE_S + history.solve_s + 1.0);
        prop_assert_eq!(play.waiting.len(), 0);
        play.check_at_rest();
        while !play.running.is_empty() {
            play.happens(&Event::Finishes { nth: 0 });
            play.check_at_rest();
        }
        prop_assert_eq!(play.step(), None, "nobody here, nothing to wait for");
    }

    #[test]
    fn everyone_is_served_when_places_become_free(history in history()) {
        prop_assume!(history.policy != PolicyKind::CloudOnly);
        let mut play = Play::new(&history);
        let lasting = |event: &Event| !matches!(event, Event::Turns { .. } | Event::FailsOver { .. });
        for (pause, event) in history.events.iter().filter(|(_, event)| lasting(event)) {
            // Short enough that nobody's deadline passes and every prediction is there when places become free.
            play.advance(play.now + pause.min(0.1));
            let mut event = event.clone();
            if let Event::Arrives { awaiting_s: Some(awaiting_s), .. } = &mut event {
                *awaiting_s = awaiting_s.min(0.1);
            }
            play.happens(&event);
        }
        // The last window closes before anything is over.
        play.advance(play.now + 1.1 + 2.0 * history.solve_s);
        for _ in 0..2 * history.events.len() {
            play.advance(play.now + 0.15 + history.solve_s);
            play.happens(&Event::Finishes { nth: 0 });
        }
        play.advance(play.now + 1.1 + 2.0 * history.solve_s);
        prop_assert_eq!(play.waiting.len(), 0);
        let rejected = play.journal.iter().filter(|line| line.contains("Expired")).count();
        prop_assert_eq!(rejected, 0, "{:?}", play.journal);
    }

    #[test]
    fn each_at_once_leaves_no_room_unused(mut history in history()) {
        history.params.gather = false;
        history.params.window.close = WindowClose::Adaptive;
        history.solve_s = 0.0;
        prop_assume!(history.policy != PolicyKind::CloudOnly);
        let mut play = Play::new(&history);
        let stays = |(_, event): &&(f64, Event)| !matches!(event, Event::Switches { .. });
        for (pause, event) in history.events.iter().filter(stays) {
            play.advance(play.now + pause);
            play.happens(event);
            play.advance(play.now);
            play.check_no_room_is_left();
        }
    }

    #[test]
    fn the_same_history_has_the_same_outcome(history in history()) {
        let (mut first, mut second) = (Play::new(&history), Play::new(&history));
        first.play(&history);
        second.play(&history);
        prop_assert_eq!(first.journal, second.journal);
    }
}

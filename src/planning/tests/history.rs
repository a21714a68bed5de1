//! Random histories for the laws of the planner.

use proptest::prelude::*;

use super::rig::planner_params;
use crate::domain::Availability;
use crate::planning::{PlannerParams, PriceParams, WindowClose, WindowOrder};
use crate::routing::PolicyKind;
use crate::units::Seconds;

/// What happens next, after so many seconds. Indices count round whatever they index.
#[derive(Debug, Clone)]
pub(super) enum Event {
    Arrives {
        tokens: f64,
        favourite: usize,
        awaiting_s: Option<f64>,
        is_named: bool,
        deadline_s: Option<f64>,
    },
    IsPredicted {
        nth: usize,
        favourite: usize,
    },
    Finishes {
        nth: usize,
    },
    FailsOver {
        nth: usize,
    },
    Leaves {
        nth: usize,
    },
    Turns {
        destination: usize,
        availability: Availability,
    },
    Switches {
        gather: bool,
        pays_prices: bool,
    },
    Nothing,
}

/// A planner and what happens to it.
#[derive(Debug, Clone)]
pub(super) struct History {
    pub(super) places: Vec<(u32, u32)>,
    pub(super) params: PlannerParams,
    pub(super) policy: PolicyKind,
    pub(super) solve_s: f64,
    pub(super) events: Vec<(f64, Event)>,
}

fn event() -> impl Strategy<Value = Event> {
    let awaiting_s = prop::option::weighted(0.3, prop::sample::select(vec![0.0, 0.01, 0.05, 2.0]));
    let deadline_s = prop::option::weighted(0.3, prop::sample::select(vec![0.1, 1.0, 2.5, 8.0]));
    let arrives = (1.0..400.0f64, 0..4usize, awaiting_s, prop::bool::weighted(0.2), deadline_s).prop_map(
        |(tokens, favourite, awaiting_s, is_named, deadline_s)| Event::Arrives {
            tokens,
            favourite,
            awaiting_s,
            is_named,
            deadline_s,
        },
    );
    let availability = prop::sample::select(vec![
        Availability::Ready,
        Availability::Ready,
        Availability::Down,
        Availability::Draining,
    ]);
    prop_oneof![
        8 => arrives,
        3 => (0..32usize, 0..4usize).prop_map(|(nth, favourite)| Event::IsPredicted { nth, favourite }),
        4 => (0..32usize).prop_map(|nth| Event::Finishes { nth }),
        1 => (0..32usize).prop_map(|nth| Event::FailsOver { nth }),
        1 => (0..32usize).prop_map(|nth| Event::Leaves { nth }),
        1 => (0..4usize, availability)
            .prop_map(|(destination, availability)| Event::Turns { destination, availability }),
        1 => any::<(bool, bool)>()
            .prop_map(|(gather, pays_prices)| Event::Switches { gather, pays_prices }),
        1 => Just(Event::Nothing),
    ]
}

pub(super) fn history() -> impl Strategy<Value = History> {
    let place = (1..3u32, 0..3u32).prop_map(|(slots, more)| (slots, slots + more));
    // Often the same instant, sometimes long pauses; whole milliseconds make equal times frequent.
    let pause = prop_oneof![
        4 => Just(0.0),
        4 => (0..20u32).prop_map(|ms| f64::from(ms) * 1e-3),
        1 => 0.0..3.0f64
    ];
    let params = (
        prop::sample::select(vec![0.0, 0.001, 0.7, 1.0]),
        prop::sample::select(vec![1usize, 2, 3, 8, 128]),
        prop::sample::select(vec![WindowClose::Adaptive, WindowClose::Adaptive, WindowClose::Fixed]),
        (prop::option::of(0.0..5.0f64), prop::option::of(0.0..5.0f64), prop::option::of(0.1..9.0f64)),
        prop::sample::select(vec![WindowOrder::Shortest, WindowOrder::Fifo]),
        prop::bool::weighted(0.8),
        any::<bool>(),
    )
        .prop_map(|(max_wait, max_requests, close, bounds, order, gather, refuses_infeasible)| {
            let mut params = PlannerParams { refuses_infeasible, ..planner_params() };
            params.window.max_wait = Seconds(max_wait);
            params.window.max_requests = max_requests;
            params.window.close = close;
            let (max_hold, any_slot_after, finish_target) = bounds;
            params.window.max_hold = max_hold.map(Seconds);
            params.window.any_slot_after = any_slot_after.map(Seconds);
            params.window.finish_target = finish_target.map(Seconds);
            params.window.order = order;
            params.gather = gather;
            params.prices = gather.then(PriceParams::default);
            params
        });
    let policy = prop::sample::select(vec![
        PolicyKind::Uniroute, // stands for the fixture's own policy
        PolicyKind::Memetic,
        PolicyKind::Greedy,
        PolicyKind::RoundRobin,
        PolicyKind::CloudOnly, // cannot decide anything on a fleet of edge nodes
    ]);
    (
        prop::collection::vec(place, 1..4),
        params,
        policy,
        prop::sample::select(vec![0.0, 0.001, 0.004, 0.3]),
        prop::collection::vec((pause, event()), 1..60),
    )
        .prop_map(|(places, params, policy, solve_s, events)| History {
            places,
            params,
            policy,
            solve_s,
            events,
        })
}

//! The routing context: the profiler's hand-over to the evaluator, one immutable snapshot per plan
//! (paper section III-B).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::backlog::SlotLoad;
use super::destination::{Destination, DestinationOrd};
use super::named::named_enum;
use super::request::Weights;
use crate::units::{Joules, Seconds, Usd};

named_enum! {
    /// Whether new work may be sent to a destination.
    pub enum Availability {
        /// Healthy.
        Ready = "ready",
        /// Too busy to answer its health page while requests run there: it takes more of them.
        Busy = "busy",
        /// Up, but its model is still loading.
        Loading = "loading",
        /// An operator is taking it out of service.
        Draining = "draining",
        /// Unreachable or failing.
        Down = "down",
        /// It asked to be left alone for a while (429, 503).
        Cooling = "cooling",
        /// It failed too often in a row; left alone until it is tried again.
        CircuitOpen = "circuit_open",
    }
}

impl Availability {
    /// Whether new work may be sent there.
    #[must_use]
    pub const fn takes_work(self) -> bool {
        matches!(self, Self::Ready | Self::Busy)
    }

    /// Whether it ends by itself after a known time.
    #[must_use]
    pub const fn returns(self) -> bool {
        matches!(self, Self::Cooling | Self::CircuitOpen)
    }
}

/// The dynamic part of a destination at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DestinationState {
    /// Whether it may be used.
    pub availability: Availability,
    /// B_d, wall-clock seconds of work already dispatched and not finished. Not negative.
    pub backlog: Seconds,
    /// Requests of this router outstanding there.
    pub inflight: u32,
    /// What a new request would find there, that of others included.
    pub load: SlotLoad,
    /// Progress per second relative to the destination's figures: below 1 while it is slower than they say.
    /// Positive.
    pub pace: f64,
    /// Time until its model is loaded, zero where it is: a request that comes now waits for it.
    pub warm_up: Seconds,
    /// Completion times over those that its figures predict, which leave out what comes later. Positive.
    pub lateness: f64,
    /// Completion tokens over those predicted, as its finished requests had them. Positive. Times know it already: the
    /// destination's speeds are those of predicted tokens.
    pub verbosity: f64,
    /// Congestion price: what a second of its time is worth to those who would have it instead, in J at ω_T = 1; see
    /// time term `sum`. Not negative.
    pub price_per_s: f64,
}

impl DestinationState {
    /// Ready, with nothing outstanding.
    #[must_use]
    pub const fn idle() -> Self {
        Self {
            availability: Availability::Ready,
            backlog: Seconds::ZERO,
            inflight: 0,
            load: SlotLoad::EMPTY,
            pace: 1.0,
            warm_up: Seconds::ZERO,
            lateness: 1.0,
            verbosity: 1.0,
            price_per_s: 0.0,
        }
    }
}

/// What is known of a destination at the moment besides its figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    /// Progress per second relative to its figures, positive; 1 = as they say.
    pub pace: f64,
    /// Completion times over those its figures predict; 1 = as predicted. Positive.
    pub lateness: f64,
    /// Completion tokens over those predicted; 1 = as predicted. Positive.
    pub verbosity: f64,
    /// Time until its model is loaded; zero where it is.
    pub warm_up: Seconds,
    /// What others than this router have there.
    pub elsewhere: SlotLoad,
}

impl Moment {
    /// As the figures say, and nobody else there.
    pub const USUAL: Self =
        Self { pace: 1.0, lateness: 1.0, verbosity: 1.0, warm_up: Seconds::ZERO, elsewhere: SlotLoad::EMPTY };
}

/// The fleet as the profiler sees it: configured destinations with figures that were measured since.
#[derive(Debug, Clone)]
pub struct FleetView {
    /// D in order, always the same ones.
    pub destinations: Arc<[Destination]>,
    /// Same order and length.
    pub moments: Vec<Moment>,
}

impl FleetView {
    /// Nothing has been measured.
    #[must_use]
    pub fn configured(destinations: &Arc<[Destination]>) -> Self {
        Self { destinations: Arc::clone(destinations), moments: vec![Moment::USUAL; destinations.len()] }
    }
}

/// Fixed scales of objective mode `stationary`: what one unit of each normalised term means.
///
/// They make weights mean the same from window to window (Eq. 6 with a range that does not depend on
/// the batch). All positive.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ObjectiveScales {
    /// Range of quality loss.
    pub quality: f64,
    /// Range of one request's money.
    pub cost: Usd,
    /// Range of one request's energy.
    pub energy: Joules,
    /// Range of completion time.
    pub time: Seconds,
}

/// Everything a decision may depend on besides the batch itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RoutingContext {
    /// D in order; index = [`DestinationOrd`].
    pub destinations: Arc<[Destination]>,
    /// Dynamic state, same order and length as `destinations`.
    pub states: Vec<DestinationState>,
    /// Weights of requests that bring none of their own.
    pub weights: Weights,
    /// Scales in force.
    pub scales: ObjectiveScales,
    /// Latency, waiting included, that no request should be predicted to pass where that can be helped: a guard on the
    /// tail. Where no legal destination meets it, those that come nearest are left.
    pub finish_target: Option<Seconds>,
}

impl RoutingContext {
    /// Every destination with its ordinal and state.
    pub fn iter(&self) -> impl Iterator<Item = (DestinationOrd, &Destination, &DestinationState)> {
        (0u32..)
            .map(DestinationOrd)
            .zip(self.destinations.iter())
            .zip(&self.states)
            .map(|((ord, d), s)| (ord, d, s))
    }
}

//! How the planner gathers and holds requests (`window.*` of the configuration).

#[cfg(doc)]
use crate::domain::RoutingContext;
use crate::domain::named::named_enum;
use crate::units::Seconds;

named_enum! {
    /// When a window closes.
    pub enum WindowClose {
        /// Rolling: a request leaves as soon as its planned destination can start it.
        Adaptive = "adaptive",
        /// At `max_wait`, or before as soon as `max_requests` are there with their predictions, as in the paper.
        Fixed = "fixed",
    }
}

named_enum! {
    /// Which waiting request goes first.
    pub enum WindowOrder {
        /// Shortest predicted service first, with ageing.
        Shortest = "shortest",
        /// In order of arrival.
        Fifo = "fifo",
    }
}

/// Window and holding parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowParams {
    /// Longest wait for company, and for a prompt to be read soon where a slot is free; zero sends each request at once.
    pub max_wait: Seconds,
    /// Requests in one batch (the paper's R_m); at least 1.
    pub max_requests: usize,
    /// When a window closes.
    pub close: WindowClose,
    /// Longest stay while every wanted slot is taken; `None` = automatic.
    pub max_hold: Option<Seconds>,
    /// Longest wait for a better place while another legal destination has a free slot; `None` = as long as `max_hold`.
    pub any_slot_after: Option<Seconds>,
    /// Latency, waiting included, beyond which a destination is predicted to be too slow for a request, see
    /// [`RoutingContext::finish_target`]; `None` = none is.
    pub finish_target: Option<Seconds>,
    /// Which waiting request goes first.
    pub order: WindowOrder,
    /// Requests that may leave before one that was passed over; then it goes first.
    pub max_overtakes: u32,
}

//! What is known of one endpoint, and what follows for requests: its probes, the wait it asked for, its
//! circuit. Time is an argument.

use std::time::Duration;

use tokio::time::Instant;

use super::breaker::{Breaker, BreakerParams, Circuit, Pass};
use crate::domain::Availability;

/// How long endpoints that say they are overloaded are left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoolingParams {
    /// Where they do not say for how long.
    pub default: Duration,
    /// At most, whatever they say.
    pub max: Duration,
}

/// Why an endpoint is left alone for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// It answered 429.
    RateLimited,
    /// It answered 503 and said for how long.
    Overloaded,
    /// It answered 503 and did not.
    Unavailable,
    /// Its circuit is open.
    CircuitOpen,
}

/// That an endpoint takes nothing now and when it does again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Absence {
    /// Why.
    pub leave: Leave,
    /// Time until it is back by its own word; `None` = when a trial under way has ended.
    pub back_in: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
struct Cooling {
    leave: Leave,
    until: Instant,
    /// The end that the endpoint asked for, which may be later.
    told: Instant,
}

/// The state of one endpoint.
#[derive(Debug)]
pub(super) struct EndpointState {
    /// `Ready`, `Busy`, `Loading` or `Down`, as its health page or a failed connection has it.
    probed: Availability,
    /// An operator is taking it out of service.
    is_draining: bool,
    cooling: Option<Cooling>,
    breaker: Breaker,
    cooling_params: CoolingParams,
}

impl EndpointState {
    /// Down until a first probe says otherwise.
    pub(super) fn new(breaker: BreakerParams, cooling_params: CoolingParams, seed: u64) -> Self {
        let breaker = Breaker::new(breaker, seed);
        Self { probed: Availability::Down, is_draining: false, cooling: None, breaker, cooling_params }
    }

    /// Lets time pass.
    pub(super) fn advance(&mut self, now: Instant) {
        self.breaker.advance(now);
        self.cooling = self.cooling.filter(|cooling| cooling.until > now);
    }

    /// Whether it can take work.
    pub(super) fn availability(&self) -> Availability {
        match (self.probed, self.breaker.circuit()) {
            _ if self.is_draining => Availability::Draining,
            (probed, Circuit::Open { .. } | Circuit::HalfOpen { is_on_trial: true })
                if probed.takes_work() =>
            {
                Availability::CircuitOpen
            }
            (probed, _) if probed.takes_work() && self.cooling.is_some() => Availability::Cooling,
            (probed, _) => probed,
        }
    }

    pub(super) const fn circuit(&self) -> Circuit {
        self.breaker.circuit()
    }

    /// When time alone changes something next.
    pub(super) fn changes_at(&self) -> Option<Instant> {
        let half_opens = match self.breaker.circuit() {
            Circuit::Open { until } => Some(until),
            Circuit::Closed { .. } | Circuit::HalfOpen { .. } => None,
        };
        half_opens.into_iter().chain(self.cooling.map(|cooling| cooling.until)).min()
    }

    /// Why and until when it takes nothing, unless that is for its health page to say.
    pub(super) fn absence(&self, now: Instant) -> Option<Absence> {
        let cooling = self.cooling.map(|cooling| (cooling.leave, Some(cooling.told)));
        let circuit = match self.breaker.circuit() {
            Circuit::Closed { .. } | Circuit::HalfOpen { is_on_trial: false } => None,
            Circuit::Open { until } => Some((Leave::CircuitOpen, Some(until))),
            Circuit::HalfOpen { is_on_trial: true } => Some((Leave::CircuitOpen, None)),
        };
        let (leave, until) = match (cooling, circuit) {
            (Some((_, cooled)), Some((leave, tried))) => (leave, cooled.max(tried)),
            (one, other) => one.or(other)?,
        };
        Some(Absence { leave, back_in: until.map(|until| until - now) })
    }

    /// Lets a request through, or says why not. Where only the health page has something against it, it
    /// passes: it was planned before.
    pub(super) fn admit(&mut self, now: Instant) -> Result<Pass, Absence> {
        if self.cooling.is_none()
            && let Some(pass) = self.breaker.admit()
        {
            return Ok(pass);
        }
        Err(self.absence(now).unwrap_or(Absence { leave: Leave::CircuitOpen, back_in: None }))
    }

    pub(super) const fn set_draining(&mut self, is_draining: bool) {
        self.is_draining = is_draining;
    }

    pub(super) const fn probed(&mut self, probed: Availability) {
        self.probed = probed;
    }

    /// Its health page did not answer in time while requests run there. One that was not up before has not come up
    /// by that.
    pub(super) const fn silent_at_work(&mut self) {
        if self.probed.takes_work() {
            self.probed = Availability::Busy;
        }
    }

    /// It asked to be left alone: for `wait`, within bounds. Of two such wishes the later end counts.
    pub(super) fn cool(&mut self, now: Instant, leave: Leave, wait: Option<Duration>) {
        let told = now + wait_told(self.cooling_params, wait);
        let until = told.min(now + self.cooling_params.max);
        if until > now && self.cooling.is_none_or(|cooling| cooling.until < until) {
            self.cooling = Some(Cooling { leave, until, told });
        }
    }

    pub(super) const fn breaker(&mut self) -> &mut Breaker {
        &mut self.breaker
    }
}

/// The wait that clients are told of where an endpoint asked for `wait`.
pub(super) fn wait_told(params: CoolingParams, wait: Option<Duration>) -> Duration {
    wait.unwrap_or(params.default.min(params.max))
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn ready() -> (EndpointState, Instant) {
        let breaker = BreakerParams { failures: 2, open: 5 * S, open_max: 60 * S };
        let mut state = EndpointState::new(breaker, CoolingParams { default: S, max: 120 * S }, 1);
        assert_eq!(state.availability(), Availability::Down);
        state.probed(Availability::Ready);
        (state, Instant::now())
    }

    #[test]
    fn an_endpoint_cools_for_its_own_time_within_bounds() {
        for (wait, cools_for) in
            [(Some(7 * S), 7 * S), (None, S), (Some(600 * S), 120 * S), (Some(S / 4), S / 4)]
        {
            let (mut state, now) = ready();
            state.cool(now, Leave::RateLimited, wait);
            assert_eq!(state.availability(), Availability::Cooling);
            assert_eq!(state.changes_at(), Some(now + cools_for));
            let absence = Absence { leave: Leave::RateLimited, back_in: wait.or(Some(cools_for)) };
            assert_eq!(state.admit(now), Err(absence));
            state.advance(now + cools_for - Duration::from_millis(1));
            assert_eq!(state.availability(), Availability::Cooling);
            state.advance(now + cools_for);
            assert_eq!((state.availability(), state.changes_at()), (Availability::Ready, None));
            assert_eq!(state.admit(now + cools_for), Ok(Pass::Usual));
        }
        let (mut state, now) = ready();
        state.cool(now, Leave::RateLimited, Some(Duration::ZERO));
        assert_eq!(state.availability(), Availability::Ready);
    }

    #[test]
    fn of_two_wishes_the_later_end_counts() {
        let (mut state, now) = ready();
        state.cool(now, Leave::RateLimited, Some(7 * S));
        state.cool(now, Leave::Overloaded, Some(S));
        assert_eq!(state.absence(now).unwrap().leave, Leave::RateLimited);
        state.cool(now + S, Leave::Overloaded, Some(7 * S));
        assert_eq!(state.absence(now), Some(Absence { leave: Leave::Overloaded, back_in: Some(8 * S) }));
    }

    #[test]
    fn an_open_circuit_hides_an_endpoint_whose_health_page_is_fine() {
        let (mut state, now) = ready();
        state.breaker().failed(now, Pass::Usual);
        assert_eq!(state.availability(), Availability::Ready);
        state.breaker().failed(now, Pass::Usual);
        assert_eq!(state.availability(), Availability::CircuitOpen);
        state.probed(Availability::Ready);
        assert_eq!(state.availability(), Availability::CircuitOpen);
        let half_open = state.changes_at().unwrap();
        state.advance(half_open);
        assert_eq!(state.availability(), Availability::Ready);
        assert_eq!(state.admit(half_open), Ok(Pass::Trial));
        assert_eq!(state.availability(), Availability::CircuitOpen, "the trial is out");
        let absence = Absence { leave: Leave::CircuitOpen, back_in: None };
        assert_eq!(state.admit(half_open), Err(absence));
        state.probed(Availability::Down);
        assert_eq!(state.availability(), Availability::Down);
    }
}

//! The circuit breaker of one endpoint: after failures in a row nothing is sent for a while, then one
//! request at a time is let through until one of them succeeds. Time is an argument.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::Instant;

/// When a circuit opens and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerParams {
    /// Failures in a row that open it; at least 1.
    pub failures: u32,
    /// How long it stays open at first; twice as long after each trial that fails.
    pub open: Duration,
    /// The longest it stays open.
    pub open_max: Duration,
}

/// Least part of the full time that a circuit stays open: endpoints that failed together are not tried
/// again in the same instant.
const JITTER_FROM: f64 = 0.75;
/// Doublings after which the time is at its maximum whatever it was.
const DOUBLINGS_MAX: u32 = 16;

/// Where a circuit stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Circuit {
    /// Requests pass; so many failed in a row.
    Closed { failures: u32 },
    /// Nothing passes until then.
    Open { until: Instant },
    /// One request passes.
    HalfOpen { is_on_trial: bool },
}

impl Circuit {
    /// Value of `cema_circuit_state`.
    pub(super) const fn as_metric(self) -> i64 {
        match self {
            Self::Closed { .. } => 0,
            Self::HalfOpen { .. } => 1,
            Self::Open { .. } => 2,
        }
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Closed { .. } => "closed",
            Self::HalfOpen { .. } => "half-open",
            Self::Open { .. } => "open",
        }
    }
}

/// Whether a request that passed decides on a half-open circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Usual,
    Trial,
}

#[derive(Debug)]
pub(super) struct Breaker {
    params: BreakerParams,
    circuit: Circuit,
    /// Openings since it was last closed.
    n_openings: u32,
    jitter: ChaCha8Rng,
}

impl Breaker {
    pub(super) fn new(params: BreakerParams, seed: u64) -> Self {
        Self {
            params,
            circuit: Circuit::Closed { failures: 0 },
            n_openings: 0,
            jitter: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    pub(super) const fn circuit(&self) -> Circuit {
        self.circuit
    }

    /// Lets time pass.
    pub(super) fn advance(&mut self, now: Instant) {
        if let Circuit::Open { until } = self.circuit
            && until <= now
        {
            self.circuit = Circuit::HalfOpen { is_on_trial: false };
        }
    }

    /// Whether a request may pass now.
    pub(super) fn admit(&mut self) -> Option<Pass> {
        match self.circuit {
            Circuit::Closed { .. } => Some(Pass::Usual),
            Circuit::HalfOpen { is_on_trial: false } => {
                self.circuit = Circuit::HalfOpen { is_on_trial: true };
                Some(Pass::Trial)
            }
            Circuit::HalfOpen { is_on_trial: true } | Circuit::Open { .. } => None,
        }
    }

    /// An answer has begun: a trial is won.
    pub(super) fn answering(&mut self, pass: Pass) {
        if pass == Pass::Trial && matches!(self.circuit, Circuit::HalfOpen { .. }) {
            self.circuit = Circuit::Closed { failures: 0 };
            self.n_openings = 0;
        }
    }

    /// A request was answered well, or refused for what it was.
    pub(super) fn succeeded(&mut self, pass: Pass) {
        self.answering(pass);
        if let Circuit::Closed { failures } = &mut self.circuit {
            *failures = 0;
        }
    }

    /// A request failed. One that passed before the circuit opened says nothing new.
    pub(super) fn failed(&mut self, now: Instant, pass: Pass) {
        match &mut self.circuit {
            Circuit::Closed { failures } => {
                *failures += 1;
                if *failures >= self.params.failures {
                    self.open(now);
                }
            }
            Circuit::HalfOpen { .. } if pass == Pass::Trial => self.open(now),
            Circuit::HalfOpen { .. } | Circuit::Open { .. } => {}
        }
    }

    /// A trial ended without an outcome: another request may be the trial.
    pub(super) fn withdrawn(&mut self, pass: Pass) {
        if pass == Pass::Trial && matches!(self.circuit, Circuit::HalfOpen { .. }) {
            self.circuit = Circuit::HalfOpen { is_on_trial: false };
        }
    }

    fn open(&mut self, now: Instant) {
        let doublings = self.n_openings.min(DOUBLINGS_MAX);
        let full = self.params.open.saturating_mul(1 << doublings).min(self.params.open_max);
        self.n_openings += 1;
        let share = self.jitter.random_range(JITTER_FROM..=1.0);
        self.circuit = Circuit::Open { until: now + full.mul_f64(share) };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARAMS: BreakerParams =
        BreakerParams { failures: 3, open: Duration::from_secs(5), open_max: Duration::from_secs(15) };

    fn open_for(breaker: &Breaker, now: Instant) -> Duration {
        match breaker.circuit() {
            Circuit::Open { until } => until - now,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_opens_after_failures_in_a_row_only() {
        let now = Instant::now();
        let mut breaker = Breaker::new(PARAMS, 1);
        for _ in 0..4 {
            breaker.failed(now, Pass::Usual);
            breaker.failed(now, Pass::Usual);
            breaker.succeeded(Pass::Usual);
        }
        assert_eq!(breaker.circuit(), Circuit::Closed { failures: 0 });
        for _ in 0..3 {
            assert_eq!(breaker.admit(), Some(Pass::Usual));
            breaker.failed(now, Pass::Usual);
        }
        assert_eq!(breaker.admit(), None);
        // Those that were under way when it opened neither prolong nor end it.
        let until = breaker.circuit();
        breaker.failed(now + Duration::from_secs(1), Pass::Usual);
        breaker.succeeded(Pass::Usual);
        assert_eq!(breaker.circuit(), until);
    }

    #[test]
    fn one_trial_at_a_time_decides_and_each_failure_doubles_the_wait() {
        let mut now = Instant::now();
        let mut breaker = Breaker::new(BreakerParams { failures: 1, ..PARAMS }, 7);
        breaker.failed(now, Pass::Usual);
        for full_s in [5.0, 10.0, 15.0, 15.0] {
            let wait = open_for(&breaker, now);
            assert!((0.75 * full_s..=full_s).contains(&wait.as_secs_f64()), "{wait:?} of {full_s}");
            breaker.advance(now + wait - Duration::from_millis(1));
            assert_eq!(breaker.admit(), None);
            now += wait;
            breaker.advance(now);
            assert_eq!((breaker.admit(), breaker.admit()), (Some(Pass::Trial), None));
            breaker.failed(now, Pass::Usual);
            assert_eq!(breaker.circuit(), Circuit::HalfOpen { is_on_trial: true }, "not the trial's");
            breaker.withdrawn(Pass::Trial);
            assert_eq!(breaker.admit(), Some(Pass::Trial), "a client that left decides nothing");
            breaker.failed(now, Pass::Trial);
        }
        now += open_for(&breaker, now);
        breaker.advance(now);
        assert_eq!(breaker.admit(), Some(Pass::Trial));
        breaker.answering(Pass::Trial);
        assert_eq!((breaker.admit(), breaker.admit()), (Some(Pass::Usual), Some(Pass::Usual)));
        breaker.failed(now, Pass::Trial);
        assert!(open_for(&breaker, now) <= Duration::from_secs(5), "it starts anew");
    }

    #[test]
    fn the_jitter_is_that_of_the_seed() {
        let now = Instant::now();
        let wait = |seed| {
            let mut breaker = Breaker::new(BreakerParams { failures: 1, ..PARAMS }, seed);
            breaker.failed(now, Pass::Usual);
            open_for(&breaker, now)
        };
        assert_eq!(wait(1), wait(1));
        assert_ne!(wait(1), wait(2));
    }

    proptest! {
        #[test]
        fn at_most_one_trial_is_out_and_no_wait_exceeds_the_maximum(
            steps in prop::collection::vec((0..6_u8, 0..8_000_u64), 1..120),
        ) {
            let mut now = Instant::now();
            let mut breaker = Breaker::new(PARAMS, 3);
            let mut passes: Vec<Pass> = Vec::new();
            for (step, ms) in steps {
                now += Duration::from_millis(ms);
                breaker.advance(now);
                match step {
                    0..3 => passes.extend(breaker.admit()),
                    3 => if let Some(pass) = passes.pop() { breaker.failed(now, pass); },
                    4 => if let Some(pass) = passes.pop() { breaker.succeeded(pass); },
                    _ => if let Some(pass) = passes.pop() { breaker.withdrawn(pass); },
                }
                if let Circuit::Open { until } = breaker.circuit() {
                    prop_assert!(until <= now + PARAMS.open_max);
                    prop_assert_eq!(breaker.admit(), None);
                }
                if breaker.circuit() == (Circuit::HalfOpen { is_on_trial: true }) {
                    prop_assert!(passes.contains(&Pass::Trial));
                    prop_assert_eq!(breaker.admit(), None);
                }
            }
        }
    }
}

//! What one API key may take of the router: requests a minute, requests at once, money a day.
//!
//! Everything is an atomic: requests of one key never wait for each other. Nothing outlives the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use prometheus::{Counter, CounterVec, IntCounter, IntCounterVec, Opts, Registry};
use tokio::time::Instant;

use crate::units::Usd;

const MINUTE_NS: u64 = 60_000_000_000;
const DAY_S: u64 = 86_400;
/// A day's number and what was spent on it share a word: 12 bits tell a day from the eleven years around it,
/// 52 bits hold 4.5 million USD in billionths.
const SPENT_BITS: u32 = 52;
const SPENT_MAX: u64 = (1 << SPENT_BITS) - 1;
const NANO_USD: f64 = 1e9;

/// The limits of one key; `None` = no limit.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct KeyLimits {
    /// Requests in a minute. A minute's worth may come at once; places come back one by one.
    pub requests_per_minute: Option<u32>,
    /// Requests in progress at once, until the last byte of their answers.
    pub max_concurrency: Option<u32>,
    /// Money in a day of UTC, looked at when a request comes: what is in progress then may exceed it.
    pub per_day: Option<Usd>,
}

/// Why a request is over its key's limits.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum OverBudget {
    /// Too many requests in a minute.
    #[error("this API key may send {per_minute} requests a minute: try again in {} s", retry_after.as_secs_f64().ceil())]
    Rate {
        /// The limit.
        per_minute: u32,
        /// When there is a place again.
        retry_after: Duration,
    },
    /// Too many requests at once.
    #[error("this API key may have {max} requests in progress at once: wait until one is over")]
    Concurrency {
        /// The limit.
        max: u32,
    },
    /// The day's money is spent.
    #[error("this API key has spent its {} USD for today: it can be used again after midnight UTC", per_day.0)]
    Money {
        /// The limit.
        per_day: Usd,
        /// Until midnight.
        retry_after: Duration,
    },
}

impl OverBudget {
    /// Metric labels, in the order of [`OverBudget::idx`].
    const LIMITS: [&str; 3] = ["rate", "concurrency", "money"];

    const fn idx(&self) -> usize {
        match self {
            Self::Rate { .. } => 0,
            Self::Concurrency { .. } => 1,
            Self::Money { .. } => 2,
        }
    }
}

/// The metrics of all keys.
#[derive(Debug)]
pub struct KeyMetrics {
    requests: IntCounterVec,
    refused: IntCounterVec,
    cost: CounterVec,
}

impl KeyMetrics {
    /// Registers them.
    ///
    /// # Errors
    /// When other metrics have their names.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let requests =
            Opts::new("cema_key_requests_total", "Requests with an API key that were within its limits.");
        let refused =
            Opts::new("cema_key_refused_total", "Requests over the limits of their API key, by limit.");
        let cost = Opts::new("cema_key_cost_usd_total", "Money charged to an API key by configured prices.");
        let metrics = Self {
            requests: IntCounterVec::new(requests, &["key"])?,
            refused: IntCounterVec::new(refused, &["key", "limit"])?,
            cost: CounterVec::new(cost, &["key"])?,
        };
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.refused.clone()))?;
        registry.register(Box::new(metrics.cost.clone()))?;
        Ok(metrics)
    }
}

/// What one key has left.
#[derive(Debug)]
pub struct KeyBudget {
    limits: KeyLimits,
    epoch: Instant,
    /// When a minute's worth of places will be free again, in nanoseconds since `epoch` (the theoretical arrival
    /// time of the generic cell rate algorithm).
    all_free_at_ns: AtomicU64,
    in_progress: AtomicU32,
    /// Day and nano-USD, see [`SPENT_BITS`].
    spent: AtomicU64,
    requests: IntCounter,
    refused: [IntCounter; 3],
    cost: Counter,
}

impl KeyBudget {
    /// The whole budget of the key called `name`.
    #[must_use]
    pub fn new(name: &str, limits: KeyLimits, metrics: &KeyMetrics) -> Self {
        Self {
            limits,
            epoch: Instant::now(),
            all_free_at_ns: AtomicU64::new(0),
            in_progress: AtomicU32::new(0),
            spent: AtomicU64::new(0),
            requests: metrics.requests.with_label_values(&[name]),
            refused: OverBudget::LIMITS.map(|limit| metrics.refused.with_label_values(&[name, limit])),
            cost: metrics.cost.with_label_values(&[name]),
        }
    }

    /// Takes the place of one request.
    ///
    /// # Errors
    /// When the key has none left.
    pub fn begin(self: &Arc<Self>) -> Result<KeyUse, OverBudget> {
        self.begin_at(Instant::now(), since_1970())
    }

    fn begin_at(self: &Arc<Self>, now: Instant, utc: Duration) -> Result<KeyUse, OverBudget> {
        let begun = self.money_left(utc).and_then(|()| {
            let begun = self.place()?;
            self.rate(now)?;
            Ok(begun)
        });
        match &begun {
            Ok(_) => self.requests.inc(),
            Err(over) => self.refused[over.idx()].inc(),
        }
        begun
    }

    fn money_left(&self, utc: Duration) -> Result<(), OverBudget> {
        let Some(per_day) = self.limits.per_day else { return Ok(()) };
        if spent_on(day(utc), self.spent.load(Ordering::Relaxed)) as f64 / NANO_USD < per_day.0 {
            return Ok(());
        }
        let retry_after = Duration::from_secs(DAY_S) - Duration::from_secs(utc.as_secs() % DAY_S);
        Err(OverBudget::Money { per_day, retry_after })
    }

    fn place(self: &Arc<Self>) -> Result<KeyUse, OverBudget> {
        // Taken first and given back if it is one too many.
        let taken = KeyUse(Arc::clone(self));
        let before = self.in_progress.fetch_add(1, Ordering::Relaxed);
        match self.limits.max_concurrency {
            Some(max) if before >= max => Err(OverBudget::Concurrency { max }),
            _ => Ok(taken),
        }
    }

    fn rate(&self, now: Instant) -> Result<(), OverBudget> {
        let Some(per_minute) = self.limits.requests_per_minute else { return Ok(()) };
        let one_ns = MINUTE_NS / u64::from(per_minute.max(1));
        let now_ns = u64::try_from(now.duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX - MINUTE_NS);
        let mut free_at = self.all_free_at_ns.load(Ordering::Relaxed);
        loop {
            let after = free_at.max(now_ns) + one_ns;
            if let Some(too_early_ns) = after.checked_sub(now_ns + MINUTE_NS).filter(|ns| *ns > 0) {
                let retry_after = Duration::from_nanos(too_early_ns);
                return Err(OverBudget::Rate { per_minute, retry_after });
            }
            let order = Ordering::Relaxed;
            match self.all_free_at_ns.compare_exchange_weak(free_at, after, order, order) {
                Ok(_) => return Ok(()),
                Err(other) => free_at = other,
            }
        }
    }

    fn charge_at(&self, cost: Usd, utc: Duration) {
        self.cost.inc_by(cost.0.max(0.0));
        let today = day(utc);
        // A float's conversion saturates.
        let nano_usd = (cost.0 * NANO_USD).round() as u64;
        let charged = |spent| {
            let total = spent_on(today, spent).saturating_add(nano_usd).min(SPENT_MAX);
            Some(today << SPENT_BITS | total)
        };
        // The update always succeeds.
        let _ = self.spent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charged);
    }
}

/// The use of a key by one request; its place among those in progress is given back when this is dropped.
#[derive(Debug)]
pub struct KeyUse(Arc<KeyBudget>);

impl KeyUse {
    /// Charges what the request cost.
    pub(super) fn charge(&self, cost: Usd) {
        self.0.charge_at(cost, since_1970());
    }

    /// The same bytes; the place is kept until they are gone.
    pub(super) fn kept_by(self, body: Bytes) -> Bytes {
        if self.0.limits.max_concurrency.is_some() {
            Bytes::from_owner(Keeping { body, _place: self })
        } else {
            body
        }
    }
}

impl Drop for KeyUse {
    fn drop(&mut self) {
        self.0.in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Keeping {
    body: Bytes,
    _place: KeyUse,
}

impl AsRef<[u8]> for Keeping {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// The number of a day, as far as it is kept.
const fn day(utc: Duration) -> u64 {
    (utc.as_secs() / DAY_S) & (u64::MAX >> SPENT_BITS)
}

/// Nano-USD spent on `day`.
const fn spent_on(day: u64, spent: u64) -> u64 {
    if spent >> SPENT_BITS == day { spent & SPENT_MAX } else { 0 }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOON: Duration = Duration::from_secs(20_000 * DAY_S + DAY_S / 2);

    fn budget(limits: KeyLimits) -> Arc<KeyBudget> {
        let metrics = KeyMetrics::register(&Registry::new()).unwrap();
        Arc::new(KeyBudget::new("app", limits, &metrics))
    }

    fn rate(per_minute: u32) -> Arc<KeyBudget> {
        budget(KeyLimits { requests_per_minute: Some(per_minute), ..KeyLimits::default() })
    }

    #[test]
    fn a_minutes_worth_may_come_at_once_and_comes_back_one_by_one() {
        let budget = rate(4);
        let at = |s: u64| budget.begin_at(budget.epoch + Duration::from_secs(s), NOON).map(drop);
        for _ in 0..4 {
            at(100).unwrap();
        }
        let refused = |s| OverBudget::Rate { per_minute: 4, retry_after: Duration::from_secs(s) };
        // One place every 15 s; a refused request takes none.
        assert_eq!(at(100), Err(refused(15)));
        assert_eq!(at(103), Err(refused(12)));
        assert_eq!(at(115), Ok(()));
        assert_eq!(at(115), Err(refused(15)));
        assert_eq!((at(145), at(145)), (Ok(()), Ok(())));
        assert_eq!(at(145), Err(refused(15)));
        assert_eq!((budget.requests.get(), budget.refused[0].get()), (7, 4));
        let message = refused(12).to_string();
        assert_eq!(message, "this API key may send 4 requests a minute: try again in 12 s");
    }

    #[test]
    fn places_are_given_back() {
        let budget = budget(KeyLimits {
            max_concurrency: Some(2),
            requests_per_minute: Some(3),
            ..KeyLimits::default()
        });
        let begin = || budget.begin_at(budget.epoch, NOON);
        let (first, _second) = (begin().unwrap(), begin().unwrap());
        assert_eq!(begin().unwrap_err(), OverBudget::Concurrency { max: 2 });
        let body = first.kept_by(Bytes::from_static(b"answer"));
        assert_eq!((&body[..], begin().is_err()), (&b"answer"[..], true), "kept by the body");
        drop(body);
        drop(begin().unwrap());
        // A request refused for its rate gives its place back, and one refused for its place takes no rate.
        assert!(matches!(begin().unwrap_err(), OverBudget::Rate { .. }));
        assert_eq!(budget.in_progress.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn money_is_spent_by_the_day() {
        let budget = budget(KeyLimits { per_day: Some(Usd(1.5)), ..KeyLimits::default() });
        let begin = |utc| budget.begin_at(budget.epoch, utc).map(drop);
        budget.charge_at(Usd(1.0), NOON);
        budget.charge_at(Usd(0.499_999_999), NOON);
        assert_eq!(begin(NOON), Ok(()), "a billionth is left");
        budget.charge_at(Usd(0.000_000_001), NOON);
        let to_midnight = Duration::from_secs(DAY_S / 2);
        assert_eq!(begin(NOON), Err(OverBudget::Money { per_day: Usd(1.5), retry_after: to_midnight }));
        let second = Duration::from_secs(1);
        let retry_after = |utc| match begin(utc) {
            Err(OverBudget::Money { retry_after, .. }) => retry_after,
            other => panic!("{other:?}"),
        };
        assert_eq!(retry_after(NOON + to_midnight - second), second);
        assert_eq!(begin(NOON + to_midnight), Ok(()), "another day");
        budget.charge_at(Usd(1.0), NOON + to_midnight);
        assert_eq!(begin(NOON + to_midnight), Ok(()), "yesterday's money does not count");
        budget.charge_at(Usd(f64::MAX), NOON + to_midnight);
        assert_eq!(retry_after(NOON + to_midnight), 2 * to_midnight);
    }

    #[test]
    fn nothing_can_be_spent_of_nothing() {
        let budget = budget(KeyLimits { per_day: Some(Usd(0.0)), ..KeyLimits::default() });
        assert!(matches!(budget.begin_at(budget.epoch, NOON), Err(OverBudget::Money { .. })));
    }

    proptest! {
        #[test]
        fn no_minute_has_more_than_its_worth_and_what_was_there_before(
            per_minute in 1_u32..40,
            gaps_ms in proptest::collection::vec(0_u64..8_000, 1..200),
        ) {
            let budget = rate(per_minute);
            let mut now = budget.epoch;
            let mut taken: Vec<Instant> = Vec::new();
            for gap in gaps_ms {
                now += Duration::from_millis(gap);
                match budget.begin_at(now, NOON) {
                    Ok(_) => taken.push(now),
                    Err(OverBudget::Rate { retry_after, .. }) => {
                        prop_assert!(retry_after <= Duration::from_secs(60));
                        // It is true to its word, to the nanosecond.
                        let early = retry_after.checked_sub(Duration::from_nanos(1)).unwrap();
                        prop_assert!(budget.begin_at(now + early, NOON).is_err());
                    }
                    Err(other) => prop_assert!(false, "{other}"),
                }
                let in_minute = taken.iter().filter(|at| now - **at < Duration::from_secs(60)).count();
                prop_assert!(in_minute <= 2 * per_minute as usize);
                // Over any longer time the rate holds: what may come at once, and what came back since.
                let came_back = (now - budget.epoch).as_secs_f64() / 60.0 * f64::from(per_minute);
                prop_assert!(taken.len() as f64 <= f64::from(per_minute) + came_back + 1e-3);
            }
        }
    }
}

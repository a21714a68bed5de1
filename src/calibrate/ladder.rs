//! The ladder: concurrency rises until more clients bring no more tokens a second, and what that says.

use serde::Serialize;

use super::sample::Rung;
use crate::units::TokensPerSec;

/// A step that brings less than this share more is flat.
pub const GAIN_MIN: f64 = 0.10;
/// Flat steps in a row after which the ladder ends.
pub const FLAT_STEPS: usize = 2;
/// The knee is the smallest concurrency that reaches this share of the best.
pub const KNEE_SHARE: f64 = 0.9;
/// Requests each client of a rung sends.
const ROUNDS: u32 = 2;
/// Requests of a rung at least, so that the first ones, which everything is held against, are not one lucky pair.
const REQUESTS_MIN: u32 = 4;

/// The concurrencies of a ladder up to `max`: powers of two, and `max` itself.
pub fn concurrencies(max: u32) -> impl Iterator<Item = u32> {
    let next = move |c: &u32| (*c < max).then(|| c.saturating_mul(2).min(max));
    std::iter::successors(Some(1), next)
}

/// Requests each of `concurrency` clients sends.
#[must_use]
pub const fn rounds(concurrency: u32) -> u32 {
    let needed = REQUESTS_MIN.div_ceil(concurrency);
    if needed > ROUNDS { needed } else { ROUNDS }
}

/// Why a ladder went no higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// More clients brought no more.
    Saturated,
    /// Requests failed.
    Failed,
    /// The highest concurrency that was allowed, or it was cut short; more might bring more.
    Open,
}

/// Whether the ladder so far goes on.
#[must_use]
pub fn ending(rungs: &[Rung]) -> Ending {
    let is_flat = |pair: &[Rung]| pair[1].aggregate().get() < (1.0 + GAIN_MIN) * pair[0].aggregate().get();
    let n_flat = rungs.windows(2).rev().take_while(|pair| is_flat(pair)).count();
    match rungs.last() {
        Some(last) if last.failures > 0 => Ending::Failed,
        _ if n_flat >= FLAT_STEPS => Ending::Saturated,
        _ => Ending::Open,
    }
}

/// What a ladder says.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LadderFit {
    /// F_1: completion tokens per second of one client, prompts included.
    #[serde(rename = "serial_tps")]
    pub serial: TokensPerSec,
    /// The most seen at any concurrency.
    #[serde(rename = "best_tps")]
    pub best: TokensPerSec,
    /// F_B: the most seen up to `max_concurrency`. More at once do not bring less, but for noise and for engines that
    /// the model of the speed-up does not describe.
    #[serde(rename = "batch_tps")]
    pub batch: TokensPerSec,
    /// The smallest concurrency that reaches [`KNEE_SHARE`] of the best.
    pub knee: u32,
    /// Requests that the engine runs at once: what it says, or what was seen while more waited. `None` = more than
    /// there were clients.
    pub slots: Option<u32>,
    /// Recommended: the slots, or the knee where none are known.
    pub max_concurrency: u32,
    /// `F_B / F_1`, 1 to `max_concurrency`.
    pub batch_speedup: f64,
    /// Why it went no higher.
    pub ending: Ending,
}

/// Reads a ladder; `reported_slots` = what the server says it runs at once. Rungs with failures do not count.
/// `None` without a usable first rung.
#[must_use]
pub fn fit(rungs: &[Rung], reported_slots: Option<u32>) -> Option<LadderFit> {
    let good: Vec<&Rung> = rungs.iter().take_while(|rung| rung.failures == 0).collect();
    let serial = good.first().filter(|rung| rung.concurrency == 1)?.aggregate();
    if serial <= TokensPerSec::ZERO {
        return None;
    }
    let best = good.iter().map(|rung| rung.aggregate()).fold(serial, TokensPerSec::max);
    let reaches = |rung: &&&Rung| rung.aggregate().get() >= KNEE_SHARE * best.get();
    let knee = good.iter().find(reaches)?.concurrency;
    let slots = reported_slots.or_else(|| slots_seen(&good));
    // What truly runs at once is what the router must know, even if the last of it brings little.
    let max_concurrency = slots.unwrap_or(knee);
    // With more clients than slots the engine ran its slots; a ladder that ended below them had become flat.
    let n_up_to = 1 + good.iter().take_while(|rung| rung.concurrency < max_concurrency).count();
    let batch = good.iter().take(n_up_to).map(|rung| rung.aggregate()).fold(serial, TokensPerSec::max);
    let batch_speedup = (batch.get() / serial.get()).clamp(1.0, f64::from(max_concurrency));
    Some(LadderFit {
        serial,
        best,
        batch,
        knee,
        slots,
        max_concurrency,
        batch_speedup,
        ending: ending(rungs),
    })
}

/// A limit of the engine's own, where the highest rung shows one: answers ran fewer at once than there were clients,
/// those that waited saw their first token late, and nothing was gained.
fn slots_seen(rungs: &[&Rung]) -> Option<u32> {
    let [.., below, top] = rungs else { return None };
    let ran_at_once = rungs.iter().map(|rung| rung.running_max()).max()?;
    let is_flat = top.aggregate().get() < (1.0 + GAIN_MIN) * below.aggregate().get();
    let waited = top.ttft() > below.ttft();
    (ran_at_once < top.concurrency && is_flat && waited && ran_at_once > 0).then_some(ran_at_once)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::sample::testing::rung;

    #[test]
    fn concurrency_doubles_up_to_the_limit() {
        assert_eq!(concurrencies(8).collect::<Vec<_>>(), [1, 2, 4, 8]);
        assert_eq!(concurrencies(6).collect::<Vec<_>>(), [1, 2, 4, 6]);
        assert_eq!(concurrencies(1).collect::<Vec<_>>(), [1]);
        assert_eq!([1, 2, 3, 4, 64].map(rounds), [4, 2, 2, 2, 2]);
    }

    #[test]
    fn it_ends_after_two_flat_steps() {
        let mut rungs = vec![rung(1, 20.0, 1, 0.5), rung(2, 38.0, 2, 0.5), rung(4, 41.0, 4, 0.5)];
        // 38 to 41 is 8 %: one flat step.
        assert_eq!(ending(&rungs), Ending::Open);
        rungs.push(rung(8, 44.0, 8, 0.5));
        assert_eq!(ending(&rungs), Ending::Saturated);
        // A step that gains starts the count again.
        rungs.push(rung(16, 60.0, 16, 0.5));
        assert_eq!(ending(&rungs), Ending::Open);
        rungs.last_mut().unwrap().failures = 1;
        assert_eq!(ending(&rungs), Ending::Failed);
    }

    #[test]
    fn the_knee_is_where_nine_tenths_of_the_best_are_reached() {
        let rungs =
            [rung(1, 20.0, 1, 0.5), rung(2, 36.0, 2, 0.5), rung(4, 56.0, 4, 0.5), rung(8, 60.0, 8, 0.5)];
        let fit = fit(&rungs, None).unwrap();
        // 0.9 × 60 = 54: four reach it, two do not. F_B / F_1 = 56 / 20.
        assert_eq!((fit.knee, fit.max_concurrency, fit.slots), (4, 4, None));
        assert!((fit.batch_speedup - 2.8).abs() < 1e-9 && (fit.best.get() - 60.0).abs() < 1e-9, "{fit:?}");
        assert_eq!(fit.ending, Ending::Open);
    }

    #[test]
    fn a_limit_of_the_engine_shows_as_waiting_without_gain() {
        // Three slots: with four clients three run at once, with eight as well.
        let rungs =
            [rung(1, 20.0, 1, 0.5), rung(2, 36.0, 2, 0.5), rung(4, 48.0, 3, 0.5), rung(8, 49.0, 3, 4.0)];
        let fit = fit(&rungs, None).unwrap();
        assert_eq!((fit.knee, fit.slots, fit.max_concurrency), (4, Some(3), 3));
        assert!((fit.batch_speedup - 2.4).abs() < 1e-9, "{fit:?}");
    }

    #[test]
    fn what_the_server_says_is_the_recommendation() {
        // The second brings a tenth only: the knee is at one, and yet two run at once.
        let rungs = [rung(1, 20.0, 1, 0.5), rung(2, 22.0, 2, 0.5)];
        let fit = |slots| fit(&rungs, Some(slots)).unwrap();
        assert_eq!((fit(2).knee, fit(2).max_concurrency), (1, 2));
        assert!((fit(2).batch_speedup - 1.1).abs() < 1e-9);
        // Cut short below its slots: what was seen last.
        assert_eq!(fit(8).max_concurrency, 8);
        assert!((fit(8).batch_speedup - 1.1).abs() < 1e-9);
    }

    #[test]
    fn more_at_once_that_bring_less_do_not_lower_the_speed_up() {
        let rungs =
            [rung(1, 20.0, 1, 0.5), rung(2, 25.0, 2, 0.5), rung(4, 22.0, 4, 0.5), rung(8, 40.0, 4, 0.5)];
        // 25 / 20 of two; what eight clients get out of four slots is more than a rung of four would say.
        let fit = |slots| fit(&rungs, Some(slots)).unwrap().batch_speedup;
        assert!((fit(4) - 1.25).abs() < 1e-9 && (fit(2) - 1.25).abs() < 1e-9 && (fit(8) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_failed_rung_is_left_out_and_no_speed_up_is_beyond_the_concurrency() {
        let mut rungs = vec![rung(1, 20.0, 1, 0.5), rung(2, 44.0, 2, 0.5), rung(4, 80.0, 4, 0.5)];
        rungs[2].failures = 1;
        let fit = fit(&rungs, None).unwrap();
        assert_eq!((fit.max_concurrency, fit.ending), (2, Ending::Failed));
        assert!(
            (fit.batch_speedup - 2.0).abs() < 1e-9,
            "44 / 20 is more than two requests can gain: {fit:?}"
        );
        assert_eq!(super::fit(&[], None), None);
    }
}

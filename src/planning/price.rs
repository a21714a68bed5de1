//! Congestion prices: what a second of a destination's time is worth to those who come after.
//!
//! One controller per destination, a slow integral of how full it is above a target. With u the share of slots that
//! are taken or spoken for and ū its moving average, `I' = gain · (ū − target)`, `I ≥ 0`, and the price is
//! `(I + max(0, ū − target)) / w`, w the mean work of a request there: J that a mean request pays, at ω_T = 1.

use crate::units::Seconds;

/// Constants of the controller (a study found the defaults on simulated fleets).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PriceParams {
    /// Utilisation that costs nothing, in (0, 1).
    pub target: f64,
    /// Growth of the integral per second and unit of ū above the target.
    pub gain_per_s: f64,
}

impl Default for PriceParams {
    fn default() -> Self {
        Self { target: 0.9, gain_per_s: 0.09 }
    }
}

/// u counts no further: a queue twice as long as the slots says no more than that it is long.
const UTILISATION_MAX: f64 = 2.0;
/// The integral goes no higher, so that it comes down in time: a mean request then pays as much as for twenty times
/// T_ref.
const INTEGRAL_MAX: f64 = 20.0;
/// The average of u forgets over about two requests a slot: `2 · T_ref / S`, within these bounds.
const MEMORY_REQUESTS: f64 = 2.0;
const MEMORY_MIN: Seconds = Seconds(0.5);
const MEMORY_MAX: Seconds = Seconds(20.0);
/// Share of a new request in the mean work.
const WORK_SMOOTHING: f64 = 0.02;

/// The price of one destination. Time is an argument; what is between two calls was as the later one says.
#[derive(Debug, Clone)]
pub struct CongestionPrice {
    params: PriceParams,
    as_of: Seconds,
    /// ū.
    utilisation: f64,
    /// I.
    integral: f64,
    /// w.
    mean_work_s: f64,
}

impl CongestionPrice {
    /// No congestion; a mean request takes `mean_work` of the destination's time, positive.
    #[must_use]
    pub fn new(params: PriceParams, mean_work: Seconds, now: Seconds) -> Self {
        Self { params, as_of: now, utilisation: 0.0, integral: 0.0, mean_work_s: mean_work.0 }
    }

    /// Since the last call, until `now`, `n_taken` of `slots` slots (more if some queue) were taken or spoken for.
    pub fn advance(&mut self, now: Seconds, (n_taken, slots): (u32, u32), time_scale: Seconds) {
        let elapsed_s = (now - self.as_of).0;
        if elapsed_s <= 0.0 {
            return;
        }
        self.as_of = now;
        let slots = f64::from(slots.max(1));
        let u = (f64::from(n_taken) / slots).min(UTILISATION_MAX);
        let memory_s = (MEMORY_REQUESTS * time_scale.0 / slots).clamp(MEMORY_MIN.0, MEMORY_MAX.0);
        // ū nears u exponentially; both it and its integral over the time are known in closed form.
        let kept = (-elapsed_s / memory_s).exp();
        let (before, target) = (self.utilisation, self.params.target);
        self.utilisation = u + (before - u) * kept;
        let excess = (u - target) * elapsed_s + (before - u) * memory_s * (1.0 - kept);
        self.integral = (self.integral + self.params.gain_per_s * excess).clamp(0.0, INTEGRAL_MAX);
    }

    /// A request that could be served here would take so much of the destination's time.
    pub fn observe(&mut self, work_s: f64) {
        if work_s > 0.0 {
            self.mean_work_s += WORK_SMOOTHING * (work_s - self.mean_work_s);
        }
    }

    /// Forgets congestion: the destination is not what it was.
    pub fn reset(&mut self) {
        (self.utilisation, self.integral) = (0.0, 0.0);
    }

    /// J per second of saturated work at ω_T = 1; not negative.
    #[must_use]
    pub fn per_s(&self) -> f64 {
        (self.integral + (self.utilisation - self.params.target).max(0.0)) / self.mean_work_s
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SCALE: Seconds = Seconds(4.0);

    fn price() -> CongestionPrice {
        CongestionPrice::new(PriceParams::default(), Seconds(2.0), Seconds::ZERO)
    }

    #[test]
    fn golden_values() {
        let mut price = price();
        // Memory 2 · 4 / 4 = 2 s. After 2 s full: ū = 1 − 1/e = 0.632; below the target all the time.
        price.advance(Seconds(2.0), (4, 4), SCALE);
        assert!((price.utilisation - 0.632_120_558_828_557_7).abs() < 1e-12);
        assert!(price.per_s().abs() < 1e-12);
        // 20 s more: ū = 1 − 0.368 e^-10; ∫(ū − 0.9) = 0.1 · 20 − 0.368 · 2 (1 − e^-10) = 1.264; I = 0.09 of it.
        price.advance(Seconds(22.0), (4, 4), SCALE);
        let (rest, fade) = ((-1.0_f64).exp(), (-10.0_f64).exp());
        let integral = 0.09 * (2.0 - rest * 2.0 * (1.0 - fade));
        assert!((price.integral - integral).abs() < 1e-12);
        assert!((price.per_s() - (integral + 0.1 - rest * fade) / 2.0).abs() < 1e-12);
    }

    #[test]
    fn an_idle_destination_costs_nothing_after_a_while() {
        let mut price = price();
        price.advance(Seconds(600.0), (12, 4), SCALE);
        assert!(price.per_s() > 5.0);
        // 0.9 · 0.09 a second down from 20 at most.
        price.advance(Seconds(600.0 + 260.0), (0, 4), SCALE);
        assert!(price.per_s().abs() < 1e-12);
    }

    #[test]
    fn a_reset_forgets() {
        let mut price = price();
        price.advance(Seconds(60.0), (8, 4), SCALE);
        price.reset();
        assert!(price.per_s().abs() < 1e-12);
    }

    /// Demand that falls with the price, as when requests go elsewhere: it settles near the target.
    #[test]
    fn a_step_of_load_settles_without_lasting_oscillation() {
        let mut price = price();
        let (mut now, mut taken, mut late) = (0.0, 0.0_f64, Vec::new());
        for step in 0..4_000 {
            now += 0.25;
            // 1.5 times what it can do, less a half per unit a mean request pays; slots fill and empty in 4 s.
            let wanted = (6.0 - 2.0 * price.per_s() * 2.0).max(0.0);
            taken += (wanted - taken) * 0.25 / 4.0;
            price.advance(Seconds(now), (taken.round() as u32, 4), SCALE);
            if step > 2_000 {
                late.push(price.per_s());
            }
        }
        let (low, high) = late.iter().fold((f64::MAX, 0.0_f64), |(low, high), p| (low.min(*p), high.max(*p)));
        assert!(high < 1.5 && high - low < 0.5, "{low} to {high}");
        assert!(low > 0.3, "it stays scarce: {low}");
    }

    proptest! {
        #[test]
        fn it_is_bounded_and_steps_do_not_matter(
            spans in prop::collection::vec((0.01..5.0_f64, 0..12_u32), 1..60), pieces in 1..8_u32,
        ) {
            let (mut whole, mut split) = (price(), price());
            let mut now = 0.0;
            for (span, taken) in spans {
                for piece in 1..=pieces {
                    let at = now + span * f64::from(piece) / f64::from(pieces);
                    split.advance(Seconds(at), (taken, 4), SCALE);
                }
                now += span;
                whole.advance(Seconds(now), (taken, 4), SCALE);
                prop_assert!((whole.utilisation - split.utilisation).abs() < 1e-9);
                prop_assert!(split.per_s() >= 0.0 && split.per_s() <= (INTEGRAL_MAX + 1.1) / 2.0 + 1e-9);
                // They differ by what is cut off at zero within a span.
                prop_assert!((whole.integral - split.integral).abs() <= 0.09 * 1.1 * now + 1e-9);
            }
        }
    }
}

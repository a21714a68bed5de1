//! Policies that take turns (a *switchback*): which one has which slice of time.
//!
//! Policies share queues, caches and slots, so that requests cannot be split between them: what one does is the state
//! that the other finds. They take turns instead. In each *round* every policy has one *slice*, in an order drawn anew,
//! so that neither a trend nor a daily rhythm favours one. The first part of a slice, the *wash-out*, is that of the
//! policy before, whose requests still run, and counts for nobody. Time is an argument.

use rand::seq::SliceRandom as _;

use crate::routing::rng_for;
use crate::units::Seconds;

/// Who has its turn when; a function of its fields.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alternation {
    /// Length of a slice, positive.
    pub slice: Seconds,
    /// Share of a slice that is not counted, 0 to below 1.
    pub washout: f64,
    /// Policies that take turns, at least 1.
    pub n_policies: usize,
    /// Of the order within rounds.
    pub seed: u64,
}

/// A turn of one policy, on the clock that began with the first one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slice {
    /// Its number, from 0.
    pub number: u64,
    /// The round it is part of, from 0.
    pub round: u64,
    /// Whose turn it is: an index below [`Alternation::n_policies`].
    pub policy: usize,
    /// When it begins.
    pub begins: Seconds,
    /// When its wash-out is over.
    pub counts_from: Seconds,
    /// When it ends.
    pub ends: Seconds,
}

impl Alternation {
    /// The slice that `now` is in.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count; a cast saturates")]
    pub fn at(&self, now: Seconds) -> Slice {
        let mut slice = self.nth((now.0.max(0.0) / self.slice.0) as u64);
        // The quotient may have been rounded across the border.
        if now.0 >= slice.ends.0 {
            slice = self.nth(slice.number.saturating_add(1));
        } else if now.0 < slice.begins.0 {
            slice = self.nth(slice.number.saturating_sub(1));
        }
        slice
    }

    /// Slice `number`.
    #[must_use]
    pub fn nth(&self, number: u64) -> Slice {
        let n_policies = self.n_policies.max(1);
        let (round, turn) = (number / n_policies as u64, number % n_policies as u64);
        let mut order: Vec<usize> = (0..n_policies).collect();
        order.shuffle(&mut rng_for(self.seed, round));
        let policy = order.into_iter().zip(0..).find(|(_, nth)| *nth == turn).map_or(0, |(policy, _)| policy);
        let border = |number: u64| Seconds(self.slice.0 * number as f64);
        let (begins, ends) = (border(number), border(number.saturating_add(1)));
        let counts_from = begins + Seconds(self.slice.0 * self.washout);
        Slice { number, round, policy, begins, counts_from, ends }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const THREE: Alternation = Alternation { slice: Seconds(60.0), washout: 0.25, n_policies: 3, seed: 7 };

    #[test]
    fn a_slice_knows_its_times() {
        let slice = THREE.at(Seconds(250.0));
        assert_eq!((slice.number, slice.round), (4, 1));
        assert_eq!(
            (slice.begins, slice.counts_from, slice.ends),
            (Seconds(240.0), Seconds(255.0), Seconds(300.0))
        );
        assert_eq!(THREE.at(Seconds(300.0)).number, 5, "the end is the next one's beginning");
    }

    #[test]
    fn everyone_has_a_turn_in_every_round_in_an_order_of_its_own() {
        let order = |of: &Alternation, round: u64| -> Vec<usize> {
            (0..3).map(|n| of.nth(3 * round + n).policy).collect()
        };
        let orders: BTreeSet<_> = (0..60).map(|round| order(&THREE, round)).collect();
        assert_eq!(orders.len(), 6, "all orders come up: {orders:?}");
        let other = Alternation { seed: 8, ..THREE };
        assert!((0..60).any(|round| order(&THREE, round) != order(&other, round)), "the seed matters");
        for order in orders {
            assert_eq!(order.into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([0, 1, 2]));
        }
    }

    proptest! {
        #[test]
        fn every_time_is_in_its_slice(
            slice in 0.01..1e5_f64, at in 0.0..1e7_f64, n in 0..1000_u32,
            n_policies in 1..9_usize, seed in any::<u64>(),
        ) {
            let of = Alternation { slice: Seconds(slice), washout: 0.3, n_policies, seed };
            for now in [at, slice * f64::from(n)] {
                let slice = of.at(Seconds(now));
                prop_assert!(slice.begins.0 <= now && now < slice.ends.0, "{slice:?} {now}");
                prop_assert!(slice.begins.0 <= slice.counts_from.0 && slice.counts_from.0 < slice.ends.0);
                prop_assert!(slice.policy < n_policies);
                prop_assert_eq!(slice, of.nth(slice.number));
            }
        }
    }
}

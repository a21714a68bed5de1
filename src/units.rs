//! Physical and monetary quantities as newtypes, so that a signature says what a number is.
//!
//! Every quantity is a finite `f64` (token counts may be fractional: they are often predictions).
//! Hot loops unwrap them to raw `f64` and carry the unit last in the variable's name (`service_s`).

use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $unit:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub f64);

        impl $name {
            /// The zero of this quantity.
            pub const ZERO: Self = Self(0.0);

            #[doc = concat!("The raw number, in ", $unit, ".")]
            #[must_use]
            pub const fn get(self) -> f64 {
                self.0
            }

            /// The larger of the two.
            #[must_use]
            pub fn max(self, other: Self) -> Self {
                Self(self.0.max(other.0))
            }

            /// The smaller of the two.
            #[must_use]
            pub fn min(self, other: Self) -> Self {
                Self(self.0.min(other.0))
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
                Self(iter.map(|quantity| quantity.0).sum())
            }
        }
    };
}

quantity!(
    /// A span of time, or a point in time counted from the start of the process or simulation.
    Seconds, "seconds"
);
quantity!(
    /// Energy.
    Joules, "joules"
);
quantity!(
    /// Electric power.
    Watts, "watts"
);
quantity!(
    /// Money. The paper's "cost" is always this, never the objective J.
    Usd, "US dollars"
);
quantity!(
    /// A number of language-model tokens, possibly a fractional prediction.
    Tokens, "tokens"
);
quantity!(
    /// A rate of prompt processing or generation.
    TokensPerSec, "tokens per second"
);
quantity!(
    /// A payload size.
    Bytes, "bytes"
);
quantity!(
    /// Goodput of a network path.
    BytesPerSec, "bytes per second"
);
quantity!(
    /// Response quality in `[0, 1]`; 1 is a correct answer. The loss of Eq. 5 is `1 - quality`.
    Quality, "quality points"
);

impl BytesPerSec {
    /// Converts from the megabits per second that operators write in configurations.
    #[must_use]
    pub fn from_mbps(megabits_per_s: f64) -> Self {
        Self(megabits_per_s * 1e6 / 8.0)
    }
}

impl Bytes {
    /// Time to move this payload at `goodput`.
    #[must_use]
    pub fn transfer_time(self, goodput: BytesPerSec) -> Seconds {
        Seconds(self.0 / goodput.0)
    }
}

impl Tokens {
    /// Time to process this many tokens at `rate`.
    #[must_use]
    pub fn duration_at(self, rate: TokensPerSec) -> Seconds {
        Seconds(self.0 / rate.0)
    }
}

impl Watts {
    /// Energy drawn over `duration`.
    #[must_use]
    pub fn over(self, duration: Seconds) -> Joules {
        Joules(self.0 * duration.0)
    }
}

impl Seconds {
    /// Converts from the milliseconds used in configuration keys and headers.
    #[must_use]
    pub fn from_ms(milliseconds: f64) -> Self {
        Self(milliseconds / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_those_of_the_units() {
        assert!((BytesPerSec::from_mbps(100.0).get() - 12_500_000.0).abs() < 1e-9);
        assert!((Bytes(25_000_000.0).transfer_time(BytesPerSec::from_mbps(100.0)).get() - 2.0).abs() < 1e-12);
        assert!((Tokens(90.0).duration_at(TokensPerSec(45.0)).get() - 2.0).abs() < 1e-12);
        assert!((Watts(150.0).over(Seconds(2.0)).get() - 300.0).abs() < 1e-12);
        assert!((Seconds::from_ms(250.0).get() - 0.25).abs() < 1e-12);
    }
}

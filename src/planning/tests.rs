//! The planner's rules one by one, and its laws over random histories ([`laws`]).

mod affinity;
mod deadlines;
mod gathering;
mod history;
mod holding;
mod laws;
mod rig;
mod rolling;
mod scales;
mod switching;

use proptest::prelude::*;

use self::rig::{Refusing, Rig, fleet};
use super::{PriceParams, Rejection, WindowClose, WindowOrder};
use crate::domain::fixture::{prediction, request};
use crate::domain::{Availability, Constraints, DestinationOrd, NodeClass};
use crate::routing::{NoDestination, PolicyKind, PolicyParams, for_kind};
use crate::units::Seconds;

const D0: DestinationOrd = DestinationOrd(0);
const D1: DestinationOrd = DestinationOrd(1);

/// A completion of 100 tokens: one second at every destination of the fixture.
const ONE_SECOND: f64 = 100.0;

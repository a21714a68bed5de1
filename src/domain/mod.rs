//! The vocabulary of the paper's section III as plain data: requests, destinations, the routing
//! context handed to the evaluator, assignments, and the backlog ledger.
//!
//! Nothing here does IO, reads a clock or knows HTTP; time is always an argument.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod api_call;
pub mod backlog;
pub mod completion;
pub mod context;
pub mod destination;
pub mod estimate;
#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod named;
pub mod prefix;
pub mod request;

pub use api_call::ApiCall;
pub use backlog::{BacklogLedger, Outstanding, SlotLoad, Work};
pub use completion::{CompletionModel, TimeTerm};
pub use context::{Availability, DestinationState, FleetView, Moment, ObjectiveScales, RoutingContext};
pub use destination::{
    Capabilities, Destination, DestinationId, DestinationOrd, EndpointOrd, Network, NodeClass, Power, Price,
    SlotSpeed, Throughput, TransferEnergy,
};
pub use estimate::RequestEstimate;
pub use prefix::{CachedPrefix, Prefix, PrefixChain};
pub use request::{Constraints, ModelTarget, Prediction, QualitySource, RoutingRequest, Weights};

//! The choices that shape a decision, by the names of the configuration (`routing.*`).

use crate::domain::named::named_enum;

pub use crate::domain::{CompletionModel, TimeTerm};
use crate::routing::problem::CostModels;

named_enum! {
    /// Which policy assigns a batch.
    pub enum PolicyKind {
        /// Near-optimal memetic search with fixed bounds (the product's default).
        Memetic = "memetic",
        /// Algorithms 1–3 of the paper as written.
        MemeticPaper = "memetic_paper",
        /// Per request in arrival order, same objective, live backlog and congestion prices.
        Greedy = "greedy",
        /// `greedy` without congestion prices.
        GreedyPlain = "greedy_plain",
        /// UniRoute: cluster error rates plus normalised money.
        Uniroute = "uniroute",
        /// Destinations in turn.
        RoundRobin = "round_robin",
        /// The destination with the least tracked outstanding work.
        LeastLoaded = "least_loaded",
        /// Least loaded among cloud nodes.
        CloudOnly = "cloud_only",
        /// Least loaded among edge nodes.
        EdgeOnly = "edge_only",
    }
}

impl PolicyKind {
    /// The models to plan by where `configured` ones are asked for: `memetic_paper` is defined on the makespan of
    /// Eq. 4.
    #[must_use]
    pub const fn models(self, configured: CostModels) -> CostModels {
        match self {
            Self::MemeticPaper => {
                CostModels { completion: CompletionModel::Fifo, time: TimeTerm::Makespan, ..configured }
            }
            _ => configured,
        }
    }

    /// Whether congestion prices are part of its objective.
    #[must_use]
    pub const fn pays_prices(self) -> bool {
        !matches!(self, Self::GreedyPlain)
    }
}

named_enum! {
    /// How the terms of Eq. 5 are normalised (Eq. 6).
    pub enum ObjectiveMode {
        /// Fixed scales, the same from window to window (the live default).
        Stationary = "stationary",
        /// Bounds fixed per batch: ideal point and payoff-table nadir.
        Batch = "batch",
        /// The paper's: over P ∪ P′ of each generation.
        Population = "population",
    }
}

named_enum! {
    /// How inference energy is charged to a request (Eq. 3).
    pub enum EnergyModel {
        /// Power above idle over the service time, divided by the speed-up at the concurrency it runs at.
        Marginal = "marginal",
        /// Board power × utilisation × service time, undivided.
        Paper = "paper",
    }
}

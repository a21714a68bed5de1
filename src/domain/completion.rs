//! How completion times are predicted, and what of them counts.

use super::named::named_enum;

named_enum! {
    /// How completion times are predicted.
    pub enum CompletionModel {
        /// Slot timeline with one prefill server.
        Slots = "slots",
        /// Eq. 4: first in, first out with a batch speed-up.
        Fifo = "fifo",
    }
}

named_enum! {
    /// What the time term of Eq. 5 measures.
    pub enum TimeTerm {
        /// The sum of completion times.
        Sum = "sum",
        /// The batch makespan (the paper's).
        Makespan = "makespan",
    }
}

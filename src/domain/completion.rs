//! How completion times are predicted.

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

//! Where a lease stands.

use crate::LossCause;

/// Where a lease stands. It only ever moves down this list, save that a refresh brings `AtRisk`
/// back to `Held`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseState {
    /// Held, as far as this process can know.
    Held,
    /// Refreshes fail or are not answered; the deadline is still ahead. Time to bring work to a point where it can
    /// stop.
    AtRisk,
    /// Over, and not by its holder's will.
    Lost {
        /// What ended it.
        cause: LossCause,
    },
    /// Over, because its holder released or dropped it.
    Released,
}

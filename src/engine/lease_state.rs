//! The states of a lease.

use crate::LossCause;

/// The state of a lease. It only moves down this list, except that a refresh changes `AtRisk` back to `Held`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseState {
    /// Held, as far as this process can know.
    Held,
    /// Refreshes fail or are not answered, and the deadline is still ahead. Bring work to a point where it can stop.
    AtRisk,
    /// The lease ended, and its holder did not release it.
    Lost {
        /// What ended it.
        cause: LossCause,
    },
    /// The holder released or dropped the lease.
    Released,
}

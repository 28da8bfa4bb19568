//! The states of a lease, and the outcome of its release.

use crate::types::error::LossCause;

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

/// The outcome of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseOutcome {
    /// The lease was held until now: the key was granted to no other acquire meanwhile.
    Released,
    /// The lease is gone, and it is unknown whether this release ended it. The release was sent before and its reply
    /// was lost. Meanwhile the deadline passed, the key was granted again, or its version was raised.
    Unknown,
    /// The lease was already lost.
    AlreadyLost {
        /// What ended it.
        cause: LossCause,
    },
}

//! The states of a lease, and the outcome of its release.

use std::fmt;

use crate::types::error::{EndReason, LossCause};

/// The state of a lease. It only moves down this list, except that a refresh changes `AtRisk` back to `Held`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseState {
    /// Held, as far as this process can know.
    Held,
    /// Refreshes fail or are not answered, and the deadline is still ahead. Bring work to a point where it can stop.
    AtRisk,
    /// The lease ended although its holder did not end it.
    Lost {
        /// What ended it.
        cause: LossCause,
    },
    /// The holder ended the lease.
    Ended {
        /// How it ended the lease.
        reason: EndReason,
    },
}

impl LeaseState {
    pub(crate) const RELEASED: Self = Self::Ended { reason: EndReason::Released };
    pub(crate) const SHUT_DOWN: Self = Self::Ended { reason: EndReason::ShutDown };

    /// Whether the lease is held no longer: it is lost or ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::Ended { .. })
    }
}

impl fmt::Display for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held => f.write_str("held"),
            Self::AtRisk => f.write_str("at risk"),
            Self::Lost { cause } => write!(f, "lost, because {cause}"),
            Self::Ended { reason } => write!(f, "ended, because {reason}"),
        }
    }
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
    /// The lease was already [transferred](crate::Lease::transfer) to another lease id.
    AlreadyTransferred,
}

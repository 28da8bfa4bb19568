//! What becomes of a lease at the store when it has ended here, as plain data. `release.rs` does it.

use std::sync::Arc;

use crate::{
    FencingToken, LeaseId, LossCause,
    engine::joint_release::{JointRelease, WithGroup},
};

/// What becomes of a lease at the store, other than its release.
#[derive(Debug)]
pub(crate) enum EndAction {
    /// It is left to its ttl.
    Orphan,
    /// It is given to this lease id.
    Transfer(LeaseId),
    /// It is released together with others.
    Jointly(Arc<JointRelease>),
    /// Its group is being released by this handle.
    WithGroup(WithGroup),
}

/// What the task of a lease did at its end.
#[derive(Debug)]
pub(crate) enum End {
    Released(ReleaseOutcome),
    Transferred(FencingToken),
}

/// What a release found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseOutcome {
    /// The lease was held to this moment; nobody else was granted the key meanwhile.
    Released,
    /// The lease is gone, and whether an earlier send of this release ended it cannot be told: its
    /// reply was lost, and meanwhile the deadline passed, or the key was granted again or its version raised.
    Unknown,
    /// The lease had been lost before.
    AlreadyLost {
        /// What ended it.
        cause: LossCause,
    },
}

//! What happens at the store to a lease that has ended in this process. This is plain data: `release.rs` acts on it.

use std::sync::Arc;

use crate::{
    FencingToken, LeaseId, LossCause,
    engine::{
        joint_release::{JointRelease, WithGroup},
        lease_state::ReleaseOutcome,
    },
};

/// What happens to a lease at the store instead of a plain release.
#[derive(Debug)]
pub(crate) enum EndAction {
    /// Its ttl ends it.
    Orphan,
    /// It is transferred to this lease id.
    Transfer(LeaseId),
    /// One command releases it together with others.
    Jointly(Arc<JointRelease>),
    /// The release of its group, by this handle, releases it.
    WithGroup(WithGroup),
    /// It completes this tick, in the same write.
    Complete(u64),
    /// It is released although its minimum hold is not over: no work has run under it.
    TakeBack,
}

/// What the task of a lease did when the lease ended.
#[derive(Debug)]
pub(crate) enum End {
    Released(ReleaseOutcome),
    Transferred(FencingToken),
}

impl End {
    /// What became of the lease of this process.
    pub(crate) fn outcome(&self) -> ReleaseOutcome {
        match self {
            Self::Released(outcome) => outcome.clone(),
            Self::Transferred(_) => ReleaseOutcome::AlreadyLost { cause: LossCause::Transferred },
        }
    }
}

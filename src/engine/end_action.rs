//! What happens at the store to a lease that has ended in this process. This is plain data: `release.rs` acts on it.

use std::{sync::Arc, time::Duration};

use tokio::sync::SetOnce;

use crate::{
    engine::lease_state::ReleaseOutcome,
    record::RunReport,
    types::{json::Json, lease_id::LeaseId, token::FencingToken},
};

/// What happens to a lease at the store. Without one it is released.
#[derive(Debug)]
pub(crate) enum EndAction {
    /// Nothing: its ttl ends the lease.
    Orphan,
    /// The lease is transferred to this lease id.
    Transfer(LeaseId),
    /// One command releases it together with the others of its set.
    Jointly,
    /// The release of its group, by this handle or a sibling, releases it.
    WithGroup(PendingOutcome),
    /// The write that releases the lease completes a tick.
    Complete(Arc<Completion>),
    /// The write that releases the lease stores a value.
    ReleaseWithValue(Box<ValueWrite>),
    /// The lease is released although its minimum hold is not over: no work has run under it.
    TakeBack,
}

/// The outcome of a batch, for each of its leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchOutcome {
    Released,
    /// The store did not confirm the release of all leases: each is released alone.
    Unconfirmed,
    /// There was no command, or no time for it: each lease is released alone, if there is time for that.
    Unsent,
}

/// It comes later. Those that wait for it wake in the order in which they wait, because drawn programs must repeat.
pub(crate) type PendingOutcome = Arc<SetOnce<BatchOutcome>>;

/// The completion of a tick.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) tick: u64,
    /// How long the store keeps it, or for its retention if that is longer.
    pub(crate) keep: Duration,
    pub(crate) report: RunReport,
}

/// A write of the value.
#[derive(Clone, Debug)]
pub(crate) struct ValueWrite {
    /// `None`: clears the value.
    pub(crate) content: Option<Json>,
    /// How long the store keeps it, or for its retention if that is longer.
    pub(crate) keep: Duration,
    /// Whether the write releases the lease.
    pub(crate) releases: bool,
}

/// What was done at the store when the lease had ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// The lease was left to its ttl.
    Orphaned,
    Released(ReleaseOutcome),
    /// The tick was completed and the lease released.
    Completed,
    /// The value was stored and the lease released.
    ReleasedWithValue,
    Transferred(FencingToken),
}

impl End {
    /// What became of the lease of this process.
    pub(crate) fn outcome(&self) -> ReleaseOutcome {
        match self {
            Self::Orphaned | Self::Completed | Self::ReleasedWithValue => ReleaseOutcome::Released,
            Self::Released(outcome) => outcome.clone(),
            Self::Transferred(_) => ReleaseOutcome::AlreadyTransferred,
        }
    }

    /// The word for it in the field `outcome` of a span.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Orphaned => "orphaned",
            Self::Released(ReleaseOutcome::Released) | Self::Completed | Self::ReleasedWithValue => "released",
            Self::Released(ReleaseOutcome::Unknown) => "unknown",
            Self::Released(ReleaseOutcome::AlreadyLost { .. }) => "already_lost",
            Self::Released(ReleaseOutcome::AlreadyTransferred) => "already_transferred",
            Self::Transferred(_) => "transferred",
        }
    }
}

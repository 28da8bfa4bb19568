//! The outcomes of requests, and the part of a record from which they are read.

use crate::{
    record::{Acquire, CompletedTick, Holder, Request, StoreTime, StoredValue, Waiter},
    types::{error::Error, lease_id::LeaseId, token::FencingToken},
};

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The lease holds the key. The answer comes from a write that changed the record.
    Granted {
        /// The lease's fencing token.
        token: FencingToken,
        /// When the maximum hold of the lease ends, with the grace. `None`: it has no maximum.
        not_after: Option<StoreTime>,
        /// The value of the key.
        value: Option<Box<StoredValue>>,
    },
    /// The lease waits. The answer comes from a write that changed the record.
    Queued {
        /// How many waiters are before it.
        position: usize,
        /// The highest token of the key so far. The token of the lease will be larger.
        version: FencingToken,
        /// The holder that expires first.
        holder: Box<Holder>,
    },
    /// The key is held, and the queue is full. A hint: nothing was written.
    Full {
        /// How many wait.
        length: usize,
    },
    /// The key is held, and the request does not wait. A hint: nothing was written. This is also the outcome if the
    /// lease id of an acquire holds the key under another acquire id, if the receiver of a transfer holds the key already,
    /// and if the holder of a downgrade shares the key with another limit.
    Refused {
        /// The holder that expires last.
        holder: Box<Holder>,
    },
    /// The lease was refreshed. The answer comes from a write that changed the record.
    Refreshed {
        /// The lease's fencing token.
        token: FencingToken,
    },
    /// The lease was released, or its place in the queue was left.
    Released,
    /// The other lease id holds the key. The answer comes from a write that changed the record.
    Transferred {
        /// Its fencing token.
        token: FencingToken,
    },
    /// The holder shares the key, up to the limit of the request. The write that says so changed the record.
    Downgraded,
    /// The lease neither holds the key nor waits for it. A hint: nothing was written.
    Absent,
    /// The key was taken from these holders.
    Revoked {
        /// The holders. Empty if the key was not held.
        holders: Vec<Holder>,
    },
    /// The version of the record is at least the token of the request.
    Raised {
        /// The version. A lease that is granted later has a larger token.
        version: FencingToken,
    },
    /// The lease has completed a tick. If this answer comes from a write that changed nothing, it is a hint.
    Completed,
    /// The value of the key is that of the write. If this answer comes from a write that changed nothing, it is a hint.
    ValuePut,
    /// Another write under this token came before. The answer comes from a write that changed the record.
    ValueOutdated {
        /// The id of the last write under this token. 0: there is none.
        write: u64,
    },
    /// The last completed tick is no later than that of the request, or a later lease has completed it since.
    Reset {
        /// The last completed tick, if there is one.
        done: Option<CompletedTick>,
    },
    /// The expired entries were removed.
    Pruned {
        /// The holders that were removed. If empty, a hint: nothing may have been written.
        holders: Vec<Holder>,
    },
}

impl Outcome {
    /// Whether a caller can act on it. If a failure can undo what a store has read, the store confirms such an outcome by a
    /// write. The others are hints, and of a [`Pruned`](Self::Pruned) without holders nothing follows.
    #[must_use]
    pub fn is_believed(&self) -> bool {
        match self {
            Self::Full { .. } | Self::Refused { .. } => false,
            Self::Pruned { holders } => !holders.is_empty(),
            _ => true,
        }
    }

    /// Whether the answer proves the outcome, because a write that changed the record says so. `changed`: whether the record
    /// changed. An answer from which nothing follows needs no proof.
    pub(crate) fn is_proven(&self, changed: bool) -> bool {
        match self {
            // It says that the lease has ended, but not how.
            Self::Absent => false,
            Self::Completed | Self::ValuePut | Self::Reset { .. } => changed,
            // If there are none, it does not say whether an earlier send has revoked them.
            Self::Revoked { holders } => !holders.is_empty(),
            Self::Granted { .. }
            | Self::Queued { .. }
            | Self::Refreshed { .. }
            | Self::Released
            | Self::Transferred { .. }
            | Self::Downgraded
            | Self::Raised { .. }
            | Self::ValueOutdated { .. }
            // Of these, nothing follows.
            | Self::Full { .. }
            | Self::Refused { .. }
            | Self::Pruned { .. } => true,
        }
    }

    /// The error of an answer that does not fit the request, such as `a release`.
    pub(crate) fn unexpected(&self, request: &str) -> Error {
        Error::invalid(format!("the store answered {request} with {self:?}: report this bug of the store"))
    }
}

/// The state of a record from which the outcome of a request is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnDocument {
    /// The state before the request.
    Before,
    /// The state after it.
    After,
}

/// The part of a record from which the outcome of a request is read. It has no list of waiters, which can be long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSummary {
    /// The highest fencing token ever issued for the key, or the token that it was raised to.
    pub version: FencingToken,
    /// The holders, in the order of their grants.
    pub holders: Vec<Holder>,
    /// How many waiters are before the lease of the request, if it waits. For a leave, before the waiter of its acquire.
    pub position: Option<usize>,
    /// How many wait.
    pub waiting: usize,
    /// The last completed tick. A store may leave it out of the answer to other requests than a completion or a reset.
    pub done: Option<CompletedTick>,
    /// The value of the key. A store may leave it out of the answer to a request that neither grants the key nor puts a
    /// value, and its content out of the answer to the latter.
    pub value: Option<StoredValue>,
}

impl RecordSummary {
    /// The summary for a request of a record with these fields.
    pub(in crate::record) fn of(
        request: &Request,
        version: FencingToken,
        holders: &[Holder],
        queue: &[Waiter],
        (done, value): (Option<&CompletedTick>, Option<&StoredValue>),
    ) -> Self {
        let ids = match request {
            Request::Leave(leave) => Some((leave.lease, leave.acquire_id)),
            Request::Acquire(Acquire { terms, .. }) => Some((terms.lease, terms.acquire_id)),
            _ => None,
        };
        let position =
            ids.and_then(|(lease, acquire_id)| queue.iter().position(|waiter| waiter.terms.is_of(lease, acquire_id)));
        Self {
            version,
            holders: holders.to_vec(),
            position,
            waiting: queue.len(),
            done: done.cloned(),
            value: value.cloned(),
        }
    }

    pub(super) fn holder(&self, lease: LeaseId) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.terms.lease == lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_revoked_nobody_does_not_prove_that_an_earlier_send_did_not() {
        let nobody = Outcome::Revoked { holders: Vec::new() };
        assert!(!nobody.is_proven(true) && !nobody.is_proven(false));
        assert!(Outcome::Completed.is_proven(true) && !Outcome::Completed.is_proven(false));
    }
}

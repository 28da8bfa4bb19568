//! What an answer of the store proves.
//!
//! Purpose: an answer that wrote nothing can come from a stale copy, such as a deposed primary. So it proves nothing. Refusals are
//! passed on all the same, because nothing follows from them.
//!
//! Mechanism: [`ProvenStore`] is the store as the engine and the verbs have it. If the answer to a request proves nothing, a
//! linearizable read follows, and the caller decides by the record that it shows. From the answer to a prune nothing follows, so
//! it needs no proof.
//!
//! Invariant: no loss, and no end of a lease, is reported without a write that changed the record or a linearizable read.

use std::{ops::Deref, sync::Arc};

use crate::{
    engine::lease_inner::LeaseInner,
    record::{Outcome, Record, Request, StoreTime},
    store::{
        Store,
        answers::{Applied, Snapshot},
    },
    types::{
        deadline::Deadline,
        error::{Error, LossCause, Result},
        key::Key,
        lease_id::LeaseId,
        token::FencingToken,
    },
};

/// What an answer proves.
#[derive(Debug)]
pub(crate) enum Proof {
    /// Its outcome.
    Answer(Applied),
    /// Nothing. This is what a linearizable read shows.
    Record(Option<Snapshot>),
}

impl Proof {
    /// The answer to a request that does not need a lease, such as `an acquire`.
    pub(crate) fn answer(self, request: &str) -> Result<Applied> {
        match self {
            Self::Answer(answer) => Ok(answer),
            Self::Record(_) => Err(Outcome::Absent.unexpected(request)),
        }
    }
}

/// The store of a handle. Its [`apply`](Self::apply) is this one, and not that of the [`Store`]. The other answers of a store
/// are proven as they are: a batch that was applied to all, and what a read shows.
#[derive(Clone, Debug)]
pub(crate) struct ProvenStore(Arc<dyn Store>);

impl Deref for ProvenStore {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl ProvenStore {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }

    /// Sends a request, and returns what its answer proves.
    pub(crate) fn apply<'a>(
        &'a self,
        key: &'a Key,
        request: Request,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Proof>> + 'a {
        let (is_leave, is_prune) = (matches!(request, Request::Leave(_)), matches!(request, Request::Prune));
        let answer = self.0.apply(key, request, deadline);
        async move {
            let answer = answer.await?;
            if is_prune || answer.outcome.is_proven(answer.changed) {
                return Ok(Proof::Answer(answer));
            }
            // After an outage there may be many leaves, and no holder waits for one.
            let read = if is_leave { self.0.read(key, deadline) } else { self.0.read_held(key, deadline) };
            Ok(Proof::Record(read.await?))
        }
    }
}

/// Why the lease is lost, if a read shows that it is: then the answer that it is absent was right. Otherwise that was stale.
pub(crate) fn loss_or_stale(lease: &LeaseInner, read: Option<&Snapshot>) -> Result<LossCause> {
    loss_of(lease, read).ok_or_else(stale_error)
}

/// What a read shows of a lease of this process: whether it is lost, and why. `None`: it is held.
pub(crate) fn loss_of(lease: &LeaseInner, read: Option<&Snapshot>) -> Option<LossCause> {
    let Some(Snapshot { record, at }) = read else { return Some(LossCause::Removed) };
    find_loss(record, at.now, (lease.id, lease.token), lease.is_exclusive())
}

/// Why a lease is lost, by the record of its key. `None`: it is held. `is_taken_by_newer`: a larger version of the key
/// means that another lease was granted the key instead.
pub(crate) fn find_loss(
    record: &Record,
    now: StoreTime,
    (id, token): (LeaseId, FencingToken),
    is_taken_by_newer: bool,
) -> Option<LossCause> {
    if record.live_holder(id, now).is_some_and(|holder| holder.version == token) {
        return None;
    }
    let revoked = record.history.iter().rev().find(|revoked| revoked.tokens.contains(&token));
    Some(match revoked {
        Some(revoked) => LossCause::Revoked { by: revoked.by.clone(), reason: revoked.reason.clone() },
        // If the key is shared, a larger token of another holder takes nothing from this lease.
        None if record.version > token && is_taken_by_newer => LossCause::TakenOver { token: record.version },
        None if record.version < token => LossCause::Removed,
        None => LossCause::Expired,
    })
}

pub(crate) fn stale_error() -> Error {
    Error::unavailable("the store answered from a stale copy: retry")
}

//! What an answer of the store proves.
//!
//! Purpose: an answer that wrote nothing can come from a stale copy, such as a deposed primary. So it proves nothing. Refusals are
//! passed on all the same, because nothing follows from them.
//!
//! Mechanism: [`confirmed`] sends a request. If its answer proves nothing, a linearizable read follows, and the caller decides by
//! the record that it shows.
//!
//! Invariant: no loss, and no end of a lease, is reported without a write that changed the record or a linearizable read.

use std::sync::Arc;

use crate::{
    engine::{context::Context, lease_inner::LeaseInner},
    record::{Record, Request, StoreTime},
    store::answers::{Applied, Snapshot},
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

/// Sends a request, and returns what its answer proves.
pub(crate) async fn confirmed(context: &Context, key: &Key, request: Request, deadline: Deadline) -> Result<Proof> {
    let is_leave = matches!(request, Request::Leave(_));
    let answer = context.store.apply(key, request, deadline).await?;
    if is_leave && !answer.outcome.is_proven(answer.changed) {
        // After an outage there may be many, and no holder waits for one.
        return Ok(Proof::Record(context.store.read(key, deadline).await?));
    }
    prove(context, key, answer, deadline).await
}

/// What an answer proves.
pub(crate) async fn prove(context: &Context, key: &Key, answer: Applied, deadline: Deadline) -> Result<Proof> {
    if answer.outcome.is_proven(answer.changed) {
        return Ok(Proof::Answer(answer));
    }
    Ok(Proof::Record(context.store.read_held(key, deadline).await?))
}

/// Why the lease is lost, if a read shows that it is: then the answer that it is absent was right. Otherwise that was stale.
pub(crate) fn loss_or_stale(lease: &LeaseInner, read: Option<&Snapshot>) -> Result<LossCause> {
    loss_of(lease, read).ok_or_else(stale_error)
}

/// Ends the lease if a read shows that it is lost, as a notification said. If the read fails, the next refresh finds the
/// loss.
pub(crate) async fn check_loss(context: Arc<Context>, lease: Arc<LeaseInner>) {
    let deadline = context.operation_deadline().or_at(lease.deadline());
    tokio::select! {
        biased;
        () = lease.ended.cancelled() => {}
        () = context.closing.cancelled() => {}
        read = context.store.read_held(&lease.key, deadline) => {
            if let Some(cause) = read.ok().and_then(|read| loss_of(&lease, read.as_ref())) {
                lease.lose(cause);
            }
        }
    }
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

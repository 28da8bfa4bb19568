//! The read that confirms a loss.
//!
//! An answer of the store that wrote nothing can be stale. So neither a loss nor a release that found nothing is
//! reported before a linearizable read has confirmed it.

use std::sync::Arc;

use crate::{
    engine::{context::Context, lease_inner::LeaseInner},
    record::{Record, StoreTime},
    store::answers::Snapshot,
    types::{
        deadline::Deadline,
        error::{Error, LossCause, Result},
        lease_id::LeaseId,
        token::FencingToken,
    },
};

/// Ends the lease if a read shows that it is lost, as a notification said. If the read fails, the next refresh finds the
/// loss.
pub(crate) async fn check_loss(context: Arc<Context>, lease: Arc<LeaseInner>) {
    let deadline = context.operation_deadline().or_at(lease.deadline());
    tokio::select! {
        biased;
        () = lease.ended.cancelled() => {}
        () = context.closing.cancelled() => {}
        read = confirm_loss(&context, &lease, deadline) => {
            if let Ok(Some(cause)) = read {
                lease.lose(cause);
            }
        }
    }
}

/// Reads whether the lease is lost, and why. `None`: it is held.
pub(crate) async fn confirm_loss(
    context: &Context,
    lease: &LeaseInner,
    deadline: Deadline,
) -> Result<Option<LossCause>> {
    Ok(loss_of(lease, context.store.read_held(&lease.key, deadline).await?.as_ref()))
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

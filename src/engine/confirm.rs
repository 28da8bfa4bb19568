//! The read that confirms a loss.
//!
//! An answer of the store that wrote nothing can be stale. So neither a loss nor a release that found nothing is
//! reported before a linearizable read has confirmed it.

use crate::{
    Deadline, Error, LossCause, Result,
    engine::{context::Context, lease_shared::LeaseShared},
    store::Snapshot,
};

/// Reads whether the lease is lost, and why. `None`: it is held.
pub(crate) async fn confirm_loss(
    context: &Context,
    lease: &LeaseShared,
    deadline: Deadline,
) -> Result<Option<LossCause>> {
    Ok(loss_of(lease, context.store.read(&lease.key, deadline).await?))
}

/// What the record shows of the lease: whether it is lost, and why. `None`: it is held.
pub(crate) fn loss_of(lease: &LeaseShared, read: Option<Snapshot>) -> Option<LossCause> {
    let Some(Snapshot { record, at }) = read else { return Some(LossCause::Removed) };
    if record.live_holder(lease.id, at.now).is_some_and(|holder| holder.version == lease.token) {
        return None;
    }
    let revoked = record.history.into_iter().rev().find(|revoked| revoked.tokens.contains(&lease.token));
    Some(match revoked {
        Some(revoked) => LossCause::Revoked { by: revoked.by, reason: revoked.reason },
        // If the key is shared, a larger token of another holder takes nothing from this lease.
        None if record.version > lease.token && lease.is_exclusive() => LossCause::TakenOver { token: record.version },
        None if record.version < lease.token => LossCause::Removed,
        None => LossCause::Expired,
    })
}

pub(crate) fn stale_error() -> Error {
    Error::unavailable("the store answered from a stale copy: retry")
}

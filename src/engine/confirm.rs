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
    let (record, at) = match context.store.read(&lease.key, deadline).await? {
        None => return Ok(Some(LossCause::Removed)),
        Some(Snapshot { record, at }) => (record, at),
    };
    if record.live_holder(lease.id, at.now).is_some_and(|holder| holder.version == lease.token) {
        return Ok(None);
    }
    let revoked = record.history.into_iter().rev().find(|revoked| revoked.tokens.contains(&lease.token));
    Ok(Some(match revoked {
        Some(revoked) => LossCause::Revoked { by: revoked.by, reason: revoked.reason },
        // If the key is shared, a larger token of another holder takes nothing from this lease.
        None if record.version > lease.token && lease.is_exclusive() => LossCause::TakenOver { token: record.version },
        None if record.version < lease.token => LossCause::Removed,
        None => LossCause::Expired,
    }))
}

pub(crate) fn stale_error() -> Error {
    Error::unavailable("the store answered from a stale copy: retry")
}

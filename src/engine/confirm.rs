//! The read that confirms a loss.

use crate::{
    Deadline, Error, LossCause, Result,
    engine::{context::Context, lease_shared::LeaseShared},
    store::Snapshot,
};

/// Reads whether the lease is gone, and why. An answer that wrote nothing may be stale, so nobody
/// is told of a loss, or of a release that found nothing, before this has said so too.
pub(crate) async fn confirm_loss(
    context: &Context,
    hold: &LeaseShared,
    deadline: Deadline,
) -> Result<Option<LossCause>> {
    let (record, at) = match context.store.read(&hold.key, deadline).await? {
        None => return Ok(Some(LossCause::Removed)),
        Some(Snapshot { record, at }) => (record, at),
    };
    if record.live_holder(hold.lease, at.now).is_some_and(|holder| holder.version == hold.token) {
        return Ok(None);
    }
    let revoked = record.history.into_iter().rev().find(|revoked| revoked.tokens.contains(&hold.token));
    Ok(Some(match revoked {
        Some(revoked) => LossCause::Revoked { by: revoked.by, reason: revoked.reason },
        // A larger token of one who shares the key takes nothing from this one.
        None if record.version > hold.token && hold.is_exclusive() => LossCause::TakenOver { token: record.version },
        None if record.version < hold.token => LossCause::Removed,
        None => LossCause::Expired,
    }))
}

pub(crate) fn stale() -> Error {
    Error::unavailable("the store answered from a stale copy: retry")
}

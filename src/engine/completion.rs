//! The completion of a tick, and the read that confirms it.
//!
//! Invariant: a tick counts as completed only if a write of this lease says so. An answer that wrote nothing can come from
//! a deposed primary, so a linearizable read follows it.

use std::{mem, time::Duration};

use tracing::debug;

use crate::{
    Error, LossCause, Result,
    engine::{
        confirm::{loss_of, stale_error},
        context::Context,
        lease_shared::LeaseShared,
        retry::{self, Limit},
    },
    record::{Complete, Outcome, Request},
    types::ttl,
};

/// Completes a tick and releases the lease, in one write. The lease may have expired, if the key was not granted since.
///
/// The store keeps the completed tick for `keep`, or for its retention if that is longer.
pub(crate) async fn complete(context: &Context, lease: &LeaseShared, tick: u64, keep: Duration) -> Result<()> {
    let keep = ttl::millis(keep.saturating_sub(context.store.retention()));
    let mut sent_before = false;
    let (until, limit) = (context.operation_deadline(), Limit::growing(context.settings.attempt));
    retry::until_definite(until, limit, |deadline| {
        let sent_before = mem::replace(&mut sent_before, true);
        async move {
            let by = context.settings.owner.as_str().to_owned();
            let request = Request::Complete(Complete { lease: lease.id, token: lease.token, tick, by, keep });
            let applied = context.store.apply(&lease.key, request, deadline).await?;
            match applied.outcome {
                Outcome::Completed if applied.changed => return Ok(Ok(())),
                Outcome::Completed | Outcome::Absent => {}
                outcome => {
                    return Err(Error::invalid(format!(
                        "the store answered a completion with {outcome:?}: report this bug of the store"
                    )));
                }
            }
            let read = context.store.read(&lease.key, deadline).await?;
            let done = read.as_ref().and_then(|read| read.record.done.as_ref());
            if done.is_some_and(|done| done.token == lease.token) {
                return Ok(Ok(()));
            }
            match loss_of(lease, read.as_ref()) {
                None => Err(stale_error()),
                // A later lease may have completed its own tick over that of this lease.
                Some(LossCause::TakenOver { token }) if sent_before => Ok(Err(Error::unavailable(format!(
                    "it is unknown whether the tick {tick} of {:?} was completed: no answer came before the key was granted again, with token {token}: inspect the key for its last completed tick",
                    lease.key
                )))),
                Some(cause) => Err(lease.lost_error(cause)),
            }
        }
    })
    .await??;
    debug!(key = %lease.key, token = %lease.token, tick, "completed");
    Ok(())
}

//! How a lease ends at the store: by a release, a completed tick, a take-back, its ttl or a transfer to another process.

use std::{slice, sync::Arc};

use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::{Granted, Lease};
use crate::{
    engine::{
        end_action::{Completion, End, EndAction},
        lease_inner::LeaseInner,
        lease_state::{LeaseState, ReleaseOutcome},
        release,
    },
    types::{
        error::{EndReason, Error, Result},
        lease_id::LeaseId,
        lock::lock,
        token::FencingToken,
    },
};

impl Lease {
    /// Stops refreshing the lease and leaves it to expire, instead of releasing it: for a process that ends and does
    /// not want another holder at once. This handle no longer holds it, and a later shutdown does not release it. A lease
    /// without expiry stays until it is revoked.
    ///
    /// Until the lease expires, a caller that knows its [`id`](Self::id) and its [`token`](Self::token) can take it up by
    /// [`Mongoseal::resume`](crate::Mongoseal::resume).
    ///
    /// This sends nothing and waits for nothing. A refresh in the background that is in flight may still be applied.
    pub fn orphan(self) {
        // A transfer whose future was dropped has set it before, and ends the lease.
        self.lease_inner().end_action.get_or_init(|| EndAction::Orphan);
    }

    /// Transfers the lease to another lease id, and returns its new, larger token. No other acquire can be granted the
    /// key in between.
    ///
    /// The receiver, in this or another process, takes the lease up by [`Mongoseal::resume`](crate::Mongoseal::resume) with
    /// the key, that id and the new token, within the ttl. `to` is a new [`LeaseId::random`]. This lease ends before the
    /// transfer is sent, and work under it is stopped. A later [`release`](Self::release) returns
    /// [`ReleaseOutcome::AlreadyTransferred`].
    ///
    /// # Caveats
    ///
    /// A fenced write that is in flight may still be applied with the old token. Within the work of [`run`](Self::run)
    /// or [`Acquire::with`](crate::action::Acquire::with) the transfer stops that work, and its result, the new token, is lost:
    /// transfer the lease after the work has ended.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`] or [`Error::Ended`]: the lease had ended before.
    /// - [`Error::Unavailable`]: the store did not confirm the transfer within the operation timeout. Either id may
    ///   hold the key, for a ttl at most, or without expiry until it is revoked.
    /// - [`Error::Corrupt`] or [`Error::Invalid`]: another program wrote over the record, a privilege was removed, or
    ///   the other id holds the key already. [`Error::Invalid`] also for the lease's own id: then nothing is sent, and
    ///   the lease lives on.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer. Once it was polled, the lease is transferred all the same.
    pub async fn transfer(&self, to: LeaseId) -> Result<FencingToken> {
        self.lease_inner().check()?;
        to.ensure_some()?;
        if to == self.lease_inner().id {
            return Err(Error::invalid(
                "a lease cannot be transferred to its own id, and it is still held: pass another id",
            ));
        }
        let transferred = LeaseState::Ended { reason: EndReason::Transferred };
        if !self.lease_inner().end_with(EndAction::Transfer(to), &transferred) {
            return Err(self.lease_inner().end_error());
        }
        match self.wait_for_end().await? {
            End::Transferred(token) => Ok(token),
            end => Err(end_error(self.lease_inner(), end.outcome())),
        }
    }

    /// Releases the lease, and returns whether it was held until then: see [`release`](Self::release).
    pub(crate) async fn end_by_release(&self) -> Result<ReleaseOutcome> {
        // The span of a release that another call has begun, as for a set, is not below this one.
        if !self.lease_inner().recorded_state().is_over() {
            *lock(&self.lease_inner().caller) = Some(Box::new(Span::current()));
        }
        self.lease_inner().end(&LeaseState::RELEASED);
        let end = self.wait_for_end().await;
        // If the lease was lost, its task has ended before and taken nothing.
        drop(lock(&self.lease_inner().caller).take());
        Ok(end?.outcome())
    }

    /// Completes a tick and releases the lease, in one write. The lease may have expired, if the key was not granted since.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer. If the lease is held, it is completed all the same.
    pub(crate) async fn complete(&self, completion: Completion) -> Result<()> {
        let completion = Arc::new(completion);
        self.lease_inner().end_with(EndAction::Complete(Arc::clone(&completion)), &LeaseState::RELEASED);
        match self.wait_for_end().await? {
            End::Completed => Ok(()),
            // The lease was lost before. Its task has sent nothing, or a shutdown has released it.
            _ => release::complete(self.context(), self.lease_inner(), &completion).await,
        }
    }
}

impl Granted for Lease {
    fn leases(&self) -> &[Lease] {
        slice::from_ref(self)
    }

    fn ended(&self) -> &CancellationToken {
        &self.lease_inner().ended
    }

    async fn release_after_work(&self) -> Result<()> {
        match self.end_by_release().await {
            // After an error the ttl ends the lease, and the release has recorded the error.
            Ok(ReleaseOutcome::Released | ReleaseOutcome::Unknown) | Err(_) => Ok(()),
            Ok(outcome) => Err(end_error(self.lease_inner(), outcome)),
        }
    }
}

/// The error of a lease whose end at the store was not that of the caller.
pub(crate) fn end_error(lease: &LeaseInner, outcome: ReleaseOutcome) -> Error {
    match outcome {
        ReleaseOutcome::AlreadyLost { cause } => lease.lost_error(cause),
        _ => lease.end_error(),
    }
}

//! How a lease ends at the store: by a release, a completed tick, a take-back, its ttl or a transfer to another process.

use std::sync::Arc;

use super::Lease;
use crate::{
    engine::{
        end_action::{CallerSpan, Completion, End, EndAction},
        lease_state::{LeaseState, ReleaseOutcome},
        release,
    },
    types::{
        error::{EndReason, Error, Result},
        lease_id::LeaseId,
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
        self.leave_to_expire();
    }

    /// Makes the drop of the lease leave it to expire.
    pub(crate) fn leave_to_expire(&self) {
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
            End::Released(ReleaseOutcome::AlreadyLost { cause }) => Err(self.lease_inner().lost_error(cause)),
            End::Released(_) | End::ReleasedWithValue | End::Completed | End::Orphaned => {
                Err(self.lease_inner().end_error())
            }
        }
    }

    /// Releases the lease, and returns whether it was held until then: see [`release`](Self::release).
    pub(crate) async fn end_by_release(&self) -> Result<ReleaseOutcome> {
        self.lease_inner().end_with(EndAction::Release(CallerSpan::current()), &LeaseState::RELEASED);
        let end = self.wait_for_end().await;
        // If the lease was lost, its task has ended before and taken nothing.
        drop(self.lease_inner().end_action.get().and_then(EndAction::take_caller_span));
        Ok(end?.outcome())
    }

    /// Releases the lease after its work has ended. Returns an error if the lease was lost before.
    pub(crate) async fn end_work(&self) -> Result<()> {
        match self.end_by_release().await {
            Ok(outcome) => self.ensure_held_to_release(outcome),
            // The ttl ends the lease, and the release has recorded the error.
            Err(_recorded) => Ok(()),
        }
    }

    /// Returns an error if this outcome of its release shows that the lease was not held until then.
    pub(crate) fn ensure_held_to_release(&self, outcome: ReleaseOutcome) -> Result<()> {
        match outcome {
            ReleaseOutcome::AlreadyLost { cause } => Err(self.lease_inner().lost_error(cause)),
            ReleaseOutcome::AlreadyTransferred => Err(self.lease_inner().end_error()),
            ReleaseOutcome::Released | ReleaseOutcome::Unknown => Ok(()),
        }
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

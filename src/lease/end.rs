//! How a lease ends at the store: by a release, a completed tick or a take-back.

use std::time::Duration;

use crate::{
    Lease, ReleaseOutcome, Result,
    engine::{
        completion,
        end_action::{CallerSpan, End, EndAction},
    },
};

impl Lease {
    /// Releases the lease, and returns whether it was held until then: see [`release`](Self::release).
    pub(crate) async fn end_by_release(&self) -> Result<ReleaseOutcome> {
        self.held.end_with(EndAction::Release(CallerSpan::current()));
        let end = self.held.wait_for_end().await;
        // If the lease was lost, its task has ended before and taken nothing.
        drop(self.lease_shared().end_action.get().and_then(EndAction::take_caller_span));
        Ok(end?.outcome())
    }

    /// Releases the lease after its work has ended. Returns an error if the lease was lost before.
    pub(crate) async fn end_work(&self) -> Result<()> {
        match self.end_by_release().await {
            Ok(ReleaseOutcome::AlreadyLost { cause }) => Err(self.lease_shared().lost_error(cause)),
            Ok(ReleaseOutcome::Released | ReleaseOutcome::Unknown) => Ok(()),
            // The ttl ends the lease, and the release has recorded the error.
            Err(_recorded) => Ok(()),
        }
    }

    /// Completes a tick and releases the lease, in one write. The lease may have expired, if the key was not granted since.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer. If the lease is held, it is completed all the same.
    pub(crate) async fn complete(&self, tick: u64, keep: Duration) -> Result<()> {
        self.held.end_with(EndAction::Complete(tick, keep));
        match self.held.wait_for_end().await? {
            End::Completed => Ok(()),
            // The lease was lost before. Its task has sent nothing, or a shutdown has released it.
            _ => completion::complete(self.context(), self.lease_shared(), tick, keep).await,
        }
    }

    /// Releases the lease although its minimum hold is not over, because no work has run under it.
    pub(crate) async fn take_back(self) {
        self.begin_take_back();
        // If this fails, the ttl ends the lease, and a warning says so.
        drop(self.held.wait_for_end().await);
    }

    /// Takes the lease back in the background.
    pub(crate) fn begin_take_back(&self) {
        self.held.end_with(EndAction::TakeBack);
    }
}

//! A lease that ends here, and goes on for another process.

use super::Lease;
use crate::{
    Error, FencingToken, LeaseId, LossCause, Result,
    engine::end_action::{End, EndAction, ReleaseOutcome},
};

impl Lease {
    /// Stops refreshing, and leaves the lease to lapse at its ttl instead of releasing it: for a process
    /// that goes and does not want another one to begin at once. Who knows its [`id`](Self::id) can take
    /// it up until then, with [`Acquire::lease_id`](crate::Acquire::lease_id) of another handle. This one
    /// holds it no more. A lease without expiry stays until it is revoked.
    pub fn orphan(self) {
        // A transfer that was dropped half-way has set it before, and ends the lease.
        self.hold().end_action.get_or_init(|| EndAction::Orphan);
    }

    /// Transfers the lease to another lease id, and returns the larger token that it has from then on. No other acquire
    /// can be granted the key in between.
    ///
    /// The receiver, in this or another process, acquires the key with that id, by
    /// [`Acquire::lease_id`](crate::Acquire::lease_id), within the ttl, before or after the transfer. This lease is
    /// lost before the transfer is sent, and work under it is stopped. A later [`release`](Self::release) returns
    /// [`ReleaseOutcome::AlreadyLost`].
    ///
    /// # Caveats
    ///
    /// A fenced write that is under way may still be made with the old token. Within the work of [`run`](Self::run) or
    /// [`Acquire::with`](crate::Acquire::with) the transfer stops that work, and its answer, the new token, is lost with it:
    /// transfer the lease when the work has ended.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease had ended before. [`Error::Unavailable`] if the store did not
    /// confirm the transfer within the operation timeout: then either id may hold the key, for a ttl at most, or
    /// without expiry until it is revoked.
    /// [`Error::Corrupt`] or [`Error::Invalid`] if another program wrote over the record, a privilege was taken
    /// away, or the other id holds the key already. [`Error::Invalid`] for the lease's own id: then nothing
    /// is sent, and the lease lives on.
    ///
    /// # Cancel safety
    ///
    /// Dropping it abandons the answer. Once polled, the lease is given away all the same.
    pub async fn transfer(&self, to: LeaseId) -> Result<FencingToken> {
        self.hold().check()?;
        if to == self.hold().lease {
            return Err(Error::invalid(
                "a lease cannot be transferred to its own id, and this one lives on: pass another id",
            ));
        }
        self.held.transfer(to);
        match self.held.ended().await? {
            End::Transferred(token) => Ok(token),
            End::Released(ReleaseOutcome::AlreadyLost { cause }) => Err(self.hold().lost(cause)),
            End::Released(_) => Err(self.hold().lost(LossCause::Expired)),
        }
    }
}

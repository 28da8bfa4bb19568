//! The verb `upgrade`: a sharing holder that is alone becomes an exclusive one.

use crate::{
    engine::{
        end_action::EndAction,
        lease_state::LeaseState,
        refresh::Refreshing,
        resume::{self, ResumeSpec},
    },
    lease::Lease,
    record::{Outcome, Request, Transfer},
    store::answers::Applied,
    types::{
        error::{EndReason, Error, Result},
        lease_id::LeaseId,
    },
};

impl Lease {
    /// Makes a lease that shares its key exclude others, if no other lease holds the key. Returns the exclusive lease, which
    /// has a new [`id`](Self::id) and the next token. This lease ends, as by a [`transfer`](Self::transfer). No other acquire
    /// is granted the key in between, and waiters keep their places.
    ///
    /// The token is a new one, because a sharer that has released the key may have had a larger token than this lease. So
    /// pass the new token with each write from then on.
    ///
    /// The exclusive lease has the ttl, the owner, the group, the metadata, the grace and the end of the maximum hold of
    /// this one. Its minimum hold begins again. It is refreshed in the background, at a third of its ttl, and does not
    /// [stall](crate::action::Acquire::stalled_after).
    ///
    /// # Caveats
    ///
    /// If two sharers want to upgrade, each is refused as long as the other holds the key: let one of them
    /// [`release`](Self::release) it.
    ///
    /// # Errors
    ///
    /// - [`Error::Held`]: another lease holds the key, too. This lease is held as before.
    /// - [`Error::Invalid`]: the lease excludes others already, and is held as before. Also if another program wrote over
    ///   the record, or a privilege was removed.
    /// - [`Error::Lost`] or [`Error::Ended`]: the lease is over. If the store has upgraded it and the reply was lost, no process
    ///   has the exclusive lease, and its ttl ends it, or a revocation if it has no expiry.
    /// - [`Error::Unavailable`]: the store did not confirm the refresh, the upgrade, or the refresh of the exclusive lease
    ///   within the operation timeout, which each of them has. If this lease is still held, retry. Otherwise it is as if
    ///   the lease were lost.
    /// - [`Error::Corrupt`]: the document is not a record.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer, as if it ended in [`Error::Unavailable`].
    ///
    /// # Examples
    ///
    /// ```
    /// use mongoseal::Mongoseal;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let reader = seal.acquire("index").shared().await?;
    /// // Reads the index, and finds that it must be rebuilt.
    /// let writer = reader.upgrade().await?;
    /// assert!(writer.token() > reader.token() && !reader.is_valid());
    /// assert!(seal.acquire("index").shared().await.is_err());
    /// # writer.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn upgrade(&self) -> Result<Self> {
        let lease = self.lease_inner();
        lease.check()?;
        if lease.is_exclusive() {
            return Err(Error::invalid(format!("the lease on {:?} excludes others already: go on with it", lease.key)));
        }
        // A refresh that comes after the upgrade does not find this lease. After this one, none is due for a while.
        self.refresh().await?;
        let to = LeaseId::random();
        let request = Transfer { lease: lease.id, token: lease.token, to };
        let Applied { outcome, at, .. } = self.send(Request::Upgrade(request)).await?;
        let token = match outcome {
            Outcome::Transferred { token } => token,
            Outcome::Refused { holder } => return Err(holder.held_error(&lease.key, at)),
            outcome => return Err(outcome.unexpected("an upgrade")),
        };
        // At the store, the upgrade has ended this lease.
        lease.end_with(EndAction::Orphan, &LeaseState::Ended { reason: EndReason::Transferred });
        let key = lease.key.clone();
        let spec = ResumeSpec { key, id: to, token, ttl: None, refreshing: Refreshing::AtAThird };
        resume::resume(&self.handle, spec).await
    }
}

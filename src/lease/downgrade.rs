//! The verb `downgrade`: an exclusive holder becomes a sharing one.

use crate::{
    lease::Lease,
    record::{Downgrade, Outcome, Request},
    types::{
        error::{Error, Result},
        sharing::Sharing,
    },
};

impl Lease {
    /// Lets other holders share the key: any number, or up to so many, this one included. Waiters that share the key are granted
    /// it in the same write, in the order of the queue, up to the first waiter that excludes others.
    ///
    /// The lease, its [`id`](Self::id) and its token stay. From the call on, treat the key as shared: the store may let a
    /// sharer in before this returns. The way back is an [`upgrade`](Self::upgrade), which is a new
    /// grant. A lease that shares the key keeps its limit: to downgrade it to the same limit changes nothing, and another limit is
    /// refused.
    ///
    /// # Caveats
    ///
    /// Tokens do not fence sharers against each other, and each later sharer has a larger one. Once a sharer has written a
    /// fenced document, the fence refuses the writes of this lease there. Make the fenced writes before the downgrade, or
    /// give each sharer documents of its own.
    ///
    /// A [`transaction`](Self::transaction) that began before the downgrade commits before it or starts over. Do not call
    /// this in its work: each attempt would make the transaction start over.
    ///
    /// # Errors
    ///
    /// As [`refresh`](Self::refresh). [`Error::Invalid`] for [`Sharing::Exclusive`] or fewer than 2 holders, or if the lease shares
    /// the key with another limit. If it is [`Error::Unavailable`], the key may be shared: retry with the same limit.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer. Once it was polled, the downgrade may still be applied.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongoseal::{Mongoseal, Sharing};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let writer = seal.acquire("index").await?;
    /// // Build the index alone, then let others read it.
    /// writer.downgrade(Sharing::Shared).await?;
    /// let reader = seal.acquire("index").shared().await?;
    /// assert!(writer.is_valid() && reader.token() > writer.token());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn downgrade(&self, to: Sharing) -> Result<()> {
        let (lease, context) = (self.lease_inner(), self.context());
        lease.check()?;
        if to.is_exclusive() {
            return Err(Error::invalid(
                "a lease cannot be downgraded to one holder, which is itself: pass `Sharing::Shared`, or `Sharing::UpTo` with 2 or more",
            ));
        }
        context.ensure_open()?;
        // The store may apply a request whose answer is lost.
        lease.share();
        // As it is stored, so that a repeated request is the same.
        let sharing = Sharing::from_limit(to.limit());
        let request = Downgrade { lease: lease.id, token: lease.token, sharing };
        match self.send(Request::Downgrade(request)).await?.outcome {
            Outcome::Downgraded => Ok(()),
            Outcome::Refused { holder } => Err(Error::invalid(format!(
                "the lease shares {:?} with up to {} holders already: release the key and acquire it with another limit",
                lease.key,
                holder.terms.sharing.limit()
            ))),
            outcome => Err(outcome.unexpected("a downgrade")),
        }
    }
}

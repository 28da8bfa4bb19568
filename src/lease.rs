//! A key held, and the right to act on it.

pub(crate) mod state_stream;
#[cfg(feature = "mongodb")]
pub(crate) mod transaction;
mod transfer;
pub(crate) mod watchdog;
pub(crate) mod work;

use std::{fmt, pin::pin, sync::Arc, time::Duration};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::{
    Deadline, Error, FencingToken, Key, LeaseId, LossCause, Metadata, Owner, Result, Ttl,
    engine::{
        command_queue::RefreshCommand,
        confirm::{confirm_loss, stale},
        context::Context,
        end_action::{End, ReleaseOutcome},
        held_lease::HeldLease,
        lease_shared::LeaseShared,
        lease_state::LeaseState,
        retry,
    },
    record::{Downgrade, Outcome, Request},
};

/// The largest limit of a lease that shares its key.
const MAX_SHARERS: u32 = i32::MAX.unsigned_abs();

/// A key held: the right to act on it until the lease ends, and the [`FencingToken`] to show.
///
/// A background task refreshes the lease. When the store cannot be reached the lease is
/// [`AtRisk`](LeaseState::AtRisk), and at its deadline, which is counted from before the last
/// confirmed request was sent, it is [`Lost`](LeaseState::Lost). Once lost it stays lost.
///
/// What this process believes is never proof: it may have been paused between looking and acting.
/// Pass [`token`](Self::token) to the storage being written and let it refuse smaller ones.
///
/// # Drop
///
/// Dropping a lease releases it in the background: the drop itself only tells the lease's task,
/// so it does not block, cannot fail and needs no runtime. A lease whose runtime has ended is left
/// to its ttl.
#[must_use = "dropping a lease releases it: bind it to a name, and `_` is none"]
pub struct Lease {
    held: HeldLease,
}

impl Lease {
    pub(crate) fn new(held: HeldLease) -> Self {
        Self { held }
    }

    /// The key that is held.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.hold().key
    }

    /// Who holds it, as others see it.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.context().settings.owner
    }

    /// The secret that stands for this lease, to take it up again after a restart with
    /// [`Acquire::lease_id`](crate::Acquire::lease_id).
    #[must_use]
    pub fn id(&self) -> LeaseId {
        self.hold().lease
    }

    /// The token to pass with every write: larger than that of every earlier holder of the key.
    /// It stays the same for as long as the lease lives.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.hold().token
    }

    /// Whether the lease has not ended as far as this process can know. Local and free; read from
    /// a clock that runs while the machine sleeps.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.hold().is_valid()
    }

    /// How long the lease lasts without a further refresh; zero once it has ended, and
    /// [`Duration::MAX`] without expiry. Local and free.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self.is_valid() {
            false => Duration::ZERO,
            true if self.hold().never_expires() => Duration::MAX,
            true => self.hold().remaining(),
        }
    }

    /// Where the lease stands now.
    #[must_use]
    pub fn state(&self) -> LeaseState {
        self.hold().state()
    }

    /// Follows where the lease stands. The stream outlives the lease and gives its end.
    pub fn watch_state(&self) -> state_stream::StateStream {
        state_stream::StateStream::new(self.hold())
    }

    /// A token that is cancelled when the lease ends, in whatever way: for code that takes one.
    /// Cancelling it does not end the lease.
    ///
    /// ```
    /// use mongoseal::{CancellationToken, Mongoseal};
    ///
    /// async fn export(stop: CancellationToken) -> u32 {
    ///     let mut pages = 0;
    ///     while pages < 3 && !stop.is_cancelled() {
    ///         pages += 1;
    ///     }
    ///     pages
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let lease = seal.acquire("reports/nightly").await?;
    /// assert_eq!(export(lease.cancellation_token()).await, 3);
    /// # lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.hold().ended.child_token()
    }

    /// Waits until the lease is lost, and says why.
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing.
    pub async fn cancelled(&self) -> LossCause {
        self.hold().ended.cancelled().await;
        self.hold().cause()
    }

    /// Does `work` while the lease holds: gives its value, or stops it when the lease is lost.
    ///
    /// The work is dropped before this returns. What it spawned is not: pass it a
    /// [`cancellation_token`](Self::cancellation_token). Work that blocks its thread is stopped
    /// only when it yields.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`], also when the work came to its end after the deadline: then part of it was
    /// done without the lease.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the work. The lease stays.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let lease = seal.acquire("reports/nightly").await?;
    /// let pages = lease.run(async { 6 * 7 }).await?;
    /// assert_eq!(pages, 42);
    /// # lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        // Before the work, so that it is dropped after it.
        let _at_work = self.hold().work();
        work::run_while_held(&self.hold().ended, || self.check(), pin!(work)).await
    }

    /// Asks the store, by a linearizable read, whether the lease holds at this moment.
    ///
    /// It may end the moment after. Only the token, checked by the storage being written, covers
    /// that.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] where it does not, and the lease is lost from then on.
    /// [`Error::Unavailable`] where nobody answered within the operation timeout;
    /// [`Error::Corrupt`] or [`Error::Invalid`] where somebody wrote over the record or took a
    /// privilege away: the lease lives on to its deadline.
    ///
    /// # Cancel safety
    ///
    /// Dropping it abandons the answer and changes nothing.
    pub async fn verify(&self) -> Result<()> {
        self.hold().check()?;
        let context = self.context();
        context.ensure_open()?;
        let until = context.operation_deadline();
        retry::until_definite(until, context.settings.attempt, |deadline| async move {
            match confirm_loss(context, self.hold(), deadline).await? {
                None => Ok(()),
                Some(cause) => {
                    self.hold().lose(cause);
                    Ok(())
                }
            }
        })
        .await?;
        self.hold().check()
    }

    /// Refreshes the lease now, as the background task does by itself.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] where the lease has ended: it is never created again.
    /// [`Error::Unavailable`] where nobody confirmed within the operation timeout;
    /// [`Error::Corrupt`] or [`Error::Invalid`] where somebody wrote over the record or took a
    /// privilege away: the lease lives on to its deadline.
    ///
    /// # Cancel safety
    ///
    /// Dropping it abandons the answer; the refresh may still be made.
    pub async fn refresh(&self) -> Result<()> {
        self.wish(None, None).await
    }

    /// Refreshes the lease with another ttl, which later refreshes keep to. The lease never ends
    /// sooner than it would have, and keeps its [`grace`](crate::Acquire::grace). Where this is not
    /// confirmed, the store may keep the key for the whole new ttl although the lease was lost.
    ///
    /// # Errors
    ///
    /// As [`refresh`](Self::refresh), and [`Error::Invalid`] for a ttl that an acquire would
    /// refuse or a lease without expiry.
    ///
    /// # Cancel safety
    ///
    /// As [`refresh`](Self::refresh).
    pub async fn extend(&self, ttl: Duration) -> Result<()> {
        if self.hold().never_expires() {
            return Err(Error::invalid("this lease has no expiry to extend: release it, or leave it as it is"));
        }
        let ttl = self.context().settings.check_ttl(ttl, Duration::from_millis(self.hold().grace))?;
        self.wish(Some(ttl), None).await
    }

    /// Says other words to those who look at this lease, in place of all it said before, and refreshes it by
    /// that.
    ///
    /// # Errors
    ///
    /// As [`refresh`](Self::refresh).
    ///
    /// # Cancel safety
    ///
    /// As [`refresh`](Self::refresh): the words may be said all the same, until the next refresh says again
    /// those that were confirmed.
    pub async fn update_metadata(&self, metadata: Metadata) -> Result<()> {
        self.wish(None, Some(metadata)).await
    }

    async fn wish(&self, ttl: Option<Ttl>, metadata: Option<Metadata>) -> Result<()> {
        self.hold().check()?;
        self.context().ensure_open()?;
        let (reply, done) = oneshot::channel();
        self.hold().commands.refresh(RefreshCommand { ttl, metadata, reply });
        tokio::select! {
            biased;
            answer = done => answer.unwrap_or_else(|_ended| Err(self.hold().lost(self.hold().cause()))),
            () = self.context().operation_deadline().passed() => Err(Error::unavailable(
                "the refresh was not confirmed within the operation timeout: check that the store can be reached and that the runtime of the lease runs, and retry while the lease is valid",
            )),
        }
    }

    /// Lets other holders share the key, up to this many, this one included; `u32::MAX` is any number. Waiters that share
    /// the key are granted it in the same write, in the order of the queue, up to the first waiter that excludes others.
    ///
    /// The lease, its [`id`](Self::id) and its token stay. From the call on, treat the key as shared: the store may let a
    /// sharer in before this returns. There is no way back: release the key and acquire it again. A lease that shares the
    /// key keeps its limit: to downgrade it to the same limit changes nothing, and another limit is refused.
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
    /// [`Acquire::lease_id`](crate::Acquire::lease_id) takes the lease up again only if that acquire shares the key, with at
    /// least this limit.
    ///
    /// # Errors
    ///
    /// As [`refresh`](Self::refresh), and [`Error::Invalid`] for fewer than 2 holders, or if the lease shares the key with
    /// another limit. If it is [`Error::Unavailable`], the key may be shared: retry with the same limit.
    ///
    /// # Cancel safety
    ///
    /// Dropping it abandons the answer. Once polled, the downgrade may still be made.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::Mongoseal;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// let writer = seal.acquire("index").await?;
    /// // Build the index alone, then let others read it.
    /// writer.downgrade(u32::MAX).await?;
    /// let reader = seal.acquire("index").shared().await?;
    /// assert!(writer.is_valid() && reader.token() > writer.token());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn downgrade(&self, holders: u32) -> Result<()> {
        let (hold, context) = (self.hold(), self.context());
        hold.check()?;
        if holders < 2 {
            return Err(Error::invalid(format!(
                "a lease cannot be downgraded to {holders} holders: this one counts, so pass 2 or more"
            )));
        }
        context.ensure_open()?;
        // The store may apply a request whose answer is lost.
        hold.share();
        let limit = holders.min(MAX_SHARERS);
        let request = Downgrade { lease: hold.lease, token: hold.token, limit };
        let attempt = |deadline| downgrade(context, hold, request, deadline);
        let downgraded = retry::until_definite(context.operation_deadline(), context.settings.attempt, attempt);
        work::run_while_held(&hold.ended, || hold.check(), pin!(downgraded)).await?
    }

    /// Gives the key back and says whether it was still ours.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where nobody confirmed within the operation timeout;
    /// [`Error::Corrupt`] or [`Error::Invalid`] where somebody wrote over the record or took a
    /// privilege away. The ttl ends the lease at the latest.
    ///
    /// # Cancel safety
    ///
    /// Dropping it abandons the answer. The release is made all the same.
    pub async fn release(self) -> Result<ReleaseOutcome> {
        self.held.end();
        match self.held.ended().await? {
            End::Released(released) => Ok(released),
            End::Transferred(_) => Ok(ReleaseOutcome::AlreadyLost { cause: LossCause::Transferred }),
        }
    }
}

impl Lease {
    /// What it knows together with its task.
    pub(crate) fn hold(&self) -> &Arc<LeaseShared> {
        self.held.hold()
    }

    fn context(&self) -> &Context {
        &self.held.shared.context
    }

    /// Cancels another token when the lease ends.
    pub(crate) fn ends_with(&self, other: &CancellationToken) {
        self.hold().ends_with(other);
    }

    /// Refuses a lease that has ended.
    pub(crate) fn check(&self) -> Result<()> {
        self.hold().check()
    }
}

/// Sends a downgrade once. A lease that is gone is lost by it.
async fn downgrade(context: &Context, hold: &LeaseShared, request: Downgrade, deadline: Deadline) -> Result<()> {
    match context.store.apply(&hold.key, Request::Downgrade(request), deadline).await?.outcome {
        Outcome::Downgraded => Ok(()),
        Outcome::Refused { holder } => Err(Error::invalid(format!(
            "the lease shares {:?} with up to {} holders already: release the key and acquire it with another limit",
            hold.key, holder.terms.limit
        ))),
        Outcome::Absent => {
            hold.lose(confirm_loss(context, hold, deadline).await?.ok_or_else(stale)?);
            Ok(())
        }
        outcome => Err(Error::invalid(format!(
            "the store answered a downgrade with {outcome:?}: report this bug of the store"
        ))),
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", self.key())
            .field("owner", self.owner())
            .field("id", &self.id())
            .field("token", &self.token())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

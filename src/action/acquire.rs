//! Asking for a key.

use std::time::Duration;

use super::acquire_options::AcquireOptions;
use crate::{
    Error, Group, IntoName, Key, Lease, LeaseId, Mongoseal, Result, Retry, engine::refresh::Refreshing,
    store::BoxFuture,
};

impl Mongoseal {
    /// Asks for a key. Nothing is sent until the returned builder is awaited.
    ///
    /// Takes anything that parses as a [`Key`]; one that does not is reported when the builder is
    /// awaited.
    pub fn acquire<K>(&self, key: K) -> Acquire
    where
        K: IntoName<Key>,
    {
        Acquire { key: key.into_name(), options: AcquireOptions::new(&self.shared) }
    }
}

/// Asks for a key: awaiting it gives the [`Lease`], or [`Error::Held`], at once, after a
/// [`wait`](Self::wait) in the key's queue, or after the attempts of a [`retry`](Self::retry).
///
/// Made by [`Mongoseal::acquire`](crate::Mongoseal::acquire). If a lease of the same key was released or dropped by the same
/// handle, the acquire first waits for that release.
///
/// # Errors
///
/// - [`Error::Held`]: somebody else holds the key, and held it until the wait was over.
/// - [`Error::QueueFull`]: too many wait for the key already.
/// - [`Error::RetriesExhausted`]: it was held at each attempt of its [`retry`](Self::retry) policy.
/// - [`Error::Unavailable`]: the store did not confirm the acquire within the operation timeout. For an acquire that was
///   queued, this timeout begins when its wait ends. If the request was
///   applied after all, it is taken back in the background, and at the latest its ttl ends it, or
///   twice its ttl if it waited.
/// - [`Error::Invalid`], [`Error::Corrupt`]: asking again gives the same.
///
/// # Cancel safety
///
/// Dropping it gives the key up: if the request was or is being granted or queued, it is taken back
/// in the background. Nothing stays held by nobody.
///
/// An acquire that was polled once and is polled no more, but not dropped either, goes on by itself: the key is granted,
/// refreshed and held until the acquire is dropped. That happens in a loop around `select!` that polls `&mut acquire` and
/// leaves the loop by another branch while `acquire` stays in scope. Drop the acquire there, or give `select!` the acquire
/// itself and not a reference to it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use mongoseal::{Error, Mongoseal};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let seal = Mongoseal::in_memory();
/// let lease = seal
///     .acquire("reports/nightly")
///     .ttl(Duration::from_secs(60))
///     .metadata("build", "1.4.2")
///     .await?;
///
/// match seal.acquire("reports/nightly").await {
///     Err(Error::Held { owner, token, .. }) => {
///         assert_eq!((&owner, token), (lease.owner(), lease.token()));
///     }
///     other => panic!("one at a time: {other:?}"),
/// }
/// # lease.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an acquire asks nothing until it is awaited"]
pub struct Acquire {
    key: Result<Key, Error>,
    options: AcquireOptions,
}

impl Acquire {
    /// Waits up to this long where the key is held: queued at the store, behind those who came
    /// before and ahead of those who come later, whatever process they are in. A release hands the
    /// key to the first of them. Zero is one attempt. Default: the handle's, which is one attempt
    /// unless it was set.
    ///
    /// The wait is counted on the clock of the machine and can be as long as that runs:
    /// `Duration::MAX` waits for ever. A waiter is told when it is its turn, by a change stream that
    /// all waiters of the handle share. Where there is none (the user lacks `changeStream`), it asks,
    /// with growing delays of up to 0.64 seconds, and when the present holder's time is over.
    ///
    /// Once it was queued, an outage of the store does not end the wait. A waiter keeps its place in the queue for its ttl
    /// after its last request; after a longer outage it is queued again, at the end.
    ///
    /// A waiter that dies falls out of the queue after its ttl, and one that dies when it was just
    /// handed the key costs the next one that ttl and the grace, and up to a third of the next one's own
    /// ttl where that was not yet the first in line when it last asked. A lease that was handed over begins with
    /// what is left of its ttl since the waiter last asked, two thirds at least where the store
    /// answers in time.
    pub fn wait(mut self, at_most: Duration) -> Self {
        self.options.wait = Some(at_most);
        self
    }

    /// Asks again as the policy says where the key is held, without a place in its queue. Default: the
    /// handle's, which is one attempt unless it was set. It contradicts a [`wait`](Self::wait) on the
    /// same acquire.
    pub fn retry(mut self, policy: Retry) -> Self {
        self.options.retry = Some(policy);
        self
    }

    /// How long the lease lasts without a refresh. Default: the handle's.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// Sets how much longer than the ttl the store keeps the key of a holder that is not heard of: see
    /// [`Builder::grace`](crate::Builder::grace) for why and what it costs. Default: the handle's, which is a
    /// tenth of the ttl, up to 500 milliseconds, unless it was set.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = Some(grace);
        self
    }

    /// The lease has no expiry: only its release or an operator's revocation ends it, and if this
    /// process dies with it, only the latter. It is still refreshed, at a third of the handle's ttl, so
    /// that others see when it was last heard of and its holder learns of a revocation.
    ///
    /// A lease that is taken up by its [`lease_id`](Self::lease_id) stays without expiry, whatever is
    /// asked then. An acquire that ends in [`Error::Unavailable`](crate::Error::Unavailable) is taken back;
    /// where the store stays away for longer than that takes, the key may be left held by nobody, until it
    /// is revoked. The record of such a key stays until an operator deletes it.
    pub fn without_expiry(mut self) -> Self {
        self.options.expires = false;
        self
    }

    /// Shares the key with all others who ask so, and excludes whoever wants it alone. Default:
    /// alone.
    ///
    /// Each holder has a token of its own, and the tokens of all grow together: a storage that refuses
    /// smaller ones refuses all sharers but the newest. Those who ask are served in order: neither
    /// readers nor writers starve.
    pub fn shared(mut self) -> Self {
        self.options.share();
        self
    }

    /// Shares the key with others as long as they are no more than so many, this one among them: a
    /// semaphore. Where holders differ in that number, the smallest counts. Zero is refused.
    pub fn shared_up_to(mut self, holders: u32) -> Self {
        self.options.share_up_to(holders);
        self
    }

    /// The lease belongs to this group, with whatever other leases do: see
    /// [`Mongoseal::release_group`](crate::Mongoseal::release_group). Default: none.
    pub fn group<G>(mut self, group: G) -> Self
    where
        G: IntoName<Group>,
    {
        self.options.group(group);
        self
    }

    /// Adds an entry to what others see of this lease. See [`Metadata`](crate::Metadata) for its bounds.
    pub fn metadata(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.options.metadata(name, text);
        self
    }

    /// Asks with this lease id instead of a new random one.
    ///
    /// Who asks with the id of a lease that still holds is given that lease, with its token: so a
    /// process that kept its id takes its own lease up again after a restart. The process before
    /// must have ended: two that use one id both believe they hold it. An id is spent once its
    /// lease was released or dropped, because a release that was delayed may still be under way.
    ///
    /// After [`Error::Held`] or [`Error::QueueFull`] the id can be used again. If the acquire before is still being taken
    /// back, the next one waits until that is over, for the operation timeout at most.
    ///
    /// An acquire with a chosen id that ends in [`Error::Unavailable`] is not taken back, so that it
    /// can be asked again; the ttl ends what it may have been granted.
    pub fn lease_id(mut self, id: LeaseId) -> Self {
        self.options.lease = Some(id);
        self
    }

    /// Refreshes this often, at most half the ttl, so that one failure is not the end. Default: a
    /// third of the ttl.
    pub fn refresh_every(mut self, interval: Duration) -> Self {
        self.options.refreshing = Refreshing::Every(interval);
        self
    }

    /// Does not refresh in the background: the lease ends with its ttl unless
    /// [`Lease::refresh`] is called.
    pub fn without_refresh(mut self) -> Self {
        self.options.refreshing = Refreshing::ByHand;
        self
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Lease>;
    type IntoFuture = BoxFuture<Result<Lease>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.options.check()?.acquire(self.key?).await })
    }
}

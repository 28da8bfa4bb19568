//! The verb `acquire`: one key.

use std::time::Duration;

use super::acquire_options::AcquireOptions;
use crate::{
    engine::{refresh::Refreshing, retry_policy::Retry, ungiven::Ungiven},
    handle::{Async, Mongoseal, awaitable, option_setters},
    lease::Lease,
    types::{error::Result, group::Group, into_name::IntoName, key::Key},
};

impl Mongoseal {
    /// Acquires a key. Nothing is sent until the returned builder is awaited.
    ///
    /// Accepts anything that parses as a [`Key`]. If it does not parse, awaiting the builder returns the error.
    pub fn acquire(&self, key: impl IntoName<Key>) -> Acquire {
        Acquire::new(self, key.into_name(), Async)
    }
}

/// Acquires a key. Awaiting it returns the [`Lease`] or [`Error::Held`](crate::Error::Held): at once, after a [`wait`](Self::wait) in the
/// key's queue, or after the attempts of a [`retry`](Self::retry).
///
/// [`Mongoseal::acquire`](crate::Mongoseal::acquire) makes it. Of several keys it is an [`AcquireAll`](crate::action::AcquireAll)
/// or an [`AcquireAny`](crate::action::AcquireAny), which have the same options. If the same handle or a sibling has just released or dropped a lease
/// of the key, the acquire first waits for that release.
///
/// # Errors
///
/// - [`Error::Held`](crate::Error::Held): another lease holds the key, and held it until the wait ended.
/// - [`Error::QueueFull`](crate::Error::QueueFull): too many waiters are queued for the key.
/// - [`Error::RetriesExhausted`](crate::Error::RetriesExhausted): the key was held at each attempt of the [`retry`](Self::retry) policy.
/// - [`Error::Unavailable`](crate::Error::Unavailable): the store did not confirm the acquire within the operation timeout. For a waiter that was
///   queued, this timeout begins when its wait ends. If the request was applied after all, it is taken back in the
///   background. At the latest its ttl ends it, or twice its ttl if it waited.
/// - [`Error::Invalid`](crate::Error::Invalid), [`Error::Corrupt`](crate::Error::Corrupt): a retry fails in the same way.
///
/// # Cancel safety
///
/// Dropping the future gives the key up: if the request was granted or queued, or is in flight, it is taken back in the
/// background. No key stays held without a holder.
///
/// If an acquire was polled once and is neither polled again nor dropped, it goes on by itself: the key is granted,
/// refreshed and held until the acquire is dropped. That happens if a loop around `select!` polls `&mut acquire`,
/// another branch leaves the loop, and `acquire` stays in scope. Drop the acquire there, or pass `select!` the acquire
/// itself instead of a reference.
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
///     other => panic!("a held key must be refused: {other:?}"),
/// }
/// # lease.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an acquire does nothing until it is awaited or run"]
pub struct Acquire<M = Async, K = Key> {
    pub(super) keys: Result<K>,
    pub(super) options: AcquireOptions,
    pub(crate) mode: M,
}

impl<M, K> Acquire<M, K> {
    pub(crate) fn new(seal: &Mongoseal, keys: Result<K>, mode: M) -> Self {
        Self { keys, options: AcquireOptions::new(&seal.handle), mode }
    }

    /// The same acquire to await, and its mode.
    #[cfg(feature = "blocking")]
    pub(crate) fn into_async(self) -> (Acquire<Async, K>, M) {
        let Self { keys, options, mode } = self;
        (Acquire { keys, options, mode: Async }, mode)
    }

    option_setters! {
        /// Waits up to this long if the key is held. The acquire is queued at the store, in order of arrival across all
        /// processes, and a release hands the key to the first waiter. Zero is one attempt. Default: the handle's wait,
        /// which is one attempt unless it was set. The program and the clients for other languages wait without a limit by
        /// default, because a script is started for its work: see [what waits](crate::guide::settings#what-waits).
        ///
        /// When the wait ends, the acquire gives up its place and sends a last attempt, behind the acquires that still
        /// wait.
        ///
        /// The wait is counted on the machine's clock, and `Duration::MAX` waits for ever. A change stream that all
        /// waiters of the handle share notifies a waiter when it is granted the key. If there is no change stream (the
        /// user lacks `changeStream`), the waiter polls with growing delays of up to 640 ms, and when the present
        /// holder's time is over.
        ///
        /// Once the waiter was queued, an outage of the store does not end the wait. A waiter keeps its place in the
        /// queue for its ttl after its last request. After a longer outage it is queued again, at the end.
        ///
        /// A waiter that dies leaves the queue after its ttl. If it dies when it has just been handed the key, the next
        /// waiter waits for that ttl and the grace, and for up to a third of its own ttl more if it was not yet first
        /// in line at its last request. A lease that was handed over begins with what is left of its ttl since the
        /// waiter's last request: at least two thirds, if the store answers in time.
        pub fn wait(at_most: Duration);

        /// Retries by this policy if the key is held, without a place in its queue. Default: the handle's policy, which
        /// is one attempt unless it was set. It contradicts a [`wait`](Self::wait) on the same acquire.
        pub fn retry(policy: Retry);

        /// Sets how long the lease lasts without a refresh. Default: the handle's ttl.
        pub fn ttl(ttl: Duration);

        /// Sets how much longer than the ttl the store keeps the key of a holder that stopped refreshing: see
        /// [`Builder::grace`](crate::Builder::grace) for the reason and the cost. Default: the handle's grace, which is
        /// a tenth of the ttl, up to 500 ms, unless it was set.
        pub fn grace(grace: Duration);

        /// Sets the minimum hold: if the lease is released sooner, the key stays unavailable for the rest of this time,
        /// counted from the grant on the store's clock. Default: none.
        ///
        /// A short job then does not run twice if two schedulers start it at slightly different times. It applies to a
        /// release, a drop and a shutdown. A lease that expires, is revoked, or is released with its
        /// [group](Self::group) frees the key at once. A transfer to another lease id is a new grant.
        ///
        /// For work that must run once for each tick of a schedule, see [`Mongoseal::once`].
        pub fn min_hold(time: Duration);

        /// Sets the maximum hold: no refresh extends the lease past this time, counted from the grant. Then the lease
        /// is lost with [`LossCause::HeldTooLong`](crate::LossCause::HeldTooLong). Default: none.
        ///
        /// A holder that hangs then does not keep the key for ever by its refreshes. The store keeps to the limit,
        /// whatever a client sends, and keeps the key for the [grace](Self::grace) after it. A lease that is
        /// [resumed](crate::Mongoseal::resume), or transferred to another lease id, keeps the end of its maximum hold.
        pub fn max_hold(time: Duration);

        /// Loses the lease with [`LossCause::Stalled`](crate::LossCause::Stalled) if its holder has not called
        /// [`Lease::progress`] for this long. Default: no limit.
        ///
        /// This process alone counts the time, from the grant on. The store keeps the key until the ttl is over,
        /// because work that has stalled may still write.
        pub fn stalled_after(time: Duration);
    }

    /// Makes the lease one without expiry: only its release or an operator's revocation ends it. If this process dies
    /// while it holds the lease, only the revocation does. The lease is still refreshed, at a third of the handle's
    /// ttl, so that other processes see when it was last refreshed and the holder learns of a revocation.
    ///
    /// An acquire that ends in [`Error::Unavailable`](crate::Error::Unavailable) is taken back. If the store stays
    /// unavailable for longer than that takes, the key may stay held without a holder until it is revoked. The record
    /// of such a key stays until an operator deletes it.
    pub fn without_expiry(mut self) -> Self {
        self.options.has_expiry = false;
        self
    }

    /// Shares the key with all other shared leases, and excludes an exclusive lease. Default: exclusive.
    ///
    /// Each holder has a token of its own, and the tokens of all holders grow together: a storage that refuses smaller
    /// tokens refuses all holders but the newest. Requests are served in order of arrival: neither readers nor writers
    /// starve.
    pub fn shared(mut self) -> Self {
        self.options.holders = u32::MAX;
        self
    }

    /// Shares the key among at most this many holders, this one included: a semaphore. If holders differ in the number,
    /// the smallest counts. Zero is refused.
    pub fn shared_up_to(mut self, holders: u32) -> Self {
        self.options.holders = holders;
        self
    }

    /// Adds the lease to this group: see [`Mongoseal::release_group`](crate::Mongoseal::release_group). Default: none.
    pub fn group(mut self, group: impl IntoName<Group>) -> Self {
        self.options.group = group.into_name().map(Some);
        self
    }

    /// Adds an entry to the metadata that other processes see. See [`Metadata`](crate::Metadata) for its bounds.
    pub fn metadata(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.options.metadata(name, text);
        self
    }

    /// Calls `report` when the acquire gets a place in the queue of its key, with the number of waiters ahead. It is called
    /// once, on the task of the acquire, and must return at once. Of several keys, it is called for each key that is queued.
    pub fn on_queued(mut self, report: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.options.on_queued(report);
        self
    }

    /// Sets the interval between refreshes: at most half the ttl, so that one failure does not end the lease. Default:
    /// a third of the ttl.
    pub fn refresh_every(mut self, interval: Duration) -> Self {
        self.options.refreshing = Refreshing::Every(interval);
        self
    }

    /// Turns refreshes in the background off: the lease ends with its ttl unless [`Lease::refresh`] is called.
    pub fn without_refresh(mut self) -> Self {
        self.options.refreshing = Refreshing::ByHand;
        self
    }
}

impl Acquire {
    pub(crate) async fn send(self) -> Result<Lease> {
        let Self { keys, options, mode: _mode } = self;
        options.check()?.acquire(keys?).await.map(Ungiven::give)
    }
}

awaitable!(Acquire => Lease);

//! The verbs that have options.
//!
//! Mechanism: each wraps the builder of the asynchronous verb and forwards the options. `run` waits for its future.

use std::time::Duration;

use super::{Leader, Lease, LeaseSet, StreamIter};
use crate::{
    CompletedTick, Error, FencingToken, Group, IntoName, Key, LeaseStream, Owner, Result, Retry, Revoked, StoreTime,
};

/// Defines the builder of a verb, which forwards each option to the builder of the same name in the asynchronous API. The
/// documentation of an option is its summary, and a link.
macro_rules! verb {
    (
        $(#[$attribute:meta])*
        $verb:ident {
            $($(#[$summary:meta])* $option:ident($($argument:ident: $kind:ty),*);)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Debug)]
        #[must_use = "nothing is sent until it is run"]
        pub struct $verb {
            pub(super) verb: crate::$verb,
            pub(super) executor: $crate::blocking::executor::Executor,
        }

        impl $verb {
            $(
                $(#[$summary])*
                #[doc = concat!("See [`mongoseal::", stringify!($verb), "::", stringify!($option), "`](crate::", stringify!($verb), "::", stringify!($option), ").")]
                pub fn $option(self, $($argument: $kind),*) -> Self {
                    Self { verb: self.verb.$option($($argument),*), executor: self.executor }
                }
            )*
        }
    };
}

pub(super) use verb;

verb! {
    /// Acquires a key: a [`mongoseal::Acquire`](crate::Acquire) that blocks. [`Mongoseal::acquire`](super::Mongoseal::acquire)
    /// makes it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use mongoseal::{Error, blocking::Mongoseal};
    ///
    /// let seal = Mongoseal::in_memory()?;
    /// let lease = seal.acquire("reports/nightly").ttl(Duration::from_secs(60)).metadata("build", "1.4.2").run()?;
    ///
    /// match seal.acquire("reports/nightly").run() {
    ///     Err(Error::Held { owner, token, .. }) => {
    ///         assert_eq!((&owner, token), (lease.owner(), lease.token()));
    ///     }
    ///     other => panic!("a held key must be refused: {other:?}"),
    /// }
    /// # lease.release()?;
    /// # Ok::<(), Error>(())
    /// ```
    Acquire {
        /// Waits in the queue of the key up to this long if it is held.
        wait(at_most: Duration);
        /// Retries by this policy if the key is held, without a place in its queue.
        retry(policy: Retry);
        /// Sets how long the lease lasts without a refresh.
        ttl(ttl: Duration);
        /// Sets how much longer than the ttl the store keeps the key.
        grace(grace: Duration);
        /// Makes the lease one without expiry.
        without_expiry();
        /// Sets the minimum hold.
        at_least(time: Duration);
        /// Sets the maximum hold.
        hold_at_most(time: Duration);
        /// Loses the lease if its holder has not called [`Lease::progress`] for this long.
        stalled_after(time: Duration);
        /// Shares the key with all other shared leases.
        shared();
        /// Shares the key among at most this many holders, this one included.
        shared_up_to(holders: u32);
        /// Adds the lease to this group.
        group(group: impl IntoName<Group>);
        /// Adds an entry to the metadata that other processes see.
        metadata(name: impl Into<String>, text: impl Into<String>);
        /// Sets the interval between refreshes.
        refresh_every(interval: Duration);
        /// Turns refreshes in the background off.
        without_refresh();
    }
}

impl Acquire {
    /// Acquires the key. Blocks until it is granted or refused.
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::Acquire`](crate::Acquire).
    pub fn run(self) -> Result<Lease> {
        let lease = self.executor.wait(self.verb.into_future())?;
        Ok(Lease::new(lease, self.executor))
    }

    /// Acquires the key, runs `work` that returns a `Result` on the calling thread, releases the key, and returns that
    /// `Result`: see [`with`](Self::with).
    ///
    /// # Errors
    ///
    /// Those of the work, and those of [`with`](Self::with).
    pub fn try_with<T, E>(self, work: impl FnOnce(&Lease) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error>,
    {
        self.with(work)?
    }

    /// Acquires the key, runs `work` on the calling thread, and releases the key. Returns the value of the work.
    ///
    /// The lease is released when the work has ended, also by a panic. If the lease is lost, the work is not stopped: see
    /// [`Lease::run`].
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::Acquire::with`](crate::Acquire::with).
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::blocking::Mongoseal;
    /// # let seal = Mongoseal::in_memory()?;
    /// let token = seal.acquire("reports/nightly").with(|lease| lease.token())?;
    /// assert!(seal.acquire("reports/nightly").run()?.token() > token);
    /// # Ok::<(), mongoseal::Error>(())
    /// ```
    pub fn with<T>(self, work: impl FnOnce(&Lease) -> T) -> Result<T> {
        let lease = self.run()?;
        let value = lease.run(|_view| work(&lease))?;
        lease.end_work()?;
        Ok(value)
    }
}

verb! {
    /// Acquires several keys, all or none: a [`mongoseal::AcquireAll`](crate::AcquireAll) that blocks.
    /// [`Mongoseal::acquire_all`](super::Mongoseal::acquire_all) makes it.
    AcquireAll {
        /// Waits up to this long for all keys together.
        wait(at_most: Duration);
        /// Retries by this policy, without places in the queues.
        retry(policy: Retry);
        /// Sets how long each lease lasts without a refresh.
        ttl(ttl: Duration);
        /// Sets how much longer than the ttl the store keeps each key.
        grace(grace: Duration);
        /// Holds the keys without expiry.
        without_expiry();
        /// Shares each key with all other shared leases.
        shared();
        /// Shares each key among at most this many holders, this one included.
        shared_up_to(holders: u32);
        /// Adds each lease to this group.
        group(group: impl IntoName<Group>);
        /// Adds an entry to the metadata that other processes see of each lease.
        metadata(name: impl Into<String>, text: impl Into<String>);
        /// Sets the minimum hold of each lease.
        at_least(time: Duration);
        /// Sets the maximum hold of each lease.
        hold_at_most(time: Duration);
        /// Loses each lease if its holder has reported no progress for this long.
        stalled_after(time: Duration);
        /// Sets the interval between refreshes of each lease.
        refresh_every(interval: Duration);
        /// Turns refreshes in the background off.
        without_refresh();
    }
}

impl AcquireAll {
    /// Acquires the keys. Blocks until all are granted or one is refused.
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::AcquireAll`](crate::AcquireAll).
    pub fn run(self) -> Result<LeaseSet> {
        let leases = self.executor.wait(self.verb.into_future())?;
        Ok(LeaseSet::new(leases, self.executor))
    }

    /// Acquires all keys, runs `work` that returns a `Result` on the calling thread, releases them, and returns that
    /// `Result`: see [`with`](Self::with).
    ///
    /// # Errors
    ///
    /// Those of the work, and those of [`with`](Self::with).
    pub fn try_with<T, E>(self, work: impl FnOnce(&LeaseSet) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error>,
    {
        self.with(work)?
    }

    /// Acquires all keys, runs `work` on the calling thread, and releases them. Returns the value of the work.
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::AcquireAll::with`](crate::AcquireAll::with).
    pub fn with<T>(self, work: impl FnOnce(&LeaseSet) -> T) -> Result<T> {
        let leases = self.run()?;
        let value = leases.run(|_view| work(&leases))?;
        leases.end_work()?;
        Ok(value)
    }
}

verb! {
    /// Takes up a lease that is still held: a [`mongoseal::Resume`](crate::Resume) that blocks.
    /// [`Mongoseal::resume`](super::Mongoseal::resume) makes it.
    Resume {
        /// Changes the ttl.
        ttl(ttl: Duration);
        /// Sets the interval between refreshes.
        refresh_every(interval: Duration);
        /// Turns refreshes in the background off.
        without_refresh();
    }
}

impl Resume {
    /// Takes the lease up.
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::Resume`](crate::Resume).
    pub fn run(self) -> Result<Lease> {
        let lease = self.executor.wait(self.verb.into_future())?;
        Ok(Lease::new(lease, self.executor))
    }
}

verb! {
    /// Campaigns for a leadership: a [`mongoseal::Campaign`](crate::Campaign) that blocks.
    /// [`Mongoseal::campaign`](super::Mongoseal::campaign) makes it.
    Campaign {
        /// Sets the value that other processes see while this candidate leads.
        value(value: impl Into<String>);
        /// Sets how long no other candidate can lead after this leader's last refresh.
        ttl(ttl: Duration);
        /// Sets how much earlier than that this leader loses its lease.
        stop_within(time: Duration);
        /// Sets the interval between refreshes.
        refresh_every(interval: Duration);
        /// Waits for the leadership for at most this long.
        wait(at_most: Duration);
    }
}

impl Campaign {
    /// Campaigns. Blocks until this candidate is elected, for ever unless a [`wait`](Self::wait) is set.
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::Campaign`](crate::Campaign).
    pub fn run(self) -> Result<Leader> {
        let leader = self.executor.wait(self.verb.into_future())?;
        Ok(Leader::new(Lease::new(leader.lease, self.executor)))
    }
}

verb! {
    /// Revokes the leases of a key: a [`mongoseal::Revoke`](crate::Revoke) that blocks.
    /// [`Mongoseal::revoke`](super::Mongoseal::revoke) makes it.
    Revoke {
        /// Sets the name of the operator, for people.
        by(name: impl Into<String>);
        /// Sets the reason, for people.
        reason(reason: impl Into<String>);
        /// Revokes only the lease with this token.
        token(token: FencingToken);
        /// Revokes only leases whose token is at most this.
        up_to(token: FencingToken);
    }
}

verb! {
    /// Lowers the last completed tick of a schedule: a [`mongoseal::ResetOnce`](crate::ResetOnce) that blocks.
    /// [`Mongoseal::reset_once`](super::Mongoseal::reset_once) makes it.
    ResetOnce {
        /// Sets the name of the operator, which the record keeps.
        by(operator: impl IntoName<Owner>);
    }
}

verb! {
    /// Lists leases: a [`mongoseal::Leases`](crate::Leases) that blocks. [`Mongoseal::leases`](super::Mongoseal::leases) makes
    /// it.
    Leases {
        /// Only leases of this key.
        key(key: impl IntoName<Key>);
        /// Only leases of keys that begin with this text.
        prefix(text: impl Into<String>);
        /// Only leases of this owner.
        owner(owner: impl IntoName<Owner>);
        /// Only leases of this group.
        group(group: impl IntoName<Group>);
        /// Only exclusive leases.
        exclusive();
        /// Only shared leases.
        shared();
        /// Only leases that were granted before this time on the store's clock.
        since_before(time: StoreTime);
        /// Only leases that were granted after this time on the store's clock.
        since_after(time: StoreTime);
        /// Only leases that last for less than this without a refresh.
        remaining_less_than(time: Duration);
        /// Only leases that last for at least this without a refresh.
        remaining_at_least(time: Duration);
        /// Includes expired leases that are still in their record.
        with_expired();
    }
}

/// Defines `run` of a verb that returns a value.
macro_rules! run {
    ($($(#[$summary:meta])* $verb:ident -> $value:ty;)*) => {
        $(
            impl $verb {
                $(#[$summary])*
                ///
                /// # Errors
                ///
                #[doc = concat!("Those of [`mongoseal::", stringify!($verb), "`](crate::", stringify!($verb), ").")]
                pub fn run(self) -> Result<$value> {
                    self.executor.wait(self.verb.into_future())
                }
            }
        )*
    };
}

run! {
    /// Revokes the leases, and returns them.
    Revoke -> Vec<Revoked>;
    /// Resets the schedule, and returns its last completed tick after that, if there is one.
    ResetOnce -> Option<CompletedTick>;
}

impl Leases {
    /// Lists the leases, in the order of their keys. Blocks until the first page is read, and at each later page.
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::Leases`](crate::Leases).
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::blocking::Mongoseal;
    /// # let seal = Mongoseal::in_memory()?;
    /// let nightly = seal.acquire("reports/nightly").run()?;
    /// for lease in seal.leases().prefix("reports/").run()? {
    ///     assert_eq!(lease?.holder.token, nightly.token());
    /// }
    /// # Ok::<(), mongoseal::Error>(())
    /// ```
    pub fn run(self) -> Result<StreamIter<LeaseStream>> {
        let leases = self.executor.wait(self.verb.into_future())?;
        Ok(StreamIter::new(leases, self.executor))
    }
}

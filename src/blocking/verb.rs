//! The verbs that have options.
//!
//! Mechanism: each is the builder of the asynchronous verb with another mode, so it has the same options. `run` waits for its
//! future.

use super::{Leader, Lease, LeaseSet, StreamIter, executor::Blocking};
use crate::{
    action::list::LeaseStream,
    handle::Async,
    record::{CompletedTick, HolderInfo},
    types::error::{Error, Result},
};

/// Acquires a key: a [`mongoseal::action::Acquire`](crate::action::Acquire) that blocks. [`Mongoseal::acquire`](super::Mongoseal::acquire)
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
pub type Acquire = crate::action::Acquire<Blocking>;

/// Acquires one key of several: a [`mongoseal::action::AcquireAny`](crate::action::AcquireAny) that blocks.
/// [`Mongoseal::acquire_any`](super::Mongoseal::acquire_any) makes it.
pub type AcquireAny = crate::action::AcquireAny<Blocking>;

/// Of one key, and of the first free one of several.
impl<K> crate::action::Acquire<Blocking, K>
where
    crate::action::Acquire<Async, K>: IntoFuture<Output = Result<crate::Lease>, IntoFuture: Send + 'static>,
{
    /// Acquires the key. Blocks until it is granted or refused.
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::action::Acquire`](crate::action::Acquire).
    pub fn run(self) -> Result<Lease> {
        let (acquire, executor) = self.into_async();
        executor.run(acquire.into_future(), Lease::new)
    }

    /// Acquires the key, runs `work` that returns a `Result` on the calling thread, releases the key, and returns that
    /// `Result`, as `with` does for other values.
    ///
    /// # Errors
    ///
    /// Those of the work, and those of `with`.
    pub fn try_with<T, E>(self, work: impl FnOnce(&Lease) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error>,
    {
        let lease = self.run()?;
        let done = lease.run(work)?;
        let released = lease.end_work();
        // An error of the work says more than that the lease was lost meanwhile.
        let value = done?;
        released?;
        Ok(value)
    }

    /// Acquires the key, runs `work` on the calling thread, and releases the key. Returns the value of the work.
    ///
    /// The lease is released when the work has ended, also by a panic. If the lease is lost, the work is not stopped: see
    /// [`Lease::run`].
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::action::Acquire::with`](crate::action::Acquire::with).
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
        self.try_with(|lease| Ok(work(lease)))
    }
}

/// Acquires several keys, all or none: a [`mongoseal::action::AcquireAll`](crate::action::AcquireAll) that blocks.
/// [`Mongoseal::acquire_all`](super::Mongoseal::acquire_all) makes it.
pub type AcquireAll = crate::action::AcquireAll<Blocking>;

impl AcquireAll {
    /// Acquires the keys. Blocks until all are granted or one is refused.
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::action::AcquireAll`](crate::action::AcquireAll).
    pub fn run(self) -> Result<LeaseSet> {
        self.mode.clone().run(self.send(), LeaseSet::new)
    }

    /// Acquires all keys, runs `work` that returns a `Result` on the calling thread, releases them, and returns that
    /// `Result`, as `with` does for other values.
    ///
    /// # Errors
    ///
    /// Those of the work, and those of `with`.
    pub fn try_with<T, E>(self, work: impl FnOnce(&LeaseSet) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error>,
    {
        let leases = self.run()?;
        let done = leases.run(work)?;
        let released = leases.end_work();
        let value = done?;
        released?;
        Ok(value)
    }

    /// Acquires all keys, runs `work` on the calling thread, and releases them. Returns the value of the work.
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::action::AcquireAll::with`](crate::action::AcquireAll::with).
    pub fn with<T>(self, work: impl FnOnce(&LeaseSet) -> T) -> Result<T> {
        self.try_with(|leases| Ok(work(leases)))
    }
}

/// Takes up a lease that is still held: a [`mongoseal::action::Resume`](crate::action::Resume) that blocks.
/// [`Mongoseal::resume`](super::Mongoseal::resume) makes it.
pub type Resume = crate::action::Resume<Blocking>;

impl Resume {
    /// Takes the lease up.
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::action::Resume`](crate::action::Resume).
    pub fn run(self) -> Result<Lease> {
        self.mode.clone().run(self.send(), Lease::new)
    }
}

/// Campaigns for a leadership: a [`mongoseal::election::Campaign`](crate::election::Campaign) that blocks.
/// [`Mongoseal::campaign`](super::Mongoseal::campaign) makes it.
pub type Campaign = crate::election::Campaign<Blocking>;

impl Campaign {
    /// Campaigns. Blocks until this candidate is elected, for ever unless a [`wait`](Self::wait) is set.
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::election::Campaign`](crate::election::Campaign).
    pub fn run(self) -> Result<Leader> {
        self.mode.clone().run(self.send(), |leader, executor| {
            let crate::election::Leader { lease, metadata } = leader;
            Leader { lease: Lease::new(lease, executor), metadata }
        })
    }
}

/// Revokes the leases of a key: a [`mongoseal::action::Revoke`](crate::action::Revoke) that blocks.
/// [`Mongoseal::revoke`](super::Mongoseal::revoke) makes it.
pub type Revoke = crate::action::Revoke<Blocking>;

/// Lowers the last completed tick of a schedule: a [`mongoseal::action::RewindTick`](crate::action::RewindTick) that blocks.
/// [`Mongoseal::rewind_tick`](super::Mongoseal::rewind_tick) makes it.
pub type RewindTick = crate::action::RewindTick<Blocking>;

/// Lists leases: a [`mongoseal::action::Leases`](crate::action::Leases) that blocks. [`Mongoseal::leases`](super::Mongoseal::leases) makes
/// it.
pub type Leases = crate::action::Leases<Blocking>;

impl Revoke {
    /// Revokes the leases, and returns them.
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::action::Revoke`](crate::action::Revoke).
    pub fn run(self) -> Result<Vec<HolderInfo>> {
        self.mode.clone().wait(self.send())
    }
}

impl RewindTick {
    /// Resets the schedule, and returns its last completed tick after that, if there is one.
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::action::RewindTick`](crate::action::RewindTick).
    pub fn run(self) -> Result<Option<CompletedTick>> {
        self.mode.clone().wait(self.send())
    }
}

impl Leases {
    /// Lists the leases, in the order of their keys. Blocks until the first page is read, and at each later page.
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::action::Leases`](crate::action::Leases).
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
        self.mode.clone().run(self.send(), StreamIter::new)
    }
}

/// Writes the value of a key: a [`mongoseal::action::PutValue`](crate::action::PutValue) that blocks. [`Lease::put_value`] makes it.
pub type PutValue = crate::action::PutValue<Blocking>;

impl PutValue {
    /// Writes the value.
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::action::PutValue`](crate::action::PutValue).
    pub fn run(self) -> Result<()> {
        self.mode.clone().wait(self.send())
    }
}

//! The verbs that have options.
//!
//! Mechanism: each is the builder of the asynchronous verb with another mode, so it has the same options. `run` waits for its
//! future.

use super::{
    executor::{Blocking, StreamIter},
    lease::{Held, Leader, Lease, TickLease},
};
use crate::{
    action::{
        list::LeaseStream,
        once::{BeginOutcome, OnceOutcome},
    },
    handle::Async,
    lease::Granted,
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

/// Acquires several keys, all or none: a [`mongoseal::action::AcquireAll`](crate::action::AcquireAll) that blocks.
/// [`Mongoseal::acquire_all`](super::Mongoseal::acquire_all) makes it.
pub type AcquireAll = crate::action::AcquireAll<Blocking>;

/// Of one key, of the first free one of several, and of all of several.
impl<K, L> crate::action::Acquire<Blocking, K>
where
    crate::action::Acquire<Async, K>: IntoFuture<Output = Result<L>, IntoFuture: Send>,
    L: Granted + Send,
{
    /// Acquires the key, or all keys. Blocks until they are granted or refused.
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::action::Acquire`](crate::action::Acquire).
    pub fn run(self) -> Result<Held<L>> {
        let (acquire, mode) = self.into_async();
        mode.run(acquire.into_future(), Held::new)
    }

    /// Acquires the key, runs `work` that returns a `Result` on the calling thread, releases the key, and returns that
    /// `Result`, as `with` does for other values.
    ///
    /// # Errors
    ///
    /// Those of the work, and those of `with`.
    pub fn try_with<T, E>(self, work: impl FnOnce(&Held<L>) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error>,
    {
        let held = self.run()?;
        let done = held.run(work)?;
        let released = held.end_work();
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
    pub fn with<T>(self, work: impl FnOnce(&Held<L>) -> T) -> Result<T> {
        self.try_with(|held| Ok(work(held)))
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
        self.mode.clone().run(self.send(), |leader, mode| {
            let crate::election::Leader { lease, metadata } = leader;
            Leader { lease: Lease::new(lease, mode), metadata }
        })
    }
}

/// Revokes the leases of a key: a [`mongoseal::action::Revoke`](crate::action::Revoke) that blocks.
/// [`Mongoseal::revoke`](super::Mongoseal::revoke) makes it.
pub type Revoke = crate::action::Revoke<Blocking>;

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

/// Lowers the last completed tick of a schedule: a [`mongoseal::action::RewindTick`](crate::action::RewindTick) that blocks.
/// [`Mongoseal::rewind_tick`](super::Mongoseal::rewind_tick) makes it.
pub type RewindTick = crate::action::RewindTick<Blocking>;

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

/// Lists leases: a [`mongoseal::action::Leases`](crate::action::Leases) that blocks. [`Mongoseal::leases`](super::Mongoseal::leases) makes
/// it.
pub type Leases = crate::action::Leases<Blocking>;

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

/// Runs work once for a tick of a schedule: a [`mongoseal::action::RunOnce`](crate::action::RunOnce) that blocks.
/// [`Mongoseal::once`](super::Mongoseal::once) makes it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use mongoseal::{OnceOutcome, Skipped, Tick, blocking::Mongoseal};
///
/// # let seal = Mongoseal::in_memory()?;
/// let hourly = Tick::of(Duration::from_secs(3_600));
/// let ran = seal.once("reports/hourly", hourly).run(|tick| Ok::<_, mongoseal::Error>(tick.number()))?;
/// assert!(matches!(ran, OnceOutcome::Ran(_)));
///
/// let again = seal.once("reports/hourly", hourly).run(|_| Ok::<_, mongoseal::Error>(()))?;
/// assert!(matches!(again, OnceOutcome::Skipped(Skipped::AlreadyDone { .. })));
/// # Ok::<(), mongoseal::Error>(())
/// ```
pub type RunOnce = crate::action::RunOnce<Blocking>;

impl RunOnce {
    /// Runs the work on the calling thread, unless the tick is completed or another runner holds the key.
    ///
    /// If the lease is lost, the work is not stopped: it checks the [lease](TickLease::lease) before each step. The tick is
    /// completed if the key was granted to no other lease since.
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::action::RunOnce::run`](crate::action::RunOnce::run).
    pub fn run<T, E>(self, work: impl FnOnce(&TickLease) -> Result<T, E>) -> Result<OnceOutcome<T>, E>
    where
        E: From<Error>,
    {
        let (complete_on_error, mode) = (self.complete_on_error, self.mode.clone());
        let lease = match self.begin()? {
            BeginOutcome::Started(lease) => lease,
            BeginOutcome::Skipped(skipped) => return Ok(OnceOutcome::Skipped(skipped)),
        };
        let value = {
            let _at_work = lease.lease().lease_inner().begin_work();
            work(&lease)
        };
        mode.wait(lease.end(value.is_err(), complete_on_error))?;
        value.map(OnceOutcome::Ran)
    }

    /// Acquires the key for the tick, and leaves the work to the caller: see
    /// [`mongoseal::action::RunOnce::begin`](crate::action::RunOnce::begin).
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::action::RunOnce::begin`](crate::action::RunOnce::begin).
    pub fn begin(self) -> Result<BeginOutcome<Lease>> {
        self.mode.clone().run(self.send(), |outcome, mode| match outcome {
            BeginOutcome::Started(crate::TickLease { lease, run }) => {
                BeginOutcome::Started(TickLease { lease: Lease::new(lease, mode), run })
            }
            BeginOutcome::Skipped(skipped) => BeginOutcome::Skipped(skipped),
        })
    }
}

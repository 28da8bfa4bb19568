//! The verb `once`: work that runs once for each tick of a schedule.

use super::{Lease, executor::Blocking};
use crate::{
    action::once::{BeginOutcome, OnceOutcome},
    engine::lease_state::ReleaseOutcome,
    types::error::{Error, Result},
};

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
        let complete_on_error = self.complete_on_error;
        let lease = match self.begin()? {
            BeginOutcome::Started(lease) => lease,
            BeginOutcome::Skipped(skipped) => return Ok(OnceOutcome::Skipped(skipped)),
        };
        let value = {
            let _at_work = lease.lease.as_ref().lease_inner().begin_work();
            work(&lease)
        };
        if value.is_ok() || complete_on_error {
            let completed = lease.complete_as(value.is_err());
            if value.is_ok() {
                completed?;
            }
        }
        value.map(OnceOutcome::Ran)
    }

    /// Acquires the key for the tick, and leaves the work to the caller: see
    /// [`mongoseal::action::RunOnce::begin`](crate::action::RunOnce::begin).
    ///
    /// # Errors
    ///
    /// Those of [`mongoseal::action::RunOnce::begin`](crate::action::RunOnce::begin).
    pub fn begin(self) -> Result<BeginOutcome<Lease>> {
        self.mode.clone().run(self.send(), |outcome, executor| match outcome {
            BeginOutcome::Started(crate::TickLease { lease, run }) => {
                BeginOutcome::Started(TickLease { lease: Lease::new(lease, executor), run })
            }
            BeginOutcome::Skipped(skipped) => BeginOutcome::Skipped(skipped),
        })
    }
}

/// The lease under which the work of a tick runs: a [`mongoseal::TickLease`](crate::TickLease) with blocking calls.
pub type TickLease = crate::TickLease<Lease>;

impl TickLease {
    /// Completes the tick and releases the lease, in one write.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::TickLease::complete`](crate::TickLease::complete).
    pub fn complete(self) -> Result<()> {
        self.complete_as(false)
    }

    /// Completes the tick of work that failed, so that it is not run again, and releases the lease.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::TickLease::complete_failed`](crate::TickLease::complete_failed).
    pub fn complete_failed(self) -> Result<()> {
        self.complete_as(true)
    }

    fn complete_as(&self, is_failed: bool) -> Result<()> {
        let completion = self.completion(is_failed);
        self.lease.wait(move |lease| async move { lease.complete(completion).await })
    }

    /// Releases the lease and does not complete the tick, so that the next runner runs the work again.
    ///
    /// # Errors
    ///
    /// As [`Lease::release`].
    pub fn release(self) -> Result<ReleaseOutcome> {
        self.lease.release()
    }
}

//! The verb `once`: work that runs once for each tick of a schedule.
//!
//! Mechanism: the record of the key has the last completed tick. A runner acquires the key, reads that tick, runs the
//! work, and completes the tick in the write that releases the lease.
//!
//! Invariant: the tick is read after the grant. From the grant on, no other lease completes a tick.

mod reset;
mod tick;

use std::{fmt, pin::pin, sync::Mutex, time::Duration};

pub use reset::RewindTick;
pub use tick::Tick;
use tracing::debug;

use super::acquire_options::{AcquireOptions, ensure_acquirable};
use crate::{
    engine::{
        context::Context, end_action::Completion, lease_state::ReleaseOutcome, refresh::Refreshing, retry_policy::Retry,
    },
    handle::{Async, Mongoseal, option_setters},
    lease::{Lease, work::run_until_lost},
    record::{CompletedTick, RunReport, StoreTime},
    store::answers::Snapshot,
    types::{
        deadline::Deadline,
        error::{Error, Result},
        instant::Instant,
        into_name::IntoName,
        keep,
        key::Key,
        lock::lock,
        owner::Owner,
        token::FencingToken,
        ttl,
    },
};

impl Mongoseal {
    /// Runs work once for a tick of a schedule, whichever process of many comes first. Nothing is sent until
    /// [`RunOnce::run`] is called.
    ///
    /// All runners of a schedule pass the same key. Accepts anything that parses as a [`Key`].
    pub fn once(&self, key: impl IntoName<Key>, tick: Tick) -> RunOnce {
        RunOnce::new(self, key, tick, Async)
    }
}

/// Runs work once for a tick of a schedule.
///
/// [`Mongoseal::once`] makes it.
///
/// # What "once" means
///
/// - A tick is completed at most once. If its work has ended and the completion was confirmed, no runner runs it again.
/// - A tick is tried at least once while a runner asks for it. If a runner dies, or its lease is lost, the next runner runs
///   the work again. So the work can begin more than once.
/// - The effects of the work are exactly once only if the storage is fenced: pass the [token](TickLease::token) to each
///   write, or make the writes in a [transaction](Lease::transaction).
///
/// The store keeps the last completed tick for a time: see [`keep_for`](Self::keep_for). A runner that asks for the tick
/// after that time runs it again.
///
/// # Waiting
///
/// A runner that finds the key held waits for as long as a holder that dies may keep the key: for the ttl, the grace and a
/// second. So if the holder dies, another runner takes over. If the wait ends first, the runner returns [`Skipped::Busy`]. With
/// a [`wait`](Self::wait) of zero it does not wait. If the holder then dies, no runner may be left for the tick, and the tick
/// is skipped.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use mongoseal::{Mongoseal, OnceOutcome, Skipped, Tick};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// # let seal = Mongoseal::in_memory();
/// let hourly = Tick::of(Duration::from_secs(3_600));
/// let ran = seal
///     .once("reports/hourly", hourly)
///     .wait(Duration::from_secs(60))
///     .run(async |tick| -> mongoseal::Result<_> {
///         // Pass `tick.token()` to each write.
///         Ok(tick.number())
///     })
///     .await?;
/// assert!(matches!(ran, OnceOutcome::Ran(_)));
///
/// let again = seal.once("reports/hourly", hourly).run(async |_| -> mongoseal::Result<()> { Ok(()) }).await?;
/// assert!(matches!(again, OnceOutcome::Skipped(Skipped::AlreadyDone { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing runs until `run` is called"]
pub struct RunOnce<M = Async> {
    key: Result<Key>,
    tick: Tick,
    options: AcquireOptions,
    keep_for: Duration,
    pub(crate) complete_on_error: bool,
    pub(crate) mode: M,
}

/// What a call of [`RunOnce::run`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnceOutcome<T> {
    /// The work ran and the tick is completed: the value of the work.
    Ran(T),
    /// The work did not run.
    Skipped(Skipped),
}

/// What a call of [`RunOnce::begin`] did.
#[derive(Debug)]
pub enum BeginOutcome<L = Lease> {
    /// The caller holds the key, and can run the work.
    Started(TickLease<L>),
    /// The caller does not hold the key.
    Skipped(Skipped),
}

/// Why the work of a tick did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Skipped {
    /// The tick was completed before.
    AlreadyDone {
        /// The owner of the lease that completed it, or the operator that reset the schedule to it.
        by: String,
        /// When, on the store's clock.
        at: StoreTime,
    },
    /// A later tick was completed, and it is not known whether this one was.
    Superseded {
        /// The last completed tick.
        tick: u64,
        /// The owner of the lease that completed it, or the operator that reset the schedule to it.
        by: String,
        /// When, on the store's clock.
        at: StoreTime,
    },
    /// Another runner held the key until the wait ended, or its minimum hold keeps the key unavailable.
    Busy {
        /// The owner of that lease.
        owner: Owner,
    },
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyDone { by, at } => write!(f, "{by:?} completed the tick at {at}"),
            Self::Superseded { tick, by, at } => write!(f, "{by:?} completed the later tick {tick} at {at}"),
            Self::Busy { owner } => write!(f, "{owner:?} holds the key of the tick"),
        }
    }
}

/// The lease under which the work of a tick runs.
#[derive(Debug)]
pub struct TickLease<L = Lease> {
    pub(crate) lease: L,
    pub(crate) run: TickRun,
}

/// The run of a tick, from its begin to its completion.
#[derive(Debug)]
pub(crate) struct TickRun {
    tick: u64,
    /// How long the completed tick is kept.
    keep: Duration,
    /// In milliseconds, never 0.
    period: Option<u64>,
    begun: Instant,
    note: Mutex<String>,
}

/// How long a note may be, in bytes.
const MAX_NOTE: usize = 200;

impl<L: AsRef<Lease>> TickLease<L> {
    /// The number of the tick. That of a time is in milliseconds since the Unix epoch.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.run.tick
    }

    /// The lease.
    pub fn lease(&self) -> &L {
        &self.lease
    }

    /// The token to pass with every write.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.lease.as_ref().token()
    }

    /// Reports that the work makes progress: see [`Lease::progress`].
    pub fn progress(&self) {
        self.lease.as_ref().progress();
    }

    /// Sets the note that the [history](Mongoseal::runs) of the schedule keeps of this run, such as how much was done, if
    /// the tick is completed. A longer note is cut to 200 bytes. The last note counts. Default: empty.
    pub fn note(&self, note: impl Into<String>) {
        let mut note = note.into();
        let end = (0..=note.len().min(MAX_NOTE)).rev().find(|end| note.is_char_boundary(*end));
        note.truncate(end.unwrap_or_default());
        *lock(&self.run.note) = note;
    }

    /// Completes the tick, with its work as failed or not, and releases the lease.
    pub(crate) async fn complete_as(&self, is_failed: bool) -> Result<()> {
        let (lease, TickRun { tick, keep, period, begun, note }) = (self.lease.as_ref(), &self.run);
        let took = lease.context().clock().now().since(*begun);
        let report = RunReport { took: ttl::millis(took), is_failed, note: lock(note).clone(), period: *period };
        lease.complete(Completion { tick: *tick, keep: *keep, report }).await
    }

    /// Completes the tick after its work, unless that failed and is to be run again.
    pub(crate) async fn end(&self, is_failed: bool, complete_on_error: bool) -> Result<()> {
        if is_failed && !complete_on_error {
            return Ok(());
        }
        let completed = self.complete_as(is_failed).await;
        // The error of the work comes first.
        if is_failed { Ok(()) } else { completed }
    }
}

impl TickLease {
    /// Completes the tick and releases the lease, in one write. For work that [`RunOnce::begin`] began.
    ///
    /// If the lease has expired, the tick is completed if the key was granted to no other lease since.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the lease was lost and the tick is not completed. The next runner runs the work again.
    /// - [`Error::Unavailable`]: the store did not answer within the operation timeout. The tick may be completed or not.
    /// - [`Error::Invalid`], [`Error::Corrupt`]: another program wrote over the record, or a privilege was removed. The
    ///   tick is not completed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer. If the lease is held, the tick is completed all the same.
    pub async fn complete(self) -> Result<()> {
        self.complete_as(false).await
    }

    /// Completes the tick of work that failed, so that it is not run again, and releases the lease: as
    /// [`complete`](Self::complete). The [history](Mongoseal::runs) of the schedule has the run as failed.
    ///
    /// # Errors
    ///
    /// Those of [`complete`](Self::complete).
    ///
    /// # Cancel safety
    ///
    /// As of [`complete`](Self::complete).
    pub async fn complete_failed(self) -> Result<()> {
        self.complete_as(true).await
    }

    /// Releases the lease and does not complete the tick, so that the next runner runs the work again.
    ///
    /// # Errors
    ///
    /// Those of [`Lease::release`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the answer. The lease is released all the same.
    pub async fn release(self) -> Result<ReleaseOutcome> {
        self.lease.release().await
    }
}

/// The lease of a tick as the writer at a fence.
#[cfg(feature = "mongodb")]
impl<'a, L: AsRef<Lease>> From<&'a TickLease<L>> for crate::fence::FencedWriter<'a> {
    fn from(tick: &'a TickLease<L>) -> Self {
        tick.lease.as_ref().into()
    }
}

impl RunOnce {
    /// The default of [`keep_for`](Self::keep_for): 90 days.
    pub const DEFAULT_KEEP: Duration = keep::DEFAULT_KEEP;

    /// The largest value of [`keep_for`](Self::keep_for): 36,500 days, about a century.
    pub const MAX_KEEP: Duration = keep::MAX_KEEP;
}

impl<M> RunOnce<M> {
    pub(crate) fn new(seal: &Mongoseal, key: impl IntoName<Key>, tick: Tick, mode: M) -> Self {
        let (key, options) = (key.into_name(), AcquireOptions::new(&seal.handle));
        Self { key, tick, options, keep_for: RunOnce::DEFAULT_KEEP, complete_on_error: false, mode }
    }

    option_setters! {
        /// Waits up to this long if another runner holds the key: see [`Acquire::wait`](crate::action::Acquire::wait). Zero
        /// does not wait. Default: the handle's wait. If it has none, the ttl, the grace and a second: see
        /// [waiting](Self#waiting).
        pub fn wait(at_most: Duration);

        /// Retries by this policy if another runner holds the key: see [`Acquire::retry`](crate::action::Acquire::retry). It
        /// contradicts a [`wait`](Self::wait). Default: the handle's policy.
        pub fn retry(policy: Retry);

        /// Sets how long the lease lasts without a refresh. Default: the handle's ttl.
        pub fn ttl(ttl: Duration);

        /// Sets how much longer than the ttl the store keeps the key: see [`Acquire::grace`](crate::action::Acquire::grace).
        /// Default: the handle's grace.
        pub fn grace(grace: Duration);

        /// Sets the minimum hold: see [`Acquire::min_hold`](crate::action::Acquire::min_hold). It applies to work that has
        /// begun, also if the work fails. Default: none.
        pub fn min_hold(time: Duration);

        /// Sets the maximum hold: see [`Acquire::max_hold`](crate::action::Acquire::max_hold). Work that takes longer is
        /// dropped, and the next runner runs it again. Default: none.
        pub fn max_hold(time: Duration);

        /// Loses the lease if the work has not called [`TickLease::progress`] for this long: see
        /// [`Acquire::stalled_after`](crate::action::Acquire::stalled_after). Default: no limit.
        pub fn stalled_after(time: Duration);
    }

    /// Sets the interval between refreshes: see [`Acquire::refresh_every`](crate::action::Acquire::refresh_every). Default: a third
    /// of the ttl.
    pub fn refresh_every(mut self, interval: Duration) -> Self {
        self.options.refreshing = Refreshing::Every(interval);
        self
    }

    /// Adds an entry to the metadata that other processes see of the lease.
    pub fn metadata(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.options.metadata(name, text);
        self
    }

    /// Calls `report` when it is queued: as [`Acquire::on_queued`](crate::action::Acquire::on_queued).
    pub fn on_queued(mut self, report: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.options.on_queued(report);
        self
    }

    /// Keeps a completed tick for at least this long, up to [`MAX_KEEP`](Self::MAX_KEEP). Within that time, no runner runs
    /// the tick again. It costs one record for each key. Default: [`DEFAULT_KEEP`](Self::DEFAULT_KEEP). The completed tick of
    /// a [period](Tick::of) is kept for at least two periods, and every tick for at least the
    /// [retention](crate::Builder::retention).
    pub fn keep_for(mut self, time: Duration) -> Self {
        self.keep_for = time;
        self
    }

    /// Completes the tick also if the work returns an error. So failed work is not run again. Default: the next runner
    /// runs it.
    pub fn complete_on_error(mut self) -> Self {
        self.complete_on_error = true;
        self
    }

    /// Acquires the key, unless the tick is completed.
    pub(crate) async fn send(self) -> Result<BeginOutcome> {
        let Self { key, tick, options, keep_for, mode: _mode, .. } = self;
        let key = key.and_then(|key| ensure_acquirable(&key).map(|()| key))?;
        let waits = options.wait.is_some() || options.retry.is_some();
        let acquire = if waits { options.check()? } else { options.check()?.wait_for_a_dead_holder() };
        keep::ensure_keep(keep_for)?;
        let (keep, period) = (tick.least_keep().max(keep_for), tick.known_period());
        let handle = acquire.handle.clone();
        let context = &handle.context;
        context.ensure_open()?;
        if !context.store.capabilities().linearizable_reads {
            return Err(Error::invalid(
                "the reads of this store can be outdated, so a completed tick could run again: use MongoDB",
            ));
        }
        let limit = acquire.limit();
        let (now, done) = read(context, &key, limit.next(context)).await?;
        let tick = tick.number_at(now)?;
        if let Some(skipped) = skipped(done, tick) {
            return Ok(BeginOutcome::Skipped(skipped));
        }
        let lease = match acquire.within(limit.clone()).acquire(key.clone()).await {
            Ok(lease) => lease,
            Err(error) => return Ok(BeginOutcome::Skipped(busy(error)?)),
        };
        let unused = match read(context, &key, limit.next(context)).await {
            Ok((_, done)) => skipped(done, tick).map(Ok),
            Err(error) => Some(Err(error)),
        };
        if let Some(skipped) = unused {
            // A take-back that is slower goes on in the background.
            limit.next(context).wait_for(lease.take_back()).await;
            return skipped.map(BeginOutcome::Skipped);
        }
        debug!(key = %lease.key(), token = %lease.token(), tick, "runs");
        let run = TickRun { tick, keep, period, begun: context.clock().now(), note: Mutex::default() };
        Ok(BeginOutcome::Started(TickLease { lease: lease.give(), run }))
    }
}

impl RunOnce {
    /// Runs the work, unless the tick is completed or another runner holds the key.
    ///
    /// The work is dropped when the lease is lost. If it ends after the lease has expired, the tick is completed if the key
    /// was granted to no other lease since.
    ///
    /// # Errors
    ///
    /// - The error of the work. The tick is not completed, unless [`complete_on_error`](Self::complete_on_error) is set.
    /// - [`Error::Lost`]: the lease was lost before the tick was completed. The next runner runs the work again.
    /// - [`Error::Unavailable`]: the store did not answer within the operation timeout. If the work has run, the tick may be
    ///   completed or not.
    /// - [`Error::Invalid`]: an option is wrong, or the tick is ahead of the store's time by more than its period.
    /// - [`Error::QueueFull`], [`Error::Corrupt`]: as of an [`Acquire`](crate::action::Acquire).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and releases the lease in the background. If the work has ended, its completion
    /// goes on in the background.
    pub async fn run<T, E>(self, work: impl AsyncFnOnce(&TickLease) -> Result<T, E>) -> Result<OnceOutcome<T>, E>
    where
        E: From<Error>,
    {
        let complete_on_error = self.complete_on_error;
        let lease = match Box::pin(self.send()).await? {
            BeginOutcome::Started(lease) => lease,
            BeginOutcome::Skipped(skipped) => return Ok(OnceOutcome::Skipped(skipped)),
        };
        let value = {
            let inner = lease.lease.lease_inner();
            // Before the work, so that it is dropped after it.
            let _at_work = inner.begin_work();
            // The value of work that ends while its lease expires is kept: the store decides whether it completes the tick.
            run_until_lost(&inner.ended, || inner.check(), pin!(work(&lease))).await?
        };
        lease.end(value.is_err(), complete_on_error).await?;
        value.map(OnceOutcome::Ran)
    }

    /// Acquires the key for the tick, and leaves the work to the caller. Use it if the work cannot be dropped when the lease
    /// is lost, for example a process that must be ended. Otherwise use [`run`](Self::run).
    ///
    /// The caller runs the work while the [lease](TickLease::lease) is held, and then [completes](TickLease::complete) the
    /// tick. Of failed work it drops the lease, or [releases](TickLease::release) it: then the next runner runs the tick.
    /// [`complete_on_error`](Self::complete_on_error) has no effect.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run), without those of the work.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the key up in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::{BeginOutcome, Mongoseal, Skipped, Tick};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> mongoseal::Result<()> {
    /// # let seal = Mongoseal::in_memory();
    /// if let BeginOutcome::Started(tick) = seal.once("batches", Tick::number(7)).begin().await? {
    ///     // Run the work, and end it if `tick.lease()` is lost.
    ///     tick.complete().await?;
    /// }
    /// let again = seal.once("batches", Tick::number(7)).begin().await?;
    /// assert!(matches!(again, BeginOutcome::Skipped(Skipped::AlreadyDone { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn begin(self) -> Result<BeginOutcome> {
        Box::pin(self.send()).await
    }
}

/// The store's time, and the last completed tick of a key.
async fn read(context: &Context, key: &Key, until: Deadline) -> Result<(StoreTime, Option<CompletedTick>)> {
    if let Some(Snapshot { record, at }) = context.read_record(key, until).await? {
        return Ok((at.now, record.done));
    }
    Ok((context.request(until, |deadline| context.store.now(deadline)).await?, None))
}

/// Why a runner of this tick does not run it, if the last completed tick is not before it.
fn skipped(done: Option<CompletedTick>, tick: u64) -> Option<Skipped> {
    let CompletedTick { tick: last, by, at, .. } = done.filter(|done| done.tick >= tick)?;
    Some(if last == tick { Skipped::AlreadyDone { by, at } } else { Skipped::Superseded { tick: last, by, at } })
}

/// Why a runner does not run whose acquire was refused, unless that is an error.
fn busy(error: Error) -> Result<Skipped> {
    match error {
        Error::Held { owner, .. } => Ok(Skipped::Busy { owner }),
        Error::RetriesExhausted { held, .. } => busy(*held),
        error => Err(error),
    }
}

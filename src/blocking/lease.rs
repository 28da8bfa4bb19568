//! The lease of a blocking handle.

use std::{sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use tokio_util::sync::CancellationToken;

use super::{PutValue, StreamIter, executor::Blocking};
use crate::{
    engine::lease_state::{LeaseState, ReleaseOutcome},
    lease::{state_stream::StateStream, watchdog::Watchdog},
    record::KeyValue,
    types::{
        error::Result, json::Json, key::Key, lease_id::LeaseId, metadata::Metadata, owner::Owner, sharing::Sharing,
        token::FencingToken,
    },
};

/// A lease of a blocking handle: the right to act on its key until it ends, and the [`FencingToken`] for the storage.
///
/// It is a [`mongoseal::Lease`](crate::Lease) that the threads of its handle refresh, also while the caller computes and
/// after the handle was dropped.
///
/// # Drop
///
/// Dropping a lease releases it in the background. The drop does not block, cannot fail, and is allowed in asynchronous code.
/// If the process ends before the release is sent, the ttl ends the lease.
#[derive(Debug)]
#[must_use = "a lease is released when it is dropped, and `let _ =` drops it at once: bind it to a variable"]
pub struct Lease {
    /// Dropped before the executor, so that its release has threads.
    lease: Arc<crate::Lease>,
    executor: Blocking,
}

impl Lease {
    pub(super) fn new(lease: crate::Lease, executor: Blocking) -> Self {
        Self { lease: Arc::new(lease), executor }
    }

    /// Runs a verb of the lease on the threads of its handle.
    pub(super) fn wait<T, F>(&self, verb: impl FnOnce(Arc<crate::Lease>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.executor.wait(verb(Arc::clone(&self.lease)))
    }

    /// The key that is held.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.lease.key()
    }

    /// The owner of the lease, as other processes see it.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        self.lease.owner()
    }

    /// The secret id of this lease: see [`mongoseal::Lease::id`](crate::Lease::id).
    #[must_use]
    pub fn id(&self) -> LeaseId {
        self.lease.id()
    }

    /// The token to pass with every write: larger than that of every earlier holder of the key.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.lease.token()
    }

    /// Whether the lease has not ended, as far as this process can know. Needs no request.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.lease.is_valid()
    }

    /// Returns an error if the lease has ended, so that work can leave with `?`: see
    /// [`mongoseal::Lease::check`](crate::Lease::check).
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::check`](crate::Lease::check).
    pub fn check(&self) -> Result<()> {
        self.lease.check()
    }

    /// How long the lease lasts without another refresh: zero once it has ended, [`Duration::MAX`] without expiry.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease.remaining()
    }

    /// How long the lease lasts at most, however often it is refreshed: see
    /// [`mongoseal::Lease::remaining_hold`](crate::Lease::remaining_hold).
    #[must_use]
    pub fn remaining_hold(&self) -> Duration {
        self.lease.remaining_hold()
    }

    /// The state of the lease now.
    #[must_use]
    pub fn state(&self) -> LeaseState {
        self.lease.state()
    }

    /// Reports that the work under this lease makes progress: see [`mongoseal::Lease::progress`](crate::Lease::progress).
    pub fn progress(&self) {
        self.lease.progress();
    }

    /// Follows the state of the lease: each `next` blocks until the state changes. The iterator outlives the lease, and ends
    /// after the lease's end. See [`StateStream`].
    pub fn watch_state(&self) -> StreamIter<StateStream> {
        StreamIter::new(self.lease.watch_state(), self.executor.clone())
    }

    /// A token that is cancelled when the lease ends, for any reason. Cancelling it does not end the lease.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.lease.cancellation_token()
    }

    /// Sets a watchdog on this lease, which acts if the work of [`run`](Self::run) continues past the deadline: see
    /// [`Watchdog`].
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`](crate::Error::Unavailable) if no thread could be started.
    pub fn watchdog(&self, watchdog: Watchdog) -> Result<()> {
        self.lease.watchdog(watchdog)
    }

    /// Waits until the lease is over, and returns its last state.
    ///
    /// # Errors
    ///
    /// None while the threads of the handle run.
    pub fn cancelled(&self) -> Result<LeaseState> {
        self.wait(|lease| async move { Ok(lease.cancelled().await) })
    }

    /// Runs `work` on the calling thread while the lease is held, and returns its value.
    ///
    /// The work cannot be stopped from outside. It [checks](Self::check) the lease before each step, and returns if the lease
    /// is lost. If it returns a `Result`, that is the value: `lease.run(work)??` has its value.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) if the lease was lost before the work had ended: then part of it may have run without the lease. The
    /// value is dropped. If the lease was lost before the work began, the work does not run.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::blocking::Mongoseal;
    /// let seal = Mongoseal::in_memory()?;
    /// let lease = seal.acquire("import").run()?;
    /// let imported = lease.run(|lease| {
    ///     let mut imported = 0;
    ///     for _page in 0..3 {
    ///         lease.check()?;
    ///         imported += 1; // the storage receives the token with each page
    ///     }
    ///     Ok::<_, mongoseal::Error>(imported)
    /// })??;
    /// assert_eq!(imported, 3);
    /// # lease.release()?;
    /// # Ok::<(), mongoseal::Error>(())
    /// ```
    pub fn run<T>(&self, work: impl FnOnce(&Self) -> T) -> Result<T> {
        let _at_work = self.lease.lease_inner().begin_work();
        self.lease.check()?;
        let value = work(self);
        self.lease.check()?;
        Ok(value)
    }

    /// Checks, by a linearizable read, whether the lease is held at this moment.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::verify`](crate::Lease::verify).
    pub fn verify(&self) -> Result<()> {
        self.wait(|lease| async move { lease.verify().await })
    }

    /// Refreshes the lease now, as the handle does by itself.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::refresh`](crate::Lease::refresh).
    pub fn refresh(&self) -> Result<()> {
        self.wait(|lease| async move { lease.refresh().await })
    }

    /// Refreshes the lease with another ttl, which later refreshes keep. The lease never ends sooner than before.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::extend`](crate::Lease::extend).
    pub fn extend(&self, ttl: Duration) -> Result<()> {
        self.wait(move |lease| async move { lease.extend(ttl).await })
    }

    /// Replaces the lease's metadata and refreshes the lease.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::update_metadata`](crate::Lease::update_metadata).
    pub fn update_metadata(&self, metadata: Metadata) -> Result<()> {
        self.wait(move |lease| async move { lease.update_metadata(metadata).await })
    }

    /// Stores a small value with the key: see [`mongoseal::Lease::put_value`](crate::Lease::put_value).
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongoseal::blocking::Mongoseal;
    /// # let seal = Mongoseal::in_memory()?;
    /// let lease = seal.acquire("import").run()?;
    /// lease.put_value("page 7").run()?;
    /// assert_eq!(lease.value::<String>()?.unwrap().content, "page 7");
    /// # Ok::<(), mongoseal::Error>(())
    /// ```
    pub fn put_value<T: Serialize + ?Sized>(&self, content: &T) -> PutValue {
        self.lease.write_value(Json::of(content).map(Some), self.executor.clone())
    }

    /// Clears the value of the key: see [`mongoseal::Lease::clear_value`](crate::Lease::clear_value).
    pub fn clear_value(&self) -> PutValue {
        self.lease.write_value(Ok(None), self.executor.clone())
    }

    /// Stores a value and releases the lease, in one write: see
    /// [`mongoseal::Lease::release_with_value`](crate::Lease::release_with_value).
    pub fn release_with_value<T: Serialize + ?Sized>(&self, content: &T) -> PutValue {
        self.lease.release_by_value(Json::of(content), self.executor.clone())
    }

    /// Reads the value of the key: see [`mongoseal::Lease::value`](crate::Lease::value).
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::value`](crate::Lease::value).
    pub fn value<T: DeserializeOwned>(&self) -> Result<Option<KeyValue<T>>> {
        let stored = self.wait(|lease| async move { lease.stored_value().await })?;
        KeyValue::of(stored).map(KeyValue::parse).transpose()
    }

    /// Lets other holders share the key, up to this many: see [`mongoseal::Lease::downgrade`](crate::Lease::downgrade).
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::downgrade`](crate::Lease::downgrade).
    pub fn downgrade(&self, to: Sharing) -> Result<()> {
        self.wait(move |lease| async move { lease.downgrade(to).await })
    }

    /// Makes a lease that shares its key exclude others, if no other lease holds the key: see
    /// [`mongoseal::Lease::upgrade`](crate::Lease::upgrade).
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::upgrade`](crate::Lease::upgrade).
    pub fn upgrade(&self) -> Result<Self> {
        let upgraded = self.wait(move |lease| async move { lease.upgrade().await })?;
        Ok(Self::new(upgraded, self.executor.clone()))
    }

    /// Transfers the lease to another lease id, and returns its new, larger token: see
    /// [`mongoseal::Lease::transfer`](crate::Lease::transfer).
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::transfer`](crate::Lease::transfer).
    pub fn transfer(&self, to: LeaseId) -> Result<FencingToken> {
        self.wait(move |lease| async move { lease.transfer(to).await })
    }

    /// Leaves the lease to expire instead of releasing it: see [`mongoseal::Lease::orphan`](crate::Lease::orphan). Sends
    /// nothing and does not block.
    pub fn orphan(self) {
        self.lease.leave_to_expire();
    }

    /// Releases the lease, and returns whether it was held until then.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Lease::release`](crate::Lease::release).
    pub fn release(self) -> Result<ReleaseOutcome> {
        self.wait(|lease| async move { lease.end_by_release().await })
    }

    /// Releases the lease after its work has ended. Returns an error if the lease was lost before.
    pub(super) fn end_work(self) -> Result<()> {
        self.wait(|lease| async move { lease.end_work().await })
    }
}

impl AsRef<crate::Lease> for Lease {
    fn as_ref(&self) -> &crate::Lease {
        &self.lease
    }
}

/// A lease as the writer at a fence, for a fenced write in [`Mongoseal::block_on`](super::Mongoseal::block_on).
#[cfg(feature = "mongodb")]
impl<'a> From<&'a Lease> for crate::fence::FencedWriter<'a> {
    fn from(lease: &'a Lease) -> Self {
        lease.as_ref().into()
    }
}

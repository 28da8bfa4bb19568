//! The handle: what all leases of a process share.

mod settings;

pub use settings::Builder;
pub(crate) use settings::Settings;

use std::{
    fmt,
    sync::{Arc, OnceLock, atomic::Ordering},
    time::Duration,
};

use tokio::{runtime::Handle, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

use crate::{
    Acquire, Clock, Error, Key, Owner, Result, Revoke,
    dedicated::DedicatedThread,
    releases::Releases,
    retry,
    schedule::Schedules,
    shared::{Membership, Shared},
    shutdown_releases::ShutdownReleases,
    store::{Sighting, Store},
};

/// A handle on a store of leases. Cheap to clone; clones share everything.
///
/// # Examples
///
/// ```
/// use mongoseal::Mongoseal;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let seal = Mongoseal::in_memory();
/// let lease = seal.acquire("reports/nightly").await?;
/// println!("acting with token {}", lease.token());
/// seal.shutdown().await;
/// # Ok(())
/// # }
/// ```
///
/// # Clean shutdown
///
/// [`shutdown`](Self::shutdown) releases what is held and waits for it. A process that ends
/// without it leaves its leases to expire, which costs whoever comes next up to a ttl and its grace.
#[derive(Clone)]
pub struct Mongoseal {
    pub(crate) inner: Arc<Inner>,
}

/// How much longer than its tasks, which end with the operation timeout, a shutdown waits.
const SLACK: Duration = Duration::from_millis(50);

/// The part of the operation timeout in which a shutdown with many leases waits for the answers to what was sent.
const ANSWERS: f64 = 0.45;

/// What a store gets to close in when releasing took all the time there was.
const GOOD_BYE: Duration = Duration::from_millis(100);

/// What a handle and all its leases share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) settings: Settings,
    membership: Membership,
    /// When, on the clock, it was made.
    pub(crate) since: Duration,
    /// Cancelled when the handle is shut down.
    pub(crate) closing: CancellationToken,
    /// One task for each acquire under way and each lease held.
    pub(crate) tasks: TaskTracker,
    /// When, on the clock, all must have ended: set by a shutdown.
    end: OnceLock<Duration>,
    /// The releases that acquires of the same key wait for.
    pub(crate) releases: Releases,
    /// The releases at the shutdown.
    pub(crate) shutdown_releases: ShutdownReleases,
    /// When leases are refreshed, and together with which.
    pub(crate) schedules: Schedules,
}

impl Mongoseal {
    /// Settings other than the defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The tasks of the handle run on `thread`, or where they are begun.
    pub(crate) fn from_parts(
        store: Arc<dyn Store>,
        settings: Settings,
        thread: Option<Arc<DedicatedThread>>,
    ) -> Result<Self> {
        Self::with_membership(Shared::begin(store, thread), settings)
    }

    pub(crate) fn sibling(&self, settings: Settings) -> Result<Self> {
        Self::with_membership(self.inner.membership.join()?, settings)
    }

    /// A sibling with other records.
    #[cfg(feature = "mongodb")]
    pub(crate) fn sibling_on(&self, store: Arc<dyn Store>, settings: Settings) -> Result<Self> {
        // Refuses those of which all were shut down.
        drop(self.inner.membership.join()?);
        Self::from_parts(store, settings, self.inner.shared().thread.clone())
    }

    fn with_membership(membership: Membership, settings: Settings) -> Result<Self> {
        let store = Arc::clone(&membership.shared().store);
        let ttl = settings.ttl.duration();
        settings.check_ttl(ttl, settings.grace_for(ttl))?;
        let since = store.clock().now();
        let inner = Inner {
            store,
            settings,
            membership,
            since,
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            end: OnceLock::new(),
            releases: Releases::default(),
            shutdown_releases: ShutdownReleases::default(),
            schedules: Schedules::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Asks for a key. Nothing is sent until the returned builder is awaited.
    ///
    /// Takes anything that parses as a [`Key`]; one that does not is reported when the builder is
    /// awaited.
    pub fn acquire<K>(&self, key: K) -> Acquire
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        Acquire::new(&self.inner, key.try_into().map_err(Into::into))
    }

    /// Takes a key away from whoever holds it: see [`Revoke`]. Nothing is sent until the returned
    /// builder is awaited.
    pub fn revoke<K>(&self, key: K) -> Revoke
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        Revoke::new(&self.inner, key.try_into().map_err(Into::into))
    }

    /// Who this handle says it is to others.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.inner.settings.owner
    }

    /// Checks the deployment now instead of with the first acquire: that it is a replica set of
    /// MongoDB 6.0 or later, or an allowed sharded cluster; that the client can reach its primary and has logged in where
    /// that is required; that its majority means the journal; that the collection has no collation; and that the TTL index
    /// is there, which it makes if it is not.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] with what to change, or [`Error::Unavailable`] where nobody answered
    /// within the operation timeout.
    ///
    /// # Cancel safety
    ///
    /// Dropping it abandons the answer; the check may go on and does no harm.
    pub async fn prepare(&self) -> Result<()> {
        let inner = &self.inner;
        inner.runs()?;
        let give_up = inner.give_up();
        retry::until_definite(inner.clock(), give_up, inner.settings.attempt, |within| inner.prepare(within)).await
    }

    /// Ends the handle: no further acquire, every lease is [`Lost`](crate::LeaseState::Lost) with
    /// cause [`ShutDown`](crate::LossCause::ShutDown) at once, is released at the store, and its
    /// task has ended when this returns. It takes no longer than the operation timeout and a tenth
    /// of a second. If there are many leases and the store cannot release all of them in two fifths of the operation timeout,
    /// their ttls end the others, and a warning says how many.
    ///
    /// A client that [`connect`](Self::connect) opened is closed, by the last of its
    /// [siblings](Builder::sibling_of); one given by the caller is not.
    /// Calling it again, or on a clone, waits for the same end.
    ///
    /// It waits for the answers to all requests, with one exception: the server holds the request for the next events of a
    /// change stream for up to two seconds. A task of the runtime awaits that answer and closes its connection.
    ///
    /// # Cancel safety
    ///
    /// Once it was polled the shutdown goes on; dropping it only stops waiting. What is left
    /// undone is closing the client, which the last clone to be dropped does anyway.
    pub async fn shutdown(&self) {
        let inner = &self.inner;
        let give_up = *inner.end.get_or_init(|| inner.give_up());
        inner.closing.cancel();
        inner.tasks.close();
        // The tasks of a runtime that is not driven do not end.
        inner.before(give_up.saturating_add(SLACK), inner.tasks.wait()).await;
        let unreleased = inner.shutdown_releases.take_unreleased();
        if unreleased > 0 {
            warn!(
                leases = unreleased,
                "the shutdown could not release all leases: their ttls end them, and those without expiry have to be revoked"
            );
        }
        inner.membership.leave();
        // Without a runtime there is nothing open that would have to be closed.
        if inner.shared().is_over() && Handle::try_current().is_ok() {
            // What is sent and not answered then may be requests for many leases, to a store that is busy with them.
            let until = inner.shutdown_releases.until(inner, ANSWERS);
            let within = until.saturating_sub(inner.clock().now()).max(GOOD_BYE);
            inner.shared().closed.get_or_init(|| inner.store.close(within)).await;
        }
    }
}

impl Inner {
    /// What the handle shares with its siblings.
    pub(crate) fn shared(&self) -> &Shared {
        self.membership.shared()
    }

    pub(crate) fn clock(&self) -> Clock {
        self.store.clock()
    }

    /// Begins a task of this handle.
    pub(crate) fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        match &self.shared().thread {
            Some(thread) => self.tasks.spawn_on(task, thread.runtime()),
            None => self.tasks.spawn(task),
        }
    }

    /// Waits for `done` until the clock reads `until`. Outside of a runtime, where there is no timer, it waits for ever.
    pub(crate) async fn before<T>(&self, until: Duration, done: impl Future<Output = T>) -> Option<T> {
        if Handle::try_current().is_err() {
            return Some(done.await);
        }
        tokio::select! {
            biased;
            done = done => Some(done),
            () = self.clock().sleep_until(until) => None,
        }
    }

    /// When, on the clock, an operation that begins now gives up.
    pub(crate) fn give_up(&self) -> Duration {
        let give_up = self.clock().now().saturating_add(self.settings.operation_timeout);
        self.end.get().map_or(give_up, |end| give_up.min(*end))
    }

    /// Sees to it that the store was found fit before anything is asked of it. Callers that come
    /// together check it together: waiting for one another would add up their timeouts.
    pub(crate) async fn prepare(&self, within: Duration) -> Result<()> {
        if !self.shared().prepared.load(Ordering::Acquire) {
            self.store.prepare(within).await?;
            self.shared().prepared.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Reads the record of a key.
    pub(crate) async fn sighted(&self, key: &Key, until: Duration) -> Result<Sighting> {
        let clock = self.clock();
        retry::until_definite(clock, until, self.settings.attempt, |within| async move {
            let until = clock.now().saturating_add(within);
            self.prepare(within).await?;
            self.store.read(key, until.saturating_sub(clock.now())).await
        })
        .await
    }

    /// Refuses what needs a runtime where there is none, instead of a panic half-way, and what
    /// comes after the end.
    pub(crate) fn runs(&self) -> Result<()> {
        if self.closing.is_cancelled() {
            return Err(shut_down());
        }
        in_runtime()
    }
}

/// Refuses a call outside of a runtime.
pub(crate) fn in_runtime() -> Result<()> {
    Handle::try_current()
        .map(drop)
        .map_err(|source| Error::invalid("there is no tokio runtime here: call this inside of one").caused_by(source))
}

/// What is said to whoever comes after the end.
pub(crate) fn shut_down() -> Error {
    Error::invalid("this handle was shut down: make a new one")
}

impl fmt::Debug for Mongoseal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mongoseal").field("owner", self.owner()).finish_non_exhaustive()
    }
}

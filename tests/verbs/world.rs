//! Where a behaviour is proved: in memory on paused time, on MongoDB, or on Redis.

use std::time::Duration;

use mongoseal::{Builder, Error, Key, Lease, LeaseState, Mongoseal, Result, store::BoxFuture};
use mongoseal_test_support::{eventually, secs};
use tokio::task::JoinHandle;

/// The longest time that a body waits for something. Nothing in it depends on how fast the machine is.
pub(crate) const PATIENCE: Duration = secs(60);

/// What a store has that others do not.
#[derive(Clone, Copy)]
pub(crate) struct Abilities {
    /// Its reads are current. Where they can be outdated, a handle refuses what needs them.
    pub(crate) has_current_reads: bool,
    /// It notifies handles of grants and revocations. Where it does not, they find them by their own requests.
    pub(crate) has_notifications: bool,
}

/// A store that only one body uses.
pub(crate) struct World {
    pub(crate) abilities: Abilities,
    open: Box<dyn Fn(Builder) -> Mongoseal + Send + Sync>,
    remove: Box<dyn Fn(Key) -> BoxFuture<()> + Send + Sync>,
}

impl World {
    /// A store by what opens a handle on it, and by what removes the record of a key.
    pub(crate) fn new(
        abilities: Abilities,
        open: impl Fn(Builder) -> Mongoseal + Send + Sync + 'static,
        remove: impl Fn(Key) -> BoxFuture<()> + Send + Sync + 'static,
    ) -> Self {
        Self { abilities, open: Box::new(open), remove: Box::new(remove) }
    }

    /// A handle of its own, as another process has.
    pub(crate) fn seal(&self) -> Mongoseal {
        self.build(Mongoseal::builder())
    }

    pub(crate) fn build(&self, builder: Builder) -> Mongoseal {
        (self.open)(builder)
    }

    /// Removes the record of a key, as an operator does by hand.
    pub(crate) async fn remove(&self, key: &str) {
        (self.remove)(key.parse().unwrap()).await;
    }

    /// The state of a lease that somebody else has ended, and whose next refresh is minutes away.
    pub(crate) async fn end_of(&self, lease: &Lease) -> LeaseState {
        if !self.abilities.has_notifications {
            assert!(matches!(lease.refresh().await, Err(Error::Lost { .. })));
        }
        soon(lease.cancelled()).await
    }

    /// Waits until so many are queued for `k`.
    pub(crate) async fn queued(&self, count: usize) {
        self.queued_for("k", count).await;
    }

    /// Waits until so many are queued for a key.
    pub(crate) async fn queued_for(&self, key: &str, count: usize) {
        let seal = self.seal();
        let queue = async || seal.inspect(key).await.unwrap().map_or(0, |seen| seen.queue.len());
        eventually(PATIENCE, "so many wait", async || queue().await == count).await;
    }
}

/// Waits for `k`, for an hour.
pub(crate) fn wait(seal: &Mongoseal) -> JoinHandle<Result<Lease>> {
    tokio::spawn(seal.acquire("k").wait(secs(3_600)).into_future())
}

/// What comes of a future within [`PATIENCE`].
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it comes within a minute")
}

//! The releases of a handle that is shut down, many in one request.
//!
//! Purpose: a shutdown has the time of one operation, and a handle may hold a hundred thousand leases.
//!
//! Mechanism: the tasks of the leases queue up. A few senders each release the leases at the head of the queue by one request,
//! until the queue is empty or the time is over. A lease whose batch was not confirmed is released by itself.
//!
//! If the store cannot release all of them in half of the operation timeout, the others are left to their ttls.
//!
//! Invariants: a lease is released after it has ended here, and before its task ends.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;
use tracing::debug;

use crate::{
    FencingToken, Key,
    hold::Hold,
    record::{Joint, named},
    seal::Inner,
};

/// The most leases of one request.
const MAX_BATCH: usize = 500;

/// The most senders.
const MAX_SENDERS: usize = 4;

/// The part of the operation timeout after which a batch is not waited for: one record in it may be locked.
const PATIENCE: u32 = 5;

/// The part of the operation timeout in which batches are released. A store that needs longer for all of them is left to
/// expire the others: whoever ends a process waits for this.
const TIME: u32 = 2;

/// The leases that wait for their release.
#[derive(Debug, Default)]
pub(crate) struct ShutdownReleases {
    queue: Mutex<Queue>,
    /// How many leases were not released.
    pub(crate) unreleased: AtomicUsize,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    senders: usize,
}

#[derive(Debug)]
struct Waiting {
    key: Key,
    token: FencingToken,
    released: oneshot::Sender<BatchOutcome>,
}

/// What came of the batch of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchOutcome {
    Released,
    /// It was sent, and the store did not confirm all of it.
    Unconfirmed,
    /// There was no other lease to release.
    NotSent,
    /// There was no time to send it.
    OutOfTime,
}

impl ShutdownReleases {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leases of the next request. If there are none, one sender ends.
    fn next(&self) -> Option<Vec<Waiting>> {
        let mut queue = self.queue();
        let many = queue.waiting.len().min(MAX_BATCH);
        if many == 0 {
            queue.senders = queue.senders.saturating_sub(1);
            return None;
        }
        Some(queue.waiting.drain(..many).collect())
    }
}

/// Releases a lease together with others. The time for that is over when the handle gives up.
pub(crate) async fn release(inner: &Arc<Inner>, hold: &Hold) -> BatchOutcome {
    let (released, outcome) = oneshot::channel();
    let begins = {
        let mut queue = inner.shutdown_releases.queue();
        queue.waiting.push_back(Waiting { key: hold.key.clone(), token: hold.token, released });
        let begins = queue.senders < MAX_SENDERS;
        queue.senders = queue.senders.saturating_add(usize::from(begins));
        begins
    };
    if begins {
        inner.spawn(send(Arc::clone(inner)));
    }
    outcome.await.unwrap_or(BatchOutcome::OutOfTime)
}

/// Releases leases as long as some wait for it.
async fn send(inner: Arc<Inner>) {
    let timeout = inner.settings.operation_timeout;
    let part = |of: u32| timeout.checked_div(of).unwrap_or_default();
    let until = inner.give_up().saturating_sub(part(TIME));
    while let Some(batch) = inner.shutdown_releases.next() {
        let left = until.saturating_sub(inner.clock().now());
        let outcome = match batch.len() {
            1 => BatchOutcome::NotSent,
            _ if left.is_zero() => BatchOutcome::OutOfTime,
            _ => release_batch(&inner, &batch, left.min(part(PATIENCE))).await,
        };
        for waiting in batch {
            // The task of a lease may have been dropped with its runtime.
            let _told = waiting.released.send(outcome);
        }
    }
}

async fn release_batch(inner: &Inner, batch: &[Waiting], within: Duration) -> BatchOutcome {
    let leases = named(batch.iter().map(|waiting| (waiting.key.clone(), waiting.token)));
    let released = inner.store.apply_jointly(&leases, &Joint::Release, within).await;
    debug!(leases = leases.len(), ?released, "released at the shutdown");
    if matches!(released, Ok(true)) { BatchOutcome::Released } else { BatchOutcome::Unconfirmed }
}

impl ShutdownReleases {
    /// Notes that a lease was not released.
    pub(crate) fn note_unreleased(&self) {
        self.unreleased.fetch_add(1, Ordering::Relaxed);
    }
}

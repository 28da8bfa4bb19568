//! The releases of a handle that is shut down, many in one request.
//!
//! Purpose: a shutdown has the time of one operation, and a handle may hold a hundred thousand leases.
//!
//! Mechanism: the tasks of the leases queue up. A few senders each release the leases at the head of the queue by one request,
//! until the queue is empty or the time is over. A lease whose batch was not confirmed is released by itself.
//!
//! If there are more than a few leases, they have two fifths of the operation timeout. A store that needs longer for all of
//! them leaves the others to their ttls: whoever ends a process waits for this.
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
const MAX_BATCH: usize = 200;

/// The most senders.
const MAX_SENDERS: usize = 4;

/// The part of the operation timeout after which a batch is not waited for: one record in it may be locked.
const PATIENCE: u32 = 5;

/// So many leases of a batch are few: they are released by themselves until the operation timeout is over.
const FEW: usize = 16;

/// The part of the operation timeout in which more leases than a few are released.
const TIME: f64 = 0.4;

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
    /// It was sent, and the store did not confirm all of it. The lease may be released by itself until this time on the clock.
    Unconfirmed(Duration),
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
    let give_up = inner.give_up();
    let until = give_up.saturating_sub(timeout.mul_f64(1.0 - TIME));
    let patience = timeout.checked_div(PATIENCE).unwrap_or_default();
    while let Some(batch) = inner.shutdown_releases.next() {
        let left = until.saturating_sub(inner.clock().now());
        let outcome = match batch.len() {
            1 => BatchOutcome::NotSent,
            many if left.is_zero() && many > FEW => BatchOutcome::OutOfTime,
            few if few <= FEW => release_batch(&inner, &batch, patience, give_up).await,
            _ => release_batch(&inner, &batch, left.min(patience), until).await,
        };
        for waiting in batch {
            // The task of a lease may have been dropped with its runtime.
            let _told = waiting.released.send(outcome);
        }
    }
}

async fn release_batch(inner: &Inner, batch: &[Waiting], within: Duration, until: Duration) -> BatchOutcome {
    let leases = named(batch.iter().map(|waiting| (waiting.key.clone(), waiting.token)));
    let released = inner.store.apply_jointly(&leases, &Joint::Release, within).await;
    debug!(leases = leases.len(), ?released, "released at the shutdown");
    if matches!(released, Ok(true)) { BatchOutcome::Released } else { BatchOutcome::Unconfirmed(until) }
}

impl ShutdownReleases {
    /// Notes that a lease was not released.
    pub(crate) fn note_unreleased(&self) {
        self.unreleased.fetch_add(1, Ordering::Relaxed);
    }
}

//! The releases of a handle that is shut down, many in one request.
//!
//! Purpose: a shutdown has the time of one operation, and a handle may hold a hundred thousand leases.
//!
//! Mechanism: the tasks of the leases queue up. A few senders each release the leases at the head of the queue by one request,
//! until the queue is empty or the time is over. A lease whose batch was not confirmed is released by itself.
//!
//! More leases than a few are released in two fifths of the operation timeout, because the process cannot end before. The ttls
//! end the leases for which the store needs longer.
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
    Deadline, FencingToken, Key,
    engine::{context::Context, lease_shared::LeaseShared},
    record::{BatchRequest, lease_refs},
};

/// The most leases of one request.
const MAX_BATCH: usize = 200;

/// The most senders.
const MAX_SENDERS: usize = 4;

/// The part of the operation timeout after which a batch is not waited for: one record in it may be locked.
const PATIENCE: u32 = 5;

/// So many leases are few: they are released until the operation timeout is over.
const FEW: usize = 64;

/// The part of the operation timeout in which more leases than a few are released.
const TIME: f64 = 0.4;

/// The leases that wait for their release.
#[derive(Debug, Default)]
pub(crate) struct ShutdownReleases {
    queue: Mutex<Queue>,
    /// How many leases were not released.
    unreleased: AtomicUsize,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<QueuedRelease>,
    /// How many leases there were.
    leases: usize,
    senders: usize,
}

#[derive(Debug)]
struct QueuedRelease {
    key: Key,
    token: FencingToken,
    released: oneshot::Sender<BatchOutcome>,
}

/// What came of the batch of a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BatchOutcome {
    Released,
    /// The lease is released by itself, until this deadline: there is no other one, or the batch was sent and the
    /// store did not confirm all of it.
    Single {
        was_sent: bool,
        until: Deadline,
    },
    /// There was no time to send it.
    OutOfTime,
}

impl ShutdownReleases {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leases of the next request. If there are none, one sender ends.
    fn next(&self) -> Option<Vec<QueuedRelease>> {
        let mut queue = self.queue();
        let many = queue.waiting.len().min(MAX_BATCH);
        if many == 0 {
            queue.senders = queue.senders.saturating_sub(1);
            return None;
        }
        Some(queue.waiting.drain(..many).collect())
    }

    /// Notes that a lease was not released.
    pub(crate) fn note_unreleased(&self) {
        self.unreleased.fetch_add(1, Ordering::Relaxed);
    }

    /// How many leases were not released since this was called the last time.
    pub(crate) fn take_unreleased(&self) -> usize {
        self.unreleased.swap(0, Ordering::Relaxed)
    }

    /// When, on the clock, this part of the operation timeout is over; if there are few leases, all of it.
    pub(crate) fn until(&self, context: &Context, part: f64) -> Deadline {
        let are_few = self.queue().leases <= FEW;
        let rest = if are_few { Duration::ZERO } else { context.settings.operation_timeout.mul_f64(1.0 - part) };
        context.operation_deadline().sooner_by(rest)
    }

    /// Releases a lease together with others. The time for that is over when the handle gives up.
    pub(crate) async fn release(self: &Arc<Self>, context: &Arc<Context>, hold: &LeaseShared) -> BatchOutcome {
        let (released, outcome) = oneshot::channel();
        let begins = {
            let mut queue = self.queue();
            queue.leases = queue.leases.saturating_add(1);
            queue.waiting.push_back(QueuedRelease { key: hold.key.clone(), token: hold.token, released });
            let begins = queue.senders < MAX_SENDERS;
            queue.senders = queue.senders.saturating_add(usize::from(begins));
            begins
        };
        if begins {
            context.spawn(Arc::clone(self).send(Arc::clone(context)));
        }
        outcome.await.unwrap_or(BatchOutcome::OutOfTime)
    }

    /// Releases leases as long as some wait for it.
    async fn send(self: Arc<Self>, context: Arc<Context>) {
        let patience = context.settings.operation_timeout.checked_div(PATIENCE).unwrap_or_default();
        while let Some(batch) = self.next() {
            let until = self.until(&context, TIME);
            let outcome = match batch.len() {
                _ if until.has_passed() => BatchOutcome::OutOfTime,
                1 => BatchOutcome::Single { was_sent: false, until },
                _ => release_batch(&context, &batch, patience, until).await,
            };
            for waiting in batch {
                // The task of a lease may have been dropped with its runtime.
                let _told = waiting.released.send(outcome);
            }
        }
    }
}

async fn release_batch(
    context: &Context,
    batch: &[QueuedRelease],
    patience: Duration,
    until: Deadline,
) -> BatchOutcome {
    let leases = lease_refs(batch.iter().map(|waiting| (waiting.key.clone(), waiting.token)));
    let released = context.store.apply_batch(&leases, &BatchRequest::Release, until.or_after(patience)).await;
    debug!(leases = leases.len(), ?released, "released at the shutdown");
    if matches!(released, Ok(true)) { BatchOutcome::Released } else { BatchOutcome::Single { was_sent: true, until } }
}

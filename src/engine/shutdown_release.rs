//! The releases of a handle that is shut down, many in one request.
//!
//! Purpose: a shutdown has the time of one operation, and a handle may hold a hundred thousand leases.
//!
//! Mechanism: the tasks of the leases queue their releases. A few senders each take a batch from the queue and release
//! it by one request, until the queue is empty or the time is over. If a batch is not confirmed, its leases are
//! released alone.
//!
//! More than a few leases are released within two fifths of the operation timeout, because the process cannot end
//! before. If the store needs longer, the ttls end the other leases.
//!
//! Invariant: a lease is released after it has ended in this process, and before its task ends.

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

/// The most leases in one request.
const MAX_RELEASES: usize = 200;

/// The most concurrent senders.
const MAX_SENDERS: usize = 4;

/// A batch waits for its answer for the operation timeout divided by this: one of its records may be locked.
const ATTEMPT_PART: u32 = 5;

/// The most leases that are few. They are released until the operation timeout is over.
const FEW: usize = 64;

/// The part of the operation timeout in which more than a few leases are released.
const BATCH_PART: f64 = 0.4;

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
    /// How many leases were queued.
    leases: usize,
    senders: usize,
}

#[derive(Debug)]
struct QueuedRelease {
    key: Key,
    token: FencingToken,
    released: oneshot::Sender<BatchOutcome>,
}

/// The result of the batch of a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BatchOutcome {
    Released,
    /// Release the lease alone, until this deadline: it was alone in its batch, or the store did not confirm all of the
    /// batch.
    Single {
        was_sent: bool,
        until: Deadline,
    },
    /// There was no time to send the batch.
    OutOfTime,
}

impl ShutdownReleases {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the leases of the next request. If there are none, one sender ends.
    fn next(&self) -> Option<Vec<QueuedRelease>> {
        let mut queue = self.queue();
        let many = queue.waiting.len().min(MAX_RELEASES);
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

    /// How many leases were not released since the last call.
    pub(crate) fn take_unreleased(&self) -> usize {
        self.unreleased.swap(0, Ordering::Relaxed)
    }

    /// The deadline after this part of the operation timeout. If there are few leases, all of the timeout.
    pub(crate) fn deadline_at(&self, context: &Context, part: f64) -> Deadline {
        let are_few = self.queue().leases <= FEW;
        let rest = if are_few { Duration::ZERO } else { context.settings.operation_timeout.mul_f64(1.0 - part) };
        context.operation_deadline().sooner_by(rest)
    }

    /// Releases a lease in a batch. The time for it ends when the handle gives up.
    pub(crate) async fn release(self: &Arc<Self>, context: &Arc<Context>, lease: &LeaseShared) -> BatchOutcome {
        let (released, outcome) = oneshot::channel();
        let is_sender_needed = {
            let mut queue = self.queue();
            queue.leases = queue.leases.saturating_add(1);
            queue.waiting.push_back(QueuedRelease { key: lease.key.clone(), token: lease.token, released });
            let is_sender_needed = queue.senders < MAX_SENDERS;
            queue.senders = queue.senders.saturating_add(usize::from(is_sender_needed));
            is_sender_needed
        };
        if is_sender_needed {
            context.spawn(Arc::clone(self).send(Arc::clone(context)));
        }
        outcome.await.unwrap_or(BatchOutcome::OutOfTime)
    }

    /// Releases queued leases until there are none.
    async fn send(self: Arc<Self>, context: Arc<Context>) {
        let attempt = context.settings.operation_timeout.checked_div(ATTEMPT_PART).unwrap_or_default();
        while let Some(batch) = self.next() {
            let until = self.deadline_at(&context, BATCH_PART);
            let outcome = match batch.len() {
                _ if until.has_passed() => BatchOutcome::OutOfTime,
                1 => BatchOutcome::Single { was_sent: false, until },
                _ => release_batch(&context, &batch, attempt, until).await,
            };
            for waiting in batch {
                // The task of a lease may have been dropped with its runtime.
                let _sent = waiting.released.send(outcome);
            }
        }
    }
}

async fn release_batch(context: &Context, batch: &[QueuedRelease], attempt: Duration, until: Deadline) -> BatchOutcome {
    let leases = lease_refs(batch.iter().map(|waiting| (waiting.key.clone(), waiting.token)));
    let released = context.store.apply_batch(&leases, &BatchRequest::Release, until.or_after(attempt)).await;
    debug!(leases = leases.len(), ?released, "released at the shutdown");
    if matches!(released, Ok(true)) { BatchOutcome::Released } else { BatchOutcome::Single { was_sent: true, until } }
}

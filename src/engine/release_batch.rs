//! Releases of many leases by one command.
//!
//! Purpose: the leases of a set end together, and a handle that is shut down has the time of one operation for the
//! releases of a hundred thousand leases.
//!
//! Mechanism: the keeper starts a task that sends the command, and a task for each of the leases, which waits for the
//! outcome. If the store does not confirm the command, each lease is released alone. The leases of a group wait in the same way
//! for the call that releases the group.
//!
//! At the shutdown, each lease waits for the work under it, and then joins the next command. More than a few leases without work
//! are released within two fifths of the operation timeout, because the process cannot end before. If the store needs longer,
//! the ttls end the other leases.
//!
//! Invariant: the command is sent after all of its leases have ended in this process, and before their tasks end.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Semaphore, task::yield_now};
use tracing::debug;

use crate::{
    engine::{
        context::Context,
        end_action::{BatchOutcome, PendingOutcome},
    },
    record::{BatchRequest, LeaseRefs, lease_refs},
    types::{deadline::Deadline, key::Key, lock::lock, token::FencingToken},
};

/// The most concurrent commands of the shutdown.
const MAX_SENDERS: usize = 4;

/// A command of the shutdown waits for its answer for the operation timeout divided by this: one of its records may be
/// locked.
const ATTEMPT_PART: u32 = 5;

/// The most leases that are few. They are released until the operation timeout is over.
const FEW: usize = 64;

/// The part of the operation timeout in which a shutdown releases more than a few leases.
const BATCH_PART: f64 = 0.4;

/// Leases that are released together. If it is dropped without an outcome, each lease is released alone.
#[derive(Debug)]
pub(crate) struct ReleaseBatch(PendingOutcome);

impl Drop for ReleaseBatch {
    fn drop(&mut self) {
        drop(self.0.set(BatchOutcome::Unconfirmed));
    }
}

impl ReleaseBatch {
    pub(crate) fn new() -> (Self, PendingOutcome) {
        let pending = PendingOutcome::default();
        (Self(Arc::clone(&pending)), pending)
    }

    pub(crate) fn set(self, outcome: BatchOutcome) {
        drop(self.0.set(outcome));
    }

    /// Sends the command.
    pub(crate) async fn send(self, context: &Context, leases: LeaseRefs, deadline: Deadline) {
        if deadline.has_passed() {
            return self.set(BatchOutcome::Unsent);
        }
        let released = context.store.apply_batch(&leases, &BatchRequest::Release, deadline).await;
        debug!(leases = leases.len(), ?released, "released together");
        self.set(if matches!(released, Ok(true)) { BatchOutcome::Released } else { BatchOutcome::Unconfirmed });
    }
}

/// The most leases of a command of the shutdown.
const MAX_LEASES: usize = 200;

/// The releases of a handle that is shut down.
#[derive(Debug)]
pub(crate) struct ShutdownReleases {
    /// More leases join the last one until it is full. Each has a task that sends it.
    waiting: Mutex<VecDeque<WaitingBatch>>,
    senders: Semaphore,
    /// How many leases the shutdown has taken from the keeper.
    ended: AtomicUsize,
    /// How many of them were not released.
    unreleased: AtomicUsize,
}

/// A batch that is not sent yet.
#[derive(Debug)]
struct WaitingBatch {
    batch: ReleaseBatch,
    leases: Vec<(Key, FencingToken)>,
    /// The latest time until which one of them is released.
    until: Deadline,
}

impl Default for ShutdownReleases {
    fn default() -> Self {
        let [ended, unreleased] = [0, 0].map(AtomicUsize::new);
        Self { waiting: Mutex::default(), senders: Semaphore::new(MAX_SENDERS), ended, unreleased }
    }
}

impl ShutdownReleases {
    /// Adds a lease, which is released until this deadline, to the batch that waits. Also returns whether the caller must start
    /// the task that sends it.
    pub(crate) fn join(&self, lease: (Key, FencingToken), until: Deadline) -> (PendingOutcome, bool) {
        let mut waiting = lock(&self.waiting);
        if let Some(last) = waiting.back_mut().filter(|last| last.leases.len() < MAX_LEASES) {
            last.leases.push(lease);
            last.until = if until.instant() > last.until.instant() { until } else { last.until };
            return (Arc::clone(&last.batch.0), false);
        }
        let (batch, pending) = ReleaseBatch::new();
        waiting.push_back(WaitingBatch { batch, leases: vec![lease], until });
        (pending, true)
    }

    /// Sends the batch that has waited longest, when few are under way.
    pub(crate) async fn send_next(&self, context: &Context) {
        // Leases that have ended with the first one join now.
        yield_now().await;
        let _permit = self.senders.acquire().await;
        let next = lock(&self.waiting).pop_front();
        let Some(WaitingBatch { batch, leases, until }) = next else { return };
        if leases.len() == 1 {
            return batch.set(BatchOutcome::Unsent);
        }
        let attempt = context.settings.operation_timeout.checked_div(ATTEMPT_PART).unwrap_or_default();
        // One of the records may be locked. The others can still be released alone.
        let attempt = attempt.min(until.remaining().mul_f64(0.5));
        batch.send(context, lease_refs(leases), until.or_after(attempt)).await;
    }

    /// When the releases must be confirmed.
    pub(crate) fn deadline(&self, context: &Context) -> Deadline {
        self.deadline_at(context, BATCH_PART)
    }

    /// Notes that the shutdown has taken so many leases from the keeper.
    pub(crate) fn record_ended(&self, leases: usize) {
        self.ended.fetch_add(leases, Ordering::Relaxed);
    }

    /// Notes that a lease was not released.
    pub(crate) fn record_unreleased(&self) {
        self.unreleased.fetch_add(1, Ordering::Relaxed);
    }

    /// How many leases were not released since the last call.
    pub(crate) fn take_unreleased(&self) -> usize {
        self.unreleased.swap(0, Ordering::Relaxed)
    }

    /// The deadline after this part of the operation timeout. If there are few leases, all of the timeout.
    pub(crate) fn deadline_at(&self, context: &Context, part: f64) -> Deadline {
        let are_few = self.ended.load(Ordering::Relaxed) <= FEW;
        let rest = if are_few { Duration::ZERO } else { context.settings.operation_timeout.mul_f64(1.0 - part) };
        context.operation_deadline().sooner_by(rest)
    }
}

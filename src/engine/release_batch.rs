//! Releases of many leases by one command.
//!
//! Purpose: the leases of a set end together, and a handle that is shut down has the time of one operation for the
//! releases of a hundred thousand leases.
//!
//! Mechanism: the tasks of the leases share a batch and wait for its outcome. The first of them sends the command. A lease
//! whose batch was not confirmed is released alone. The leases of a set have a batch of their own. At the shutdown, a task
//! puts its lease into the open batch, which is closed when it is sent or full. The leases of a group have
//! an empty batch, and the call that releases the group determines its outcome.
//!
//! At the shutdown, more than a few leases are released within two fifths of the operation timeout, because the process
//! cannot end before. If the store needs longer, the ttls end the other leases.
//!
//! Invariant: the command is sent after all leases of the batch have ended in this process, and before their tasks end.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{OnceCell, Semaphore},
    task::yield_now,
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    engine::context::Context,
    record::{BatchRequest, lease_refs},
    types::{deadline::Deadline, error::Result, key::Key, lock::lock, token::FencingToken},
};

/// The most leases in one command of the shutdown.
const MAX_LEASES: usize = 200;

/// The most concurrent commands of the shutdown.
const MAX_SENDERS: usize = 4;

/// A command of the shutdown waits for its answer for the operation timeout divided by this: one of its records may be
/// locked.
const ATTEMPT_PART: u32 = 5;

/// The most leases that are few. They are released until the operation timeout is over.
const FEW: usize = 64;

/// The part of the operation timeout in which a shutdown releases more than a few leases.
pub(crate) const BATCH_PART: f64 = 0.4;

/// A lease of a batch, and the token that is cancelled when it has ended in this process.
pub(crate) type Member = (Key, FencingToken, CancellationToken);

/// Leases that are released by one command.
#[derive(Debug, Default)]
pub(crate) struct ReleaseBatch {
    /// `None`: the batch is closed.
    leases: Mutex<Option<Vec<Member>>>,
    outcome: OnceCell<BatchOutcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchOutcome {
    Released,
    /// The store did not confirm the release of all leases: each is released alone.
    Unconfirmed,
    /// The command was not sent, because there was one lease or no time: each lease is released alone.
    Unsent,
}

impl ReleaseBatch {
    pub(crate) fn of(leases: Vec<Member>) -> Arc<Self> {
        Arc::new(Self { leases: Mutex::new(Some(leases)), outcome: OnceCell::new() })
    }

    /// Waits for the outcome. The first call sends the command.
    pub(crate) async fn release(&self, context: &Context, deadline: Deadline) -> BatchOutcome {
        *self.outcome.get_or_init(|| self.send(context, deadline)).await
    }

    /// Waits for the outcome, which `released` determines. If `released` fails or is dropped, each lease is released alone.
    pub(crate) async fn release_by(&self, released: impl Future<Output = Result<()>>) -> Result<()> {
        let released = Box::pin(async { released.await.map(|()| BatchOutcome::Released) });
        self.outcome.get_or_try_init(|| released).await.map(drop)
    }

    async fn send(&self, context: &Context, deadline: Deadline) -> BatchOutcome {
        // If a runtime drops this future, the next task finds no leases, and the command may have been sent.
        let Some(leases) = lock(&self.leases).take() else { return BatchOutcome::Unconfirmed };
        for (_, _, ended) in &leases {
            ended.cancelled().await;
        }
        if leases.len() < 2 || deadline.has_passed() {
            return BatchOutcome::Unsent;
        }
        let refs = lease_refs(leases.into_iter().map(|(key, token, _)| (key, token)));
        let released = context.store.apply_batch(&refs, &BatchRequest::Release, deadline).await;
        // Not in the span of the lease whose task runs this.
        debug!(parent: None, leases = refs.len(), ?released, "released together");
        if matches!(released, Ok(true)) { BatchOutcome::Released } else { BatchOutcome::Unconfirmed }
    }
}

/// The releases of a handle that is shut down.
#[derive(Debug)]
pub(crate) struct ReleaseQueue {
    /// The batch that takes more leases.
    open: Mutex<Arc<ReleaseBatch>>,
    senders: Semaphore,
    /// How many leases were queued.
    queued: AtomicUsize,
    /// How many leases were not released.
    unreleased: AtomicUsize,
}

impl Default for ReleaseQueue {
    fn default() -> Self {
        let [queued, unreleased] = [0, 0].map(AtomicUsize::new);
        Self { open: Mutex::default(), senders: Semaphore::new(MAX_SENDERS), queued, unreleased }
    }
}

impl ReleaseQueue {
    /// Releases a lease in a batch. The time for it ends when the handle gives up.
    pub(crate) async fn release(&self, context: &Context, lease: Member) -> BatchOutcome {
        self.queued.fetch_add(1, Ordering::Relaxed);
        let batch = self.join(lease);
        let send = async || {
            let _permit = self.senders.acquire().await;
            // Lets the tasks that are ready join the batch.
            yield_now().await;
            let attempt = context.settings.operation_timeout.checked_div(ATTEMPT_PART).unwrap_or_default();
            batch.send(context, self.deadline_at(context, BATCH_PART).or_after(attempt)).await
        };
        *batch.outcome.get_or_init(send).await
    }

    /// Puts a lease into the open batch, or into a new one if that is closed or full.
    fn join(&self, lease: Member) -> Arc<ReleaseBatch> {
        let mut open = lock(&self.open);
        if let Some(leases) = lock(&open.leases).as_mut().filter(|leases| leases.len() < MAX_LEASES) {
            leases.push(lease);
            return Arc::clone(&open);
        }
        *open = ReleaseBatch::of(vec![lease]);
        Arc::clone(&open)
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
        let are_few = self.queued.load(Ordering::Relaxed) <= FEW;
        let rest = if are_few { Duration::ZERO } else { context.settings.operation_timeout.mul_f64(1.0 - part) };
        context.operation_deadline().sooner_by(rest)
    }
}

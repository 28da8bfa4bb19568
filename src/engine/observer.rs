//! The observer of a handle.
//!
//! Purpose: a caller counts and times what a handle does: metrics, alerts, tests.
//!
//! Mechanism: the engine calls each observer where the event happens. Without an observer that is one branch.
//!
//! Invariants: each lease that a handle is granted or resumes is reported once, and its end after that, once. A panic of
//! an observer does not reach the keeper.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use tracing::warn;

use crate::{
    engine::{lease_state::ReleaseOutcome, retry_policy::OnHeld},
    types::{
        error::{EndReason, Error, LossCause},
        key::Key,
        token::FencingToken,
    },
};

/// Receives the events of a handle and its leases. [`Builder::observer`](crate::Builder::observer) sets it.
///
/// A closure that takes a [`HandleEvent`] is an observer.
///
/// # Examples
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use mongoseal::{Mongoseal, observe::HandleEvent};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let lost = Arc::new(Mutex::new(Vec::new()));
/// let seen = Arc::clone(&lost);
/// let seal = Mongoseal::builder()
///     .observer(Arc::new(move |event: &HandleEvent<'_>| {
///         if let HandleEvent::Lost { key, cause, .. } = event {
///             seen.lock().unwrap().push(format!("{key} is lost: {cause}"));
///         }
///     }))
///     .in_memory()?;
///
/// let lease = seal.acquire("reports/nightly").await?;
/// seal.revoke("reports/nightly").await?;
/// lease.cancelled().await;
/// seal.shutdown().await;
/// assert_eq!(lost.lock().unwrap().len(), 1);
/// # Ok(())
/// # }
/// ```
pub trait Observer: Send + Sync {
    /// Receives an event, on the task or thread where it happens. It must return at once: a lease is not refreshed
    /// meanwhile. If it panics, a warning is logged and the handle goes on.
    fn observe(&self, event: &HandleEvent<'_>);
}

impl<F> Observer for F
where
    F: Fn(&HandleEvent<'_>) + Send + Sync,
{
    fn observe(&self, event: &HandleEvent<'_>) {
        self(event);
    }
}

/// An event of a handle or of a lease. All durations are on the holders' [`Clock`](crate::store::Clock).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum HandleEvent<'a> {
    /// An acquire got a place in the queue of its key. [`AcquireFinished`](Self::AcquireFinished) follows.
    #[non_exhaustive]
    Queued {
        /// The key.
        key: &'a Key,
        /// How many waiters are ahead.
        position: usize,
        /// Whether it is a campaign for a leadership.
        is_campaign: bool,
    },
    /// An acquire of one key has ended. Each key of a set has its own.
    #[non_exhaustive]
    AcquireFinished {
        /// The key.
        key: &'a Key,
        /// What the acquire does if the key is held.
        mode: AcquireMode,
        /// How it ended.
        outcome: AcquireOutcome<'a>,
        /// How long it took.
        waited: Duration,
        /// The first place in the queue: how many waiters were ahead. `None`: it was not queued.
        position: Option<usize>,
        /// Whether it is a campaign for a leadership.
        is_campaign: bool,
    },
    /// A waiter was notified that it was granted its key. [`AcquireFinished`](Self::AcquireFinished) follows.
    #[non_exhaustive]
    HandedOver {
        /// The key.
        key: &'a Key,
        /// The token of the lease.
        token: FencingToken,
        /// The time from the grant at the store to the notification. It is too long by up to a round trip, because the
        /// store's clock is known only to that. `None`: the store did not send the time of the grant.
        took: Option<Duration>,
    },
    /// A handle has taken up a lease of an earlier process.
    #[non_exhaustive]
    Resumed {
        /// The key.
        key: &'a Key,
        /// The token of the lease.
        token: FencingToken,
    },
    /// A request that refreshes a lease, or a batch of leases, was answered or has failed.
    #[non_exhaustive]
    RefreshFinished {
        /// The key. `None`: a batch.
        key: Option<&'a Key>,
        /// The number of leases in the request.
        leases: usize,
        /// How it ended.
        outcome: RefreshOutcome<'a>,
        /// How long it took, with the read that confirms a loss.
        took: Duration,
    },
    /// The refreshes of a lease are not confirmed: it is lost after the remaining time.
    #[non_exhaustive]
    AtRisk {
        /// The key.
        key: &'a Key,
        /// The token of the lease.
        token: FencingToken,
        /// The time to the deadline.
        remaining: Duration,
        /// Why the last refresh was not confirmed.
        error: &'a Error,
    },
    /// A lease has ended although its holder did not end it.
    #[non_exhaustive]
    Lost {
        /// The key.
        key: &'a Key,
        /// The token of the lease.
        token: FencingToken,
        /// What ended it.
        cause: &'a LossCause,
        /// How long it was held.
        held: Duration,
        /// Whether it was a leadership.
        is_campaign: bool,
    },
    /// The holder has ended a lease: released, dropped or transferred it, or shut its handle down. The request to the store
    /// follows.
    #[non_exhaustive]
    Ended {
        /// The key.
        key: &'a Key,
        /// The token of the lease.
        token: FencingToken,
        /// How the holder ended it.
        reason: EndReason,
        /// How long it was held.
        held: Duration,
        /// Whether it was a leadership.
        is_campaign: bool,
    },
    /// A lease has ended at the store, or the handle has failed to end it there. A lease that was lost before needs no request. An
    /// [orphan](crate::Lease::orphan) has no such event.
    #[non_exhaustive]
    ReleaseFinished {
        /// The key.
        key: &'a Key,
        /// The token of the lease.
        token: FencingToken,
        /// Whether it was held until then.
        outcome: Result<ReleaseOutcome, &'a Error>,
        /// How long it took.
        took: Duration,
    },
    /// The stream of grants and revocations is open. Siblings share it; the handle that opened it reports it.
    StreamOpened,
    /// The stream of grants and revocations has ended, or could not be opened. Without an error, it ended with its handle
    /// or its runtime, another stream replaced it, or no acquire and no lease needs it.
    #[non_exhaustive]
    StreamClosed {
        /// Why it failed. Waiters poll until it is open again.
        error: Option<&'a Error>,
    },
    /// The store has no notifications, or refuses this handle's stream of grants and revocations: its waiters poll until a
    /// stream is opened. The handle retries a refused stream, and reports each refusal.
    #[non_exhaustive]
    PollingStarted {
        /// Why there is no stream.
        error: &'a Error,
    },
}

impl HandleEvent<'_> {
    /// A short name of the event, for logs and metrics.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Queued { .. } => "queued",
            Self::AcquireFinished { .. } => "acquire_finished",
            Self::HandedOver { .. } => "handed_over",
            Self::Resumed { .. } => "resumed",
            Self::RefreshFinished { .. } => "refresh_finished",
            Self::AtRisk { .. } => "at_risk",
            Self::Lost { .. } => "lost",
            Self::Ended { .. } => "ended",
            Self::ReleaseFinished { .. } => "release_finished",
            Self::StreamOpened => "stream_opened",
            Self::StreamClosed { .. } => "stream_closed",
            Self::PollingStarted { .. } => "polling_started",
        }
    }
}

/// What an acquire does if the key is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireMode {
    /// One attempt.
    Once,
    /// The acquire [waits](crate::action::Acquire::wait) in the queue.
    Wait,
    /// The acquire [retries](crate::action::Acquire::retry).
    Retry,
}

/// How an acquire ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum AcquireOutcome<'a> {
    /// The acquire was granted the key with this token.
    Granted(FencingToken),
    /// The acquire failed. If [`Error::Held`] ended a wait, the key was held until the end of the wait.
    Failed(&'a Error),
    /// The caller dropped its future, or the runtime of the acquire ended.
    Abandoned,
}

/// How a request that refreshes leases ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum RefreshOutcome<'a> {
    /// The store has refreshed all leases of the request.
    Confirmed,
    /// The lease is lost, or one lease of a batch is over.
    Refused,
    /// The request failed: the leases live on to their deadlines.
    Failed(&'a Error),
}

impl AcquireMode {
    pub(crate) fn of(on_held: &OnHeld) -> Self {
        match on_held {
            OnHeld::Once => Self::Once,
            OnHeld::Wait(_) => Self::Wait,
            OnHeld::Retry(_) => Self::Retry,
        }
    }
}

/// The observers of a handle. Without one, there is no allocation.
#[derive(Clone, Default)]
pub(crate) struct Observers(Option<Arc<Vec<Arc<dyn Observer>>>>);

impl Observers {
    pub(crate) fn add(&mut self, observer: Arc<dyn Observer>) {
        Arc::make_mut(self.0.get_or_insert_default()).push(observer);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Reports an event.
    pub(crate) fn emit<'a>(&self, event: impl FnOnce() -> HandleEvent<'a>) {
        let Some(observers) = &self.0 else { return };
        let event = event();
        for observer in observers.iter() {
            if catch_unwind(AssertUnwindSafe(|| observer.observe(&event))).is_err() {
                warn!("an observer panicked, and its handle goes on: correct the observer");
            }
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observers").field(&self.0.as_ref().map_or(0, |observers| observers.len())).finish()
    }
}

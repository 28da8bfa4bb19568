//! The listener of a handle and its siblings, which wakes waiters and holders.
//!
//! Purpose: a waiter learns at once that it was granted its key, and a holder that its lease was revoked.
//!
//! Mechanism: one task listens to the store for all of them. A waiter joins before its request is sent. While no task
//! listens, waiters poll, and holders learn of a revocation with their next refresh.
//!
//! Invariant: if `listen_since` returned true, a grant after that hybrid time wakes the waiter, or the end of the listener does.

use std::{mem, sync::Arc, time::Duration};

use tokio::sync::mpsc::{self, UnboundedReceiver};
use tracing::{debug, warn};

use crate::{
    engine::{confirm::loss_of, context::Context, lease_inner::LeaseInner, observer::HandleEvent, retry::Backoff},
    store::answers::Notification,
    types::{
        error::{Error, Result},
        instant::Instant,
        token::HybridTime,
    },
};

/// How often the listener looks whether it has waiters and holders.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How many holders check for a revocation that the listener may have missed.
const MAX_LOSS_CHECKS: usize = 256;
/// How long to wait before listening again after a failure. While the store refuses to notify, the pause doubles each
/// time, up to the longest: a handle then sends one command a minute in vain.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_REOPEN_PAUSE: Duration = Duration::from_secs(60);

/// A waiter of a handle, until this is dropped.
#[derive(Debug)]
pub(crate) struct WaiterGuard {
    context: Arc<Context>,
    number: u64,
    /// What wakes the waiter: its notifications; [`Notification::Started`], if a grant since its last request may have been missed;
    /// or [`Notification::Recheck`] at the end of the listener.
    pub(super) wakes: UnboundedReceiver<Notification>,
}

impl WaiterGuard {
    /// Joins the waiters. Call it before the request is sent that may be queued.
    pub(crate) fn new(context: &Arc<Context>, number: u64) -> Self {
        let (wake, wakes) = mpsc::unbounded_channel();
        context.siblings.registry.lock().waiting.insert(number, wake);
        Self { context: Arc::clone(context), number, wakes }
    }

    /// Starts a listener if there is none. Returns whether grants after `hlc`, the hybrid time of the last answer, are
    /// notified. That is so while the listener is being opened, too: if all waiters polled until it is open, it might
    /// have to wait for them.
    pub(crate) fn listen_since(&self, hlc: HybridTime) -> bool {
        listen(&self.context, hlc)
    }
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        let now = self.context.clock().now();
        let mut state = self.context.siblings.registry.lock();
        state.idle_since = now;
        let wake = state.waiting.remove(&self.number);
        drop(state);
        drop(wake);
    }
}

/// Starts a listener if there is none. Returns whether what happens after `hlc`, the hybrid time of the last answer, is
/// notified.
pub(crate) fn listen(context: &Arc<Context>, hlc: HybridTime) -> bool {
    let now = context.clock().now();
    let mut state = context.siblings.registry.lock();
    if !context.store.capabilities().notifications {
        let before = mem::replace(&mut state.closed_until, Instant::MAX);
        drop(state);
        if before < Instant::MAX {
            let error = &Error::invalid("this store has no notifications: choose another, or let waiters poll");
            context.settings.observers.emit(|| HandleEvent::PollingStarted { error });
        }
        return false;
    }
    if let Some(since) = state.listening {
        return since <= hlc;
    }
    if now < state.closed_until {
        return false;
    }
    state.listening = Some(hlc);
    drop(state);
    context.spawn(read_notifications(Arc::clone(context), hlc));
    true
}

/// Wakes the waiter or holder of a notification, unless it has left.
fn notify(context: &Arc<Context>, notification: Notification) {
    let registry = &context.siblings.registry;
    match notification {
        Notification::Started { since } => {
            {
                let mut state = registry.lock();
                state.listening = Some(since);
                state.refused = None;
            }
            registry.wake_all(|_| notification.clone());
        }
        Notification::Granted { number, .. } => registry.wake(number, notification),
        Notification::Recheck { number } => {
            registry.wake(number, notification);
            let lease = registry.lock().holding.get(&number).map(Arc::clone);
            check_losses(context, lease);
        }
    }
}

/// Makes holders check for a revocation before this hybrid time, which the listener has missed. Each check is a request,
/// so only a few holders check. The others learn of it with their next refresh.
fn check_holders(context: &Arc<Context>, from: HybridTime) {
    let leases: Vec<_> = {
        let state = context.siblings.registry.lock();
        state.holding.values().filter(|lease| lease.hlc < from).take(MAX_LOSS_CHECKS).cloned().collect()
    };
    check_losses(context, leases);
}

/// Checks by reads whether these leases are lost.
fn check_losses(context: &Arc<Context>, leases: impl IntoIterator<Item = Arc<LeaseInner>>) {
    for lease in leases {
        drop(context.spawn(check_loss(Arc::clone(context), lease)));
    }
}

/// Ends the lease if a read shows that it is lost, as a notification said. If the read fails, the next refresh finds the
/// loss.
async fn check_loss(context: Arc<Context>, lease: Arc<LeaseInner>) {
    let deadline = context.operation_deadline().or_at(lease.deadline());
    tokio::select! {
        biased;
        () = lease.ended.cancelled() => {}
        () = context.closing.cancelled() => {}
        read = context.store.read_held(&lease.key, deadline) => {
            if let Some(cause) = read.ok().and_then(|read| loss_of(&lease, read.as_ref())) {
                lease.lose(cause);
            }
        }
    }
}

/// Listens until there has been no waiter and no holder for a while, or until it fails.
async fn read_notifications(context: Arc<Context>, since: HybridTime) {
    let (clock, registry) = (context.clock(), &context.siblings.registry);
    // If a runtime drops this task here, another one must listen.
    let mut ended =
        ListenerEnd { context: Arc::clone(&context), closed_until: Instant::ORIGIN, is_open: false, error: None };
    let (tell, mut notifications) = mpsc::unbounded_channel();
    let mut watching = context.store.notifications(context.siblings.id, since, tell);
    let mut check_at = clock.now().after(IDLE_CHECK_INTERVAL);
    let failed: Result<()> = loop {
        tokio::select! {
            biased;
            () = context.closing.cancelled() => return,
            // Before the notifications, which may never end.
            () = clock.sleep_until(check_at) => {
                let now = clock.now();
                check_at = now.after(IDLE_CHECK_INTERVAL);
                if registry.is_idle(now) {
                    return;
                }
            }
            Some(notification) = notifications.recv() => {
                if let Notification::Started { since: from } = notification {
                    if !mem::replace(&mut ended.is_open, true) {
                        context.settings.observers.emit(|| HandleEvent::StreamOpened);
                    }
                    if from > since {
                        check_holders(&context, from);
                    }
                }
                notify(&context, notification);
            }
            ended = &mut watching => break ended,
        }
    };
    let mut pause = REOPEN_PAUSE;
    if let Err(failed) = failed {
        let mut is_first = false;
        if matches!(failed, Error::Invalid { .. }) {
            let mut state = registry.lock();
            is_first = state.refused.is_none();
            pause = state.refused.get_or_insert_with(|| Backoff::between(REOPEN_PAUSE, LONGEST_REOPEN_PAUSE)).next();
        }
        if is_first {
            warn!(
                error = failed.as_std(),
                "cannot listen to the change stream, so waiters poll, and holders learn of a revocation with their next refresh: remove the cause; the handle retries at least once a minute"
            );
        } else {
            debug!(error = failed.as_std(), "the listener failed: waiters poll until it is open again");
        }
        ended.error = Some(failed);
    }
    ended.closed_until = clock.now().after(pause);
}

/// Notes the end of the listener, however it ends.
struct ListenerEnd {
    context: Arc<Context>,
    closed_until: Instant,
    /// Whether the stream was opened.
    is_open: bool,
    error: Option<Error>,
}

impl Drop for ListenerEnd {
    fn drop(&mut self) {
        let registry = &self.context.siblings.registry;
        {
            let mut state = registry.lock();
            (state.listening, state.closed_until) = (None, self.closed_until);
        }
        registry.wake_all(|number| Notification::Recheck { number });
        let (observers, error) = (&self.context.settings.observers, self.error.as_ref());
        if self.is_open || error.is_some() {
            observers.emit(|| HandleEvent::StreamClosed { error });
        }
        // The store refuses to notify.
        if let Some(error @ Error::Invalid { .. }) = error {
            observers.emit(|| HandleEvent::PollingStarted { error });
        }
    }
}

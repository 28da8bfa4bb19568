//! The waiters and holders of a handle and its siblings, and the listener that wakes them.
//!
//! Purpose: a waiter learns at once that it was granted its key, and a holder that its lease was revoked. An acquire waits
//! for the releases of its own handle and its siblings: so a caller that drops a lease and acquires its key again is not
//! refused because of that lease.
//!
//! Mechanism: one task listens to the store for all of them. A waiter joins before its request is sent. While no task
//! listens, waiters poll, and holders learn of a revocation with their next refresh. A drop or release of a lease marks it as
//! ended before it returns, and an acquire waits while a lease of its key is here that has ended in this process.
//!
//! Invariants:
//! - If `listen_since` returned true, a grant after that hybrid time wakes the waiter, or the end of the listener does.
//! - A lease is removed after the last request for it. Work under a lease of a handle that is shut down holds up no acquire of a
//!   sibling.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{
    engine::{
        confirm, context::Context, end_action::EndAction, lease_inner::LeaseInner, lease_state::LeaseState,
        observer::HandleEvent, retry::Backoff,
    },
    record::StoreTime,
    store::answers::Notification,
    types::{
        acquire_id::HandleId,
        error::{Error, Result},
        instant::Instant,
        key::Key,
        lease_id::LeaseId,
        lock::lock,
        token::{FencingToken, HybridTime},
    },
};

/// How long the listener stays without waiters and holders: to keep it for a while costs less than to open it again.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the listener looks whether it has waiters and holders.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How many holders check for a revocation that the listener may have missed.
const MAX_LOSS_CHECKS: usize = 256;
/// How long to wait before listening again after a failure. While the store refuses to notify, the pause doubles each
/// time, up to the longest: a handle then sends one command a minute in vain.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_REOPEN_PAUSE: Duration = Duration::from_secs(60);

/// Why a waiter is woken.
#[derive(Clone, Debug)]
pub(crate) enum Wake {
    /// The waiter was granted the key with this token.
    Granted {
        token: FencingToken,
        /// When, on the store's clock.
        at: Option<StoreTime>,
    },
    /// Grants are notified from now on. A grant since the waiter's last request may have been missed.
    Listening,
    /// The waiter should poll.
    Poll,
}

/// The waiters and holders of a handle.
#[derive(Debug)]
pub(crate) struct Notifier {
    /// The id by which the store knows the handles.
    handle: HandleId,
    state: Mutex<NotifierState>,
}

// The maps are in order, so that a simulation is the same each time.
#[derive(Debug, Default)]
struct NotifierState {
    /// By the number of their acquire.
    waiting: BTreeMap<u64, UnboundedSender<Wake>>,
    /// The leases that have not ended at the store, by the number of their acquire.
    holding: BTreeMap<u64, Arc<LeaseInner>>,
    /// The same by key, too.
    of_key: BTreeMap<(Key, u64), Arc<LeaseInner>>,
    /// By key: cancelled when a lease of it has ended at the store. Acquires wait for that.
    key_waiters: HashMap<Key, CancellationToken>,
    listening: ListenerState,
    /// The pauses before the next listeners, while the store refuses to notify.
    refused: Option<Backoff>,
    /// When the last waiter or holder left.
    idle_since: Instant,
}

#[derive(Clone, Copy, Debug, Default)]
enum ListenerState {
    /// No task listens. One can be started.
    #[default]
    Closed,
    /// No task listens, and none is started before this time.
    ClosedUntil(Instant),
    /// The listener is being opened. It will receive what happens after this hybrid time, or after a later one that it then
    /// reports.
    Opening(HybridTime),
    /// The listener receives what happens after this hybrid time.
    Open(HybridTime),
}

/// A waiter of a handle, until this is dropped.
#[derive(Debug)]
pub(crate) struct WaiterGuard {
    context: Arc<Context>,
    notifier: Arc<Notifier>,
    number: u64,
    wakes: UnboundedReceiver<Wake>,
}

impl WaiterGuard {
    /// Joins the waiters. Call it before the request is sent that may be queued.
    pub(crate) fn new(context: &Arc<Context>, notifier: &Arc<Notifier>, number: u64) -> Self {
        let (wake, wakes) = mpsc::unbounded_channel();
        lock(&notifier.state).waiting.insert(number, wake);
        Self { context: Arc::clone(context), notifier: Arc::clone(notifier), number, wakes }
    }

    /// Waits until the waiter is woken.
    pub(crate) async fn woken(&mut self) -> Wake {
        match self.wakes.recv().await {
            Some(wake) => wake,
            // The sender lives as long as this guard.
            None => std::future::pending().await,
        }
    }

    /// Starts a listener if there is none. Returns whether grants after `hlc`, the hybrid time of the last answer, are
    /// notified. That is so while the listener is being opened, too: if all waiters polled until it is open, it might
    /// have to wait for them.
    pub(crate) fn listen_since(&self, hlc: HybridTime) -> bool {
        self.notifier.listen(&self.context, hlc)
    }
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.notifier.leave(&self.context, |state| drop(state.waiting.remove(&self.number)));
    }
}

impl NotifierState {
    fn add_holder(&mut self, lease: &Arc<LeaseInner>) {
        let number = lease.acquire_id.number;
        self.holding.insert(number, Arc::clone(lease));
        self.of_key.insert((lease.key.clone(), number), Arc::clone(lease));
    }

    /// Refuses a lease id of a lease that is held or being ended: two leases would both believe in one holder. A lease that
    /// was lost or orphaned sends nothing more.
    fn ensure_unheld(&self, id: LeaseId) -> Result<()> {
        let is_in_use = |lease: &LeaseInner| match lease.state() {
            // A shutdown releases it, whatever its holder has set since.
            LeaseState::Held | LeaseState::AtRisk | LeaseState::SHUT_DOWN => true,
            LeaseState::Lost { .. } => false,
            LeaseState::Ended { .. } => !matches!(lease.end_action.get(), Some(EndAction::Orphan)),
        };
        if self.holding.values().any(|lease| lease.id == id && is_in_use(lease)) {
            return Err(Error::invalid(format!(
                "the lease id {id} is in use by a lease of this handle or a sibling: wait until that has ended"
            )));
        }
        Ok(())
    }
}

impl Notifier {
    /// For the handles with this id.
    pub(crate) fn new(handle: HandleId) -> Self {
        Self { handle, state: Mutex::default() }
    }

    /// Adds a holder.
    pub(crate) fn add_holder(&self, lease: &Arc<LeaseInner>) {
        lock(&self.state).add_holder(lease);
    }

    /// Refuses a lease id that a lease of the handles uses.
    pub(crate) fn ensure_unheld(&self, id: LeaseId) -> Result<()> {
        lock(&self.state).ensure_unheld(id)
    }

    /// Adds the holder of a lease that was resumed, unless another resume of it came first.
    pub(crate) fn add_resumed(&self, lease: &Arc<LeaseInner>) -> Result<()> {
        let mut state = lock(&self.state);
        state.ensure_unheld(lease.id)?;
        state.add_holder(lease);
        Ok(())
    }

    pub(crate) fn remove_holder(&self, context: &Context, lease: &LeaseInner) {
        let number = lease.acquire_id.number;
        let waiters = self.leave(context, |state| {
            state.holding.remove(&number);
            state.of_key.remove(&(lease.key.clone(), number));
            state.key_waiters.remove(&lease.key)
        });
        // Not under the lock: it wakes the acquires that wait.
        if let Some(waiters) = waiters {
            waiters.cancel();
        }
    }

    /// Waits until each lease of this key that a caller has ended or that was lost has ended at the store. Those that end later
    /// are not waited for.
    pub(crate) async fn wait_for_ends(&self, key: &Key) {
        let mut ended: Option<Vec<u64>> = None;
        loop {
            let removed = {
                let mut state = lock(&self.state);
                let ended = ended.get_or_insert_with(|| {
                    let of_key = state.of_key.range((key.clone(), 0)..=(key.clone(), u64::MAX));
                    let has_ended = |lease: &LeaseInner| {
                        let waits_for_work = lease.recorded_state() == LeaseState::SHUT_DOWN && lease.is_at_work();
                        lease.ended.is_cancelled() && !waits_for_work
                    };
                    of_key.filter(|(_, lease)| has_ended(lease)).map(|((_, number), _)| *number).collect()
                });
                ended.retain(|number| state.holding.contains_key(number));
                if ended.is_empty() {
                    return;
                }
                state.key_waiters.entry(key.clone()).or_default().clone()
            };
            removed.cancelled().await;
        }
    }

    /// Removes a waiter or a holder.
    fn leave<T>(&self, context: &Context, leave: impl FnOnce(&mut NotifierState) -> T) -> T {
        let now = context.clock().now();
        let mut state = lock(&self.state);
        state.idle_since = now;
        leave(&mut state)
    }

    /// Starts a listener if there is none. Returns whether what happens after `hlc`, the hybrid time of the last answer, is
    /// notified.
    pub(crate) fn listen(self: &Arc<Self>, context: &Arc<Context>, hlc: HybridTime) -> bool {
        let now = context.clock().now();
        let mut state = lock(&self.state);
        if !context.store.capabilities().notifications {
            let was = mem::replace(&mut state.listening, ListenerState::ClosedUntil(Instant::MAX));
            drop(state);
            if matches!(was, ListenerState::Closed) {
                let error = &Error::invalid("this store has no notifications: choose another, or let waiters poll");
                context.settings.observers.emit(|| HandleEvent::PollingStarted { error });
            }
            return false;
        }
        match state.listening {
            ListenerState::Opening(since) | ListenerState::Open(since) => return since <= hlc,
            ListenerState::ClosedUntil(time) if now < time => return false,
            ListenerState::ClosedUntil(_) | ListenerState::Closed => {}
        }
        state.listening = ListenerState::Opening(hlc);
        drop(state);
        context.spawn(listen(Arc::clone(context), Arc::clone(self), hlc));
        true
    }

    /// Whether no task listens, although one can be started.
    pub(crate) fn is_listener_missing(&self, now: Instant) -> bool {
        match lock(&self.state).listening {
            ListenerState::Closed => true,
            ListenerState::ClosedUntil(time) => time <= now,
            ListenerState::Opening(_) | ListenerState::Open(_) => false,
        }
    }

    /// The leases that the handles hold.
    pub(crate) fn leases(&self) -> Vec<Arc<LeaseInner>> {
        lock(&self.state).holding.values().map(Arc::clone).collect()
    }

    /// Wakes the waiter or holder of a notification, unless it has left.
    fn notify(&self, context: &Arc<Context>, notification: &Notification) {
        match notification {
            Notification::Started { since } => {
                {
                    let mut state = lock(&self.state);
                    state.listening = ListenerState::Open(*since);
                    state.refused = None;
                }
                self.wake(&Wake::Listening);
            }
            Notification::Granted { number, token, at } => {
                self.wake_one(*number, Wake::Granted { token: *token, at: *at });
            }
            Notification::Recheck { number } => {
                self.wake_one(*number, Wake::Poll);
                let lease = lock(&self.state).holding.get(number).map(Arc::clone);
                check_losses(context, lease);
            }
        }
    }

    /// Makes holders check for a revocation before this hybrid time, which the listener has missed. Each check is a request,
    /// so only a few holders check. The others learn of it with their next refresh.
    fn check_holders(&self, context: &Arc<Context>, from: HybridTime) {
        let leases: Vec<_> = lock(&self.state)
            .holding
            .values()
            .filter(|lease| lease.hlc < from)
            .take(MAX_LOSS_CHECKS)
            .cloned()
            .collect();
        check_losses(context, leases);
    }

    /// Whether there has been no waiter and no holder for a while.
    fn is_idle(&self, now: Instant) -> bool {
        let state = lock(&self.state);
        state.waiting.is_empty() && state.holding.is_empty() && state.idle_since.after(IDLE_TIMEOUT) <= now
    }

    /// Notes that the listener has ended, and makes the waiters poll.
    fn record_listener_end(&self, listening: ListenerState) {
        lock(&self.state).listening = listening;
        self.wake(&Wake::Poll);
    }

    /// Wakes one waiter, not under the lock.
    fn wake_one(&self, number: u64, why: Wake) {
        let wake = lock(&self.state).waiting.get(&number).cloned();
        if let Some(wake) = wake {
            drop(wake.send(why));
        }
    }

    /// Wakes all waiters, not under the lock.
    fn wake(&self, why: &Wake) {
        let waiting: Vec<_> = lock(&self.state).waiting.values().cloned().collect();
        for wake in waiting {
            drop(wake.send(why.clone()));
        }
    }
}

/// Checks by reads whether these leases are lost.
fn check_losses(context: &Arc<Context>, leases: impl IntoIterator<Item = Arc<LeaseInner>>) {
    for lease in leases {
        drop(context.spawn(confirm::check_loss(Arc::clone(context), lease)));
    }
}

/// Listens until there has been no waiter and no holder for a while, or until it fails.
async fn listen(context: Arc<Context>, notifier: Arc<Notifier>, since: HybridTime) {
    let clock = context.clock();
    // If a runtime drops this task here, another one must listen.
    let mut ended = ListenerEnd {
        context: Arc::clone(&context),
        notifier: Arc::clone(&notifier),
        listening: ListenerState::Closed,
        is_open: false,
        is_refused: false,
        error: None,
    };
    let (tell, mut notifications) = mpsc::unbounded_channel();
    let mut watching = context.store.notifications(notifier.handle, since, tell);
    let mut check_at = clock.now().after(IDLE_CHECK_INTERVAL);
    let failed: Result<()> = loop {
        tokio::select! {
            biased;
            () = context.closing.cancelled() => return,
            // Before the notifications, which may never end.
            () = clock.sleep_until(check_at) => {
                let now = clock.now();
                check_at = now.after(IDLE_CHECK_INTERVAL);
                if notifier.is_idle(now) {
                    return;
                }
            }
            Some(notification) = notifications.recv() => {
                if let Notification::Started { since: from } = notification {
                    ended.record_open();
                    if from > since {
                        notifier.check_holders(&context, from);
                    }
                }
                notifier.notify(&context, &notification);
            }
            ended = &mut watching => break ended,
        }
    };
    let mut pause = REOPEN_PAUSE;
    if let Err(failed) = failed {
        let mut is_first = false;
        if matches!(failed, Error::Invalid { .. }) {
            let mut state = lock(&notifier.state);
            is_first = state.refused.is_none();
            pause = state.refused.get_or_insert_with(|| Backoff::between(REOPEN_PAUSE, LONGEST_REOPEN_PAUSE)).next();
            ended.is_refused = true;
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
    ended.listening = ListenerState::ClosedUntil(clock.now().after(pause));
}

/// Notes the end of the listener, however it ends.
struct ListenerEnd {
    context: Arc<Context>,
    notifier: Arc<Notifier>,
    listening: ListenerState,
    /// Whether the stream was opened.
    is_open: bool,
    /// Whether the store refuses to notify.
    is_refused: bool,
    error: Option<Error>,
}

impl ListenerEnd {
    fn record_open(&mut self) {
        if !mem::replace(&mut self.is_open, true) {
            self.context.settings.observers.emit(|| HandleEvent::StreamOpened);
        }
    }
}

impl Drop for ListenerEnd {
    fn drop(&mut self) {
        self.notifier.record_listener_end(self.listening);
        let (observers, error) = (&self.context.settings.observers, self.error.as_ref());
        if self.is_open || error.is_some() {
            observers.emit(|| HandleEvent::StreamClosed { error });
        }
        if let Some(error) = error.filter(|_| self.is_refused) {
            observers.emit(|| HandleEvent::PollingStarted { error });
        }
    }
}

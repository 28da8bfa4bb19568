//! Waiters and holders of a handle, and the one listener that wakes them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tracing::{debug, warn};

use crate::{
    Error, FencingToken, HandleId, HybridTime, Result,
    engine::{context::Context, lease_shared::LeaseShared, pending_releases::PendingReleases},
    store::Notification,
};

/// How long the listener stays without waiters: opening it costs more than keeping it for a while.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the listener says that its runtime is driven, and how long after that another one listens in its place.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
const BEAT_TIMEOUT: Duration = Duration::from_secs(3);
/// How many holders look for a revocation that the listener may not have heard of.
const MAX_LOOKS: usize = 256;
/// How long to wait before listening again after it failed.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

/// Why a waiter is woken.
#[derive(Clone, Debug)]
pub(crate) enum Wake {
    /// It was handed the key with this token.
    Handed(FencingToken),
    /// From now on it is heard what is handed over, perhaps not all that was since it asked.
    Listening,
    /// It should ask.
    Ask,
}

/// The waiters and holders of a handle.
#[derive(Debug)]
pub(crate) struct Notifier {
    /// By which the store tells the handle from others.
    handle: HandleId,
    state: Mutex<Listeners>,
}

#[derive(Debug, Default)]
struct Listeners {
    /// By the number of their acquire.
    waiting: HashMap<u64, UnboundedSender<Wake>>,
    /// By the number of their acquire.
    holding: HashMap<u64, Arc<LeaseShared>>,
    listening: Listening,
    /// Which listener that is, and when, on the clock, it last said that its runtime is driven.
    listener: u64,
    beat_at: Duration,
    /// When, on the clock, the last of them left.
    idle_since: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
enum Listening {
    /// Not; it may be tried from this time on.
    #[default]
    Not,
    /// Not again before this time on the clock.
    NotBefore(Duration),
    /// The listener is being opened, and will hear of all that is handed over after this tick, or after a later one that it
    /// then tells.
    Opening(HybridTime),
    /// All that is handed over after this tick is heard of.
    Since(HybridTime),
    /// The store cannot tell.
    Never,
}

/// A waiter among those of its handle, until this is dropped.
#[derive(Debug)]
pub(crate) struct WaiterGuard {
    context: Arc<Context>,
    notifier: Arc<Notifier>,
    number: u64,
    wakes: UnboundedReceiver<Wake>,
}

impl WaiterGuard {
    /// Joins the waiters: to be done before the request that may be queued is sent.
    pub(crate) fn new(context: &Arc<Context>, notifier: &Arc<Notifier>, number: u64) -> Self {
        let (wake, wakes) = mpsc::unbounded_channel();
        notifier.state().waiting.insert(number, wake);
        Self { context: Arc::clone(context), notifier: Arc::clone(notifier), number, wakes }
    }

    /// Waits to be woken.
    pub(crate) async fn woken(&mut self) -> Wake {
        match self.wakes.recv().await {
            Some(wake) => wake,
            // The other end goes with this one.
            None => std::future::pending().await,
        }
    }

    /// Sees to it that somebody listens; says whether what is handed over after `asked`, the tick of
    /// the last answer, will be heard of. Where the listener is still being opened that is so, too:
    /// were everybody to ask until it is open, it might wait for them.
    pub(crate) fn is_heard(&self, asked: HybridTime) -> bool {
        self.notifier.listen(&self.context, asked)
    }
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.notifier.leave(&self.context, |state| drop(state.waiting.remove(&self.number)));
    }
}

/// A holder among those of its handle, until this is dropped.
#[derive(Debug)]
pub(crate) struct HolderGuard {
    context: Arc<Context>,
    notifier: Arc<Notifier>,
    releases: Arc<PendingReleases>,
    number: u64,
}

impl HolderGuard {
    pub(crate) fn new(
        context: &Arc<Context>,
        notifier: &Arc<Notifier>,
        releases: &Arc<PendingReleases>,
        (number, lease): (u64, &Arc<LeaseShared>),
    ) -> Self {
        notifier.state().holding.insert(number, Arc::clone(lease));
        let (context, notifier, releases) = (Arc::clone(context), Arc::clone(notifier), Arc::clone(releases));
        Self { context, notifier, releases, number }
    }

    /// Sees to it that somebody listens, from `asked`, the tick of the last answer, on.
    pub(crate) fn listen(&self, asked: HybridTime) {
        self.notifier.listen(&self.context, asked);
    }
}

impl Drop for HolderGuard {
    fn drop(&mut self) {
        let mut lease = None;
        self.notifier.leave(&self.context, |state| lease = state.holding.remove(&self.number));
        if let Some(lease) = lease {
            self.releases.end(&lease.key, &lease.release);
        }
    }
}

impl Listeners {
    /// Whether the runtime of the listener is not driven any more, as far as can be told.
    fn is_silent(&self, now: Duration) -> bool {
        self.beat_at.saturating_add(BEAT_TIMEOUT) < now
    }
}

impl Notifier {
    /// Of the handles with this id.
    pub(crate) fn new(handle: HandleId) -> Self {
        Self { handle, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, Listeners> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A waiter or holder leaves.
    fn leave(&self, context: &Context, leave: impl FnOnce(&mut Listeners)) {
        let now = context.clock().now();
        let mut state = self.state();
        leave(&mut state);
        state.idle_since = now;
    }

    /// Sees to it that a task listens; returns whether what happens after `asked` will be heard of.
    fn listen(self: &Arc<Self>, context: &Arc<Context>, asked: HybridTime) -> bool {
        let now = context.clock().now();
        let mut state = self.state();
        match state.listening {
            Listening::Opening(since) | Listening::Since(since) if !state.is_silent(now) => return since <= asked,
            Listening::NotBefore(time) if now < time => return false,
            Listening::Never => return false,
            _ => {}
        }
        state.listening = Listening::Opening(asked);
        state.listener = state.listener.saturating_add(1);
        state.beat_at = now;
        let listener = state.listener;
        drop(state);
        context.spawn(listen(Arc::clone(context), Arc::clone(self), asked, listener));
        true
    }

    /// Whether no task listens, though one could.
    pub(crate) fn is_deaf(&self, now: Duration) -> bool {
        let state = self.state();
        match state.listening {
            Listening::Not | Listening::NotBefore(_) => true,
            Listening::Opening(_) | Listening::Since(_) => state.is_silent(now),
            Listening::Never => false,
        }
    }

    /// The leases that are held here.
    pub(crate) fn holds(&self) -> Vec<Arc<LeaseShared>> {
        self.state().holding.values().map(Arc::clone).collect()
    }

    /// Wakes whom it concerns. A waiter that has just left is not there to be woken.
    fn tell(&self, told: &Notification, listener: u64) {
        match told {
            Notification::Started { since } => {
                if self.is_listener(listener, |state| state.listening = Listening::Since(*since)) {
                    self.wake(&Wake::Listening);
                }
            }
            Notification::Granted { number, token } => self.wake_one(*number, Wake::Handed(*token)),
            Notification::Revoked { number } => {
                self.wake_one(*number, Wake::Ask);
                let hold = self.state().holding.get(number).map(Arc::clone);
                if let Some(hold) = hold {
                    hold.commands.look();
                }
            }
        }
    }

    /// Makes holders look for a revocation before this tick, which the listener did not hear of. Each look is a request, so only
    /// a few of them look. The others learn of it with their next refresh.
    fn look_at_holders(&self, from: HybridTime) {
        let holds: Vec<_> =
            self.state().holding.values().filter(|hold| hold.tick < from).take(MAX_LOOKS).cloned().collect();
        for hold in holds {
            hold.commands.look();
        }
    }

    /// Whether nobody has waited or held for a while.
    fn is_idle(&self, now: Duration) -> bool {
        let state = self.state();
        state.waiting.is_empty() && state.holding.is_empty() && state.idle_since.saturating_add(IDLE_TIMEOUT) <= now
    }

    /// Whether no other one listens in place of this listener. If so, `note` is noted.
    fn is_listener(&self, listener: u64, note: impl FnOnce(&mut Listeners)) -> bool {
        let mut state = self.state();
        let is_listener = state.listener == listener;
        if is_listener {
            note(&mut state);
        }
        is_listener
    }

    /// The listener has ended: from here on waiters ask.
    fn unheard(&self, listening: Listening, listener: u64) {
        if self.is_listener(listener, |state| state.listening = listening) {
            self.wake(&Wake::Ask);
        }
    }

    /// Wakes one waiter, after the lock has been released.
    fn wake_one(&self, number: u64, why: Wake) {
        let wake = self.state().waiting.get(&number).cloned();
        if let Some(wake) = wake {
            drop(wake.send(why));
        }
    }

    /// Wakes all waiters, after the lock has been released.
    fn wake(&self, why: &Wake) {
        let waiting: Vec<_> = self.state().waiting.values().cloned().collect();
        for wake in waiting {
            drop(wake.send(why.clone()));
        }
    }
}

/// Listens for the waiters and holders of a handle until there were none for a while, another one listens in its place, or
/// listening fails. Another one does if the runtime of this one is not driven for a while.
async fn listen(context: Arc<Context>, notifier: Arc<Notifier>, since: HybridTime, listener: u64) {
    let clock = context.clock();
    // Should this task be dropped where it stands, somebody else has to listen.
    let mut ended = Ends { notifier: Arc::clone(&notifier), listening: Listening::Not, listener };
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut watching = context.store.watch(notifier.handle, since, tell);
    let mut beat_at = clock.now().saturating_add(BEAT_INTERVAL);
    let failed: Result<()> = loop {
        tokio::select! {
            biased;
            () = context.closing.cancelled() => return,
            // Before what is told, of which there may always be more.
            () = clock.sleep_until(beat_at) => {
                let now = clock.now();
                beat_at = now.saturating_add(BEAT_INTERVAL);
                if !notifier.is_listener(listener, |state| state.beat_at = now) || notifier.is_idle(now) {
                    return;
                }
            }
            Some(told) = told.recv() => {
                if let Notification::Started { since: from } = told && from > since {
                    notifier.look_at_holders(from);
                }
                notifier.tell(&told, listener);
            }
            ended = &mut watching => break ended,
        }
    };
    ended.listening = Listening::NotBefore(clock.now().saturating_add(REOPEN_PAUSE));
    if let Err(error) = failed {
        let never = matches!(error, Error::Invalid { .. });
        let error: &(dyn std::error::Error + 'static) = &error;
        if never {
            warn!(
                error,
                "cannot listen to the change stream: from now on waiters poll, and holders learn of a revocation with their next refresh; remove the cause, and make the handle anew"
            );
            ended.listening = Listening::Never;
        } else {
            debug!(error, "listening failed: waiters ask until it works again");
        }
    }
}

/// Says how the listener ended, in whatever way it does.
struct Ends {
    notifier: Arc<Notifier>,
    listening: Listening,
    listener: u64,
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.notifier.unheard(self.listening, self.listener);
    }
}

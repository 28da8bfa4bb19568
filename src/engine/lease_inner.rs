//! The state that a lease shares with its keeper: until when it is held, and how it ended.
//!
//! Mechanism: all that changes is plain data behind one lock. A change of the state is sent to the followers after the
//! lock is released.
//!
//! Invariants:
//! - A lease that has ended, or whose deadline was found passed, is never valid again. A refresh and all who compare the
//!   deadline read the clock under the lock, so a refresh never moves a deadline that another thread has found passed.
//! - The first end stays. Each lease reports its start once, and after that its end, once.
//! - If a lease has ended before its release checks for work, work that begins later finds the lease ended.
//! - Under the lock nothing is woken, no observer is called, and no other lock of this crate is taken. So whatever is
//!   woken, and a follower that borrows the state, can call any method.

use std::{
    fmt, mem,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};

use tokio::sync::{SetOnce, watch};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use tracing::{Span, debug, warn};

use crate::{
    engine::{
        end_action::{End, EndAction},
        lease_state::LeaseState,
        mailbox::{Mailbox, Message, RefreshCommand},
        observer::{HandleEvent, Observers},
    },
    record::{LeaseSpec, StoredValue},
    types::{
        acquire_id::AcquireId,
        clock::Clock,
        error::{EndReason, Error, LossCause, Result},
        instant::Instant,
        key::Key,
        lease_id::LeaseId,
        lock,
        owner::Owner,
        token::{FencingToken, HybridTime},
        ttl::Ttl,
    },
};

/// A lease whose deadline is a thousand years on the clock or later has no expiry.
const NO_EXPIRY: Instant = Instant::at(Duration::from_secs(1_000 * 365 * 24 * 3600));

/// How long a refresh of a long ttl may be unanswered before the lease is at risk.
const LONGEST_SILENCE: Duration = Duration::from_secs(5);

/// The part of the remaining time after which a silent store puts the lease at risk at the latest.
const LAST_WARNING: f64 = 0.94;

/// The state that a lease shares with its keeper.
pub(crate) struct LeaseInner {
    pub(crate) key: Key,
    pub(crate) id: LeaseId,
    /// The acquire by which the store knows the holder.
    pub(crate) acquire_id: AcquireId,
    /// The owner in the record. A resumed lease keeps the owner of its acquire.
    pub(crate) owner: Owner,
    pub(crate) token: FencingToken,
    /// How much longer than its ttl the store keeps the key, in milliseconds.
    pub(crate) grace: u64,
    /// The store's hybrid time at the last answer before the grant, or at the grant.
    pub(crate) hlc: HybridTime,
    pub(super) clock: Clock,
    /// Where its keeper gets messages.
    keeper: Arc<Mailbox>,
    /// The last write of the value under this lease that is known. 0: none.
    pub(crate) last_write: AtomicU64,
    /// How long the holder may report no progress.
    stalled_after: Option<Duration>,
    held: Mutex<Held>,
    /// Whether it is on its way to its caller: a shutdown takes it back.
    pub(crate) is_ungiven: AtomicBool,
    /// What happens to the lease at the store instead of a plain release.
    pub(crate) end_action: OnceLock<EndAction>,
    /// The span of a caller that waits for the release. It is taken out of here, because a span ends when all of its handles
    /// are dropped, and the state of a lease can outlive the release.
    pub(crate) caller: Mutex<Option<Box<Span>>>,
    /// What was done at the store when the lease had ended: set after the last request. `None`: a call took the error.
    pub(crate) done: SetOnce<Mutex<Option<Result<End>>>>,
    /// Cancelled after the state has become `Lost` or `Ended`.
    pub(crate) ended: CancellationToken,
}

/// What changes while a lease is held.
struct Held {
    state: LeaseState,
    /// Whether no other lease can be granted while this one is held. A downgrade ends that.
    is_exclusive: bool,
    granted_value: GrantedValue,
    /// Only increases.
    deadline: Instant,
    /// The end of the maximum hold: no refresh moves the deadline past it.
    last_deadline: Option<Instant>,
    /// How long the last confirmed request took.
    round_trip: Duration,
    /// When the holder has stalled unless it reports progress before.
    stalls_at: Option<Instant>,
    /// Sends the state to its followers. Few leases have any, and it is larger than all the rest.
    followers: Option<watch::Sender<LeaseState>>,
    /// Another token that is cancelled when the lease ends.
    linked: Option<CancellationToken>,
    /// What reports its events. Boxed, because few handles have an observer.
    observed: Option<Box<ObservedLease>>,
    /// The work that must stop when the lease ends. Few leases have any.
    work: Option<TaskTracker>,
}

/// The value that the key had at the grant.
pub(crate) enum GrantedValue {
    /// It must be read: the answer did not have it, or it may have changed since.
    Unknown,
    /// That of the answer, if the key had one.
    Known(Option<Box<StoredValue>>),
}

/// What reports the events of a lease.
struct ObservedLease {
    observers: Observers,
    /// When the lease began.
    since: Instant,
    is_campaign: bool,
}

impl Held {
    /// The state after the deadline.
    fn expired(&self) -> LeaseState {
        let is_last = self.last_deadline == Some(self.deadline);
        LeaseState::Lost { cause: if is_last { LossCause::HeldTooLong } else { LossCause::Expired } }
    }
}

impl LeaseInner {
    pub(crate) fn new(
        key: Key,
        terms: &LeaseSpec,
        (token, hlc): (FencingToken, HybridTime),
        clock: Clock,
        (deadline, last_deadline): (Instant, Option<Instant>),
        stalled_after: Option<Duration>,
        keeper: &Arc<Mailbox>,
    ) -> Self {
        let held = Held {
            state: LeaseState::Held,
            is_exclusive: terms.sharing.is_exclusive(),
            granted_value: GrantedValue::Unknown,
            deadline: last_deadline.into_iter().fold(deadline, Instant::min),
            last_deadline,
            round_trip: Duration::ZERO,
            stalls_at: stalled_after.map(|after| clock.now().after(after)),
            followers: None,
            linked: None,
            observed: None,
            work: None,
        };
        Self {
            key,
            id: terms.lease,
            acquire_id: terms.acquire_id,
            owner: terms.owner.clone(),
            token,
            grace: terms.grace,
            hlc,
            clock,
            keeper: Arc::clone(keeper),
            last_write: AtomicU64::new(0),
            stalled_after,
            held: Mutex::new(held),
            is_ungiven: AtomicBool::new(false),
            end_action: OnceLock::new(),
            caller: Mutex::new(None),
            done: SetOnce::new(),
            ended: CancellationToken::new(),
        }
    }

    /// Locks what changes. Release it before anything is woken or called.
    fn lock(&self) -> MutexGuard<'_, Held> {
        lock::lock(&self.held)
    }

    /// Applies a change under the lock, and then sends the state to the followers, if it was not sent before. The state is
    /// read anew for that: if two threads send at once, the latest state is sent last, and an end is sent before either of
    /// them cancels the token.
    fn update<T>(&self, change: impl FnOnce(&mut Held) -> T) -> T {
        let (changed, followers) = {
            let mut held = self.lock();
            (change(&mut held), held.followers.clone())
        };
        if let Some(followers) = followers {
            followers.send_if_modified(|sent| {
                let before = mem::replace(sent, self.lock().state.clone());
                before != *sent
            });
        }
        changed
    }

    /// Whether no other lease can be granted while this one is held.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.lock().is_exclusive
    }

    /// Notes that a downgrade is sent: from now on other holders may share the key.
    pub(crate) fn share(&self) {
        self.lock().is_exclusive = false;
    }

    /// Notes the value that the key had in the answer that granted it.
    pub(crate) fn record_granted_value(&self, value: Option<Box<StoredValue>>) {
        self.lock().granted_value = GrantedValue::Known(value);
    }

    /// Takes the value of the grant. It is unknown from then on.
    pub(crate) fn take_granted_value(&self) -> GrantedValue {
        mem::replace(&mut self.lock().granted_value, GrantedValue::Unknown)
    }

    /// When the lease ends.
    pub(crate) fn deadline(&self) -> Instant {
        self.lock().deadline
    }

    /// Whether there is no deadline.
    pub(crate) fn has_no_expiry(&self) -> bool {
        self.deadline() >= NO_EXPIRY
    }

    /// The time to the deadline.
    pub(crate) fn remaining(&self) -> Duration {
        self.lock().deadline.since(self.clock.now())
    }

    /// The time to the end of the maximum hold.
    pub(crate) fn remaining_hold(&self) -> Duration {
        self.lock().last_deadline.map_or(Duration::MAX, |last| last.since(self.clock.now()))
    }

    /// Whether the lease has neither ended nor reached its deadline.
    pub(crate) fn is_valid(&self) -> bool {
        let held = self.lock();
        !held.state.is_over() && self.clock.now() < held.deadline
    }

    /// Notes how long a confirmed request took.
    pub(crate) fn record_round_trip(&self, took: Duration) {
        self.lock().round_trip = took;
    }

    /// How long the last confirmed request took.
    pub(crate) fn round_trip(&self) -> Duration {
        self.lock().round_trip
    }

    /// How long a refresh may be unanswered before the lease is at risk: a sixth of the ttl and 5 seconds at most, but
    /// at least two and a half times the last round trip, as long as that is before the deadline. So neither a round
    /// trip that is always long nor the opening of a connection puts a lease at risk.
    pub(crate) fn risk_after(&self, ttl: Ttl) -> Duration {
        let usual = self.round_trip().mul_f64(2.5);
        let silence = ttl.duration().checked_div(6).unwrap_or_default().min(LONGEST_SILENCE).max(usual);
        silence.min(self.remaining().mul_f64(LAST_WARNING))
    }

    /// Notes that the holder makes progress, or that it gets the lease now.
    pub(crate) fn record_progress(&self) {
        let Some(after) = self.stalled_after else { return };
        let before = self.lock().stalls_at.replace(self.clock.now().after(after));
        if before.is_none() {
            self.keeper.send(Message::Progress(self.acquire_id.number));
        }
    }

    /// Notes that the holder cannot stall until [`record_progress`](Self::record_progress): it does not have the lease yet,
    /// because others are acquired with it.
    pub(crate) fn suspend_progress(&self) {
        self.lock().stalls_at = None;
    }

    /// When the holder has stalled unless it reports progress before.
    pub(crate) fn stalls_at(&self) -> Option<Instant> {
        self.lock().stalls_at
    }

    /// Requests a refresh. If no keeper runs, or the lease has ended, the reply is dropped.
    pub(crate) fn request_refresh(&self, command: RefreshCommand) {
        self.keeper.send(Message::Refresh(self.acquire_id.number, Box::new(command)));
    }

    /// Tells the keeper that the lease has ended.
    pub(super) fn tell_end(&self) {
        self.keeper.send(Message::End(vec![self.acquire_id.number]));
    }

    /// Notes that work runs which must stop when the lease ends, until the token is dropped. Call it before the check that
    /// the lease is held.
    pub(crate) fn begin_work(&self) -> TaskTrackerToken {
        self.lock().work.get_or_insert_default().token()
    }

    /// Whether such work runs.
    pub(crate) fn is_at_work(&self) -> bool {
        self.lock().work.as_ref().is_some_and(|work| !work.is_empty())
    }

    /// Waits until no such work runs.
    pub(crate) async fn work_ended(&self) {
        let work = self.lock().work.clone();
        if let Some(work) = work {
            work.close();
            work.wait().await;
        }
    }

    /// Extends the deadline after a confirmed refresh, up to the end of the maximum hold, unless it has passed. Returns
    /// whether it had not passed. A thread that was blocked, or a machine that was suspended, can see the answer before it
    /// sees the time.
    pub(crate) fn extend_deadline(&self, until: Instant) -> bool {
        self.update(|held| {
            if held.deadline <= self.clock.now() {
                return false;
            }
            held.deadline = held.last_deadline.into_iter().fold(until, Instant::min).max(held.deadline);
            if held.state == LeaseState::AtRisk {
                held.state = LeaseState::Held;
            }
            true
        })
    }

    /// Notes that a refresh failed. Returns whether that put the lease at risk, which records the error.
    pub(crate) fn record_at_risk(&self, error: &Error) -> bool {
        let observers = self.update(|held| {
            if held.state != LeaseState::Held {
                return None;
            }
            held.state = LeaseState::AtRisk;
            Some(held.observed.as_ref().map(|observed| observed.observers.clone()).unwrap_or_default())
        });
        let Some(observers) = observers else { return false };
        let (key, token, remaining) = (&self.key, self.token, self.remaining());
        observers.emit(|| HandleEvent::AtRisk { key, token, remaining, error });
        // As an error and not as text, so that a subscriber can read the source, too.
        let error: &(dyn std::error::Error + 'static) = error;
        warn!(%key, %token, ?remaining, error, "the lease is at risk: its refreshes are not confirmed, and it is lost after the remaining time");
        true
    }

    /// Ends the lease as lost, unless it has ended.
    pub(crate) fn lose(&self, cause: LossCause) {
        self.end(&LeaseState::Lost { cause });
    }

    /// Ends the lease, unless it has ended, and sets what happens to it at the store, unless an earlier call has set that. Returns
    /// whether this call did both: the outcome of another action is not that of this call.
    pub(crate) fn end_with(&self, action: impl Into<Option<EndAction>>, end: &LeaseState) -> bool {
        let is_set = self.end_untold(action.into(), end);
        if is_set.is_some() {
            self.tell_end();
        }
        is_set == Some(true)
    }

    /// Ends the lease, unless it has ended.
    pub(crate) fn end(&self, end: &LeaseState) {
        self.end_with(None::<EndAction>, end);
    }

    /// Ends the lease, unless it has ended, and sends the keeper no message: the caller does. Returns whether this call has set what
    /// happens to the lease at the store. `None`: the lease had ended. After the deadline an end by the holder counts as an expiry,
    /// even if the keeper has not noticed the deadline yet: the store keeps the key for the grace.
    pub(crate) fn end_untold(&self, mut action: Option<EndAction>, end: &LeaseState) -> Option<bool> {
        let by_will = [LeaseState::RELEASED, LeaseState::SHUT_DOWN].contains(end);
        let ended = self.update(|held| {
            if held.state.is_over() {
                return None;
            }
            let is_late = by_will && held.deadline <= self.clock.now();
            let is_expiry = is_late || *end == LeaseState::Lost { cause: LossCause::Expired };
            held.state = if is_expiry { held.expired() } else { end.clone() };
            let is_set = action.take().is_some_and(|action| self.end_action.set(action).is_ok());
            Some((held.state.clone(), is_set))
        });
        let (key, token) = (&self.key, self.token);
        match ended.as_ref().map(|(state, _)| state) {
            Some(LeaseState::Lost { cause }) => warn!(%key, %token, %cause, "the lease is lost"),
            Some(LeaseState::Ended { reason }) => debug!(%key, %token, %reason, "the holder ended the lease"),
            _ => {}
        }
        self.ended.cancel();
        self.report_end();
        ended.map(|(_, is_set)| is_set)
    }

    /// Cancels another token when the lease ends, or at once if it has ended.
    pub(crate) fn cancel_at_end(&self, other: &CancellationToken) {
        self.lock().linked = Some(other.clone());
        self.report_end();
    }

    /// Reports the start of the lease, and from now on its other events. `is_campaign`: it is a leadership.
    pub(crate) fn observe(&self, observers: &Observers, is_campaign: bool, start: HandleEvent<'_>) {
        if observers.is_empty() {
            return;
        }
        observers.emit(|| start);
        let observed = ObservedLease { observers: observers.clone(), since: self.clock.now(), is_campaign };
        self.lock().observed = Some(Box::new(observed));
        // The lease may have ended before it was observed.
        self.report_end();
    }

    /// Cancels the linked token and reports the end to the observers, if the lease has ended. Each is done once.
    fn report_end(&self) {
        let (state, linked, observed) = {
            let mut held = self.lock();
            if !held.state.is_over() {
                return;
            }
            (held.state.clone(), held.linked.take(), held.observed.take())
        };
        if let Some(linked) = linked {
            linked.cancel();
        }
        let Some(observed) = observed else { return };
        let (key, token, is_campaign) = (&self.key, self.token, observed.is_campaign);
        let held = self.clock.now().since(observed.since);
        observed.observers.emit(|| match &state {
            LeaseState::Lost { cause } => HandleEvent::Lost { key, token, cause, held, is_campaign },
            LeaseState::Ended { reason } => HandleEvent::Ended { key, token, reason: *reason, held, is_campaign },
            LeaseState::Held | LeaseState::AtRisk => unreachable!("the lease has ended"),
        });
    }

    /// Refuses a lease that has ended.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_valid() { Ok(()) } else { Err(self.end_error()) }
    }

    /// The state now. A deadline that has passed is a loss, even if the keeper has not run since.
    pub(crate) fn state(&self) -> LeaseState {
        let held = self.lock();
        if held.state.is_over() || self.clock.now() < held.deadline { held.state.clone() } else { held.expired() }
    }

    /// The state as it was recorded: a deadline that has passed changes it when a caller or the keeper has noticed it.
    pub(crate) fn recorded_state(&self) -> LeaseState {
        self.lock().state.clone()
    }

    /// Follows the state.
    pub(crate) fn watch(&self) -> watch::Receiver<LeaseState> {
        self.update(|Held { state, followers, .. }| {
            followers.get_or_insert_with(|| watch::Sender::new(state.clone())).subscribe()
        })
    }

    pub(crate) fn lost_error(&self, cause: LossCause) -> Error {
        Error::Lost { key: self.key.clone(), token: self.token, cause }
    }

    /// The error of a call on this lease, which has ended.
    pub(crate) fn end_error(&self) -> Error {
        let reason = match self.state() {
            LeaseState::Lost { cause } => return self.lost_error(cause),
            LeaseState::Ended { reason } => reason,
            // The keeper has ended before it could end the lease, because its runtime has.
            LeaseState::Held | LeaseState::AtRisk => EndReason::ShutDown,
        };
        Error::Ended { key: self.key.clone(), token: self.token, reason }
    }
}

/// Ends those of these leases of one handle that are held. The keeper releases them by one command.
pub(crate) fn end_together<'a>(leases: impl IntoIterator<Item = &'a Arc<LeaseInner>>) {
    let (mut ended, mut last) = (Vec::new(), None);
    for lease in leases {
        if lease.is_valid() && lease.end_untold(Some(EndAction::Jointly), &LeaseState::RELEASED).is_some() {
            ended.push(lease.acquire_id.number);
            last = Some(lease);
        }
    }
    if let Some(last) = last {
        last.keeper.send(Message::End(ended));
    }
}

impl fmt::Debug for LeaseInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseInner").field("key", &self.key).field("token", &self.token).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;

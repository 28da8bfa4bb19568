//! The state that a lease shares with its task: until when it is held, and how it ended.
//!
//! Mechanism: the deadline is an atomic. The state is behind a lock, and each change of it is published to the
//! followers.
//!
//! Invariants: a lease that has ended, or whose deadline was found passed, is never valid again. The first end stays.

mod hold;
mod limits;
mod observed;
mod work;

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

pub(crate) use limits::Limits;
use limits::Progress;
use observed::ObservedLease;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{
    Clock, Error, FencingToken, HybridTime, Key, LeaseId, LossCause, Owner, Result, Ttl,
    engine::{
        command_queue::CommandQueue,
        end_action::EndAction,
        joint_release::{GroupRelease, JointRelease},
        lease_state::LeaseState,
        pending_releases::ReleaseStage,
    },
    record::{LeaseSpec, lease_refs},
};

/// A deadline that was found passed.
const PASSED: u64 = 0;
/// A deadline that was found passed, and was the end of the maximum hold.
const PASSED_LAST: u64 = 1;
/// The deadline of a lease without expiry, and any that a clock cannot count to.
const NEVER: u64 = u64::MAX;

/// How long a refresh of a long ttl may be unanswered before the lease is at risk.
const LONGEST_SILENCE: Duration = Duration::from_secs(5);

/// The part of the remaining time after which a silent store puts the lease at risk at the latest.
const LAST_WARNING: f64 = 0.94;

/// The state that a lease shares with its task.
pub(crate) struct LeaseShared {
    pub(crate) key: Key,
    pub(crate) id: LeaseId,
    /// The owner in the record. A resumed lease keeps the owner of its acquire.
    pub(crate) owner: Owner,
    pub(crate) token: FencingToken,
    /// How much longer than its ttl the store keeps the key, in milliseconds.
    pub(crate) grace: u64,
    /// Whether no other lease can be granted while this one is held. A downgrade ends that.
    exclusive: AtomicBool,
    /// The store's tick at the last answer before the grant, or at the grant.
    pub(crate) tick: HybridTime,
    clock: Clock,
    /// Nanoseconds on the clock. Only increases, except that [`PASSED`] is final.
    deadline: AtomicU64,
    /// The end of the maximum hold, in nanoseconds on the clock: no refresh moves the deadline past it.
    last_deadline: u64,
    /// How long the holder may report no progress. Boxed, because few leases have it.
    progress: Option<Box<Progress>>,
    /// Nanoseconds that the last confirmed request took.
    round_trip: AtomicU64,
    state: Mutex<LeaseState>,
    /// Sends the state to its followers. Few leases have any, and this is larger than all other fields.
    state_sender: OnceLock<watch::Sender<LeaseState>>,
    /// What happens to the lease at the store instead of a plain release.
    pub(crate) end_action: OnceLock<EndAction>,
    /// The stage of its release, for which acquires of the same handle wait.
    pub(crate) release: ReleaseStage,
    /// How many pieces of work run that must stop when the lease ends.
    work_count: AtomicUsize,
    /// Wakes the task that waits for their end. Boxed, because few tasks do.
    idle: OnceLock<Box<Notify>>,
    /// The commands to its task.
    pub(crate) commands: CommandQueue,
    /// Cancelled after the state has become `Lost` or `Released`.
    pub(crate) ended: CancellationToken,
    /// Whether `ended` is cancelled. Reading the token takes a lock, and each batch reads all its leases.
    has_ended: AtomicBool,
    /// Another token that is cancelled when the lease ends.
    linked: OnceLock<CancellationToken>,
    /// What reports its events. Boxed, because few handles have an observer.
    observed: OnceLock<Box<ObservedLease>>,
}

impl LeaseShared {
    pub(crate) fn new(
        key: Key,
        terms: &LeaseSpec,
        (token, tick): (FencingToken, HybridTime),
        clock: Clock,
        deadline: Duration,
        limits: Limits,
    ) -> Self {
        let last_deadline = limits.last_deadline.map_or(NEVER, nanos);
        let progress = |stalled_after| Box::new(Progress::new(stalled_after, nanos(clock.now())));
        Self {
            key,
            id: terms.lease,
            owner: terms.owner.clone(),
            grace: terms.grace,
            exclusive: AtomicBool::new(terms.limit <= 1),
            token,
            tick,
            clock,
            deadline: AtomicU64::new(nanos(deadline).min(last_deadline)),
            last_deadline,
            progress: limits.stalled_after.map(progress),
            round_trip: AtomicU64::new(0),
            state: Mutex::new(LeaseState::Held),
            state_sender: OnceLock::new(),
            end_action: OnceLock::new(),
            linked: OnceLock::new(),
            observed: OnceLock::new(),
            release: ReleaseStage::default(),
            work_count: AtomicUsize::new(0),
            idle: OnceLock::new(),
            commands: CommandQueue::default(),
            ended: CancellationToken::new(),
            has_ended: AtomicBool::new(false),
        }
    }

    /// Whether no other lease can be granted while this one is held.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.exclusive.load(Ordering::Acquire)
    }

    /// Notes that a downgrade is sent: from now on other holders may share the key.
    pub(crate) fn share(&self) {
        self.exclusive.store(false, Ordering::Release);
    }

    /// When the lease ends, on the clock. Zero once it was found passed.
    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// Whether there is no deadline.
    pub(crate) fn has_no_expiry(&self) -> bool {
        self.deadline.load(Ordering::Acquire) == NEVER
    }

    /// Notes how long a confirmed request took.
    pub(crate) fn note_round_trip(&self, took: Duration) {
        self.round_trip.store(nanos(took), Ordering::Relaxed);
    }

    /// How long a refresh may be unanswered before the lease is at risk: a sixth of the ttl and 5 seconds at most, but
    /// at least two and a half times the last round trip, as long as that is before the deadline. So neither a round
    /// trip that is always long nor the opening of a connection puts a lease at risk.
    pub(crate) fn risk_after(&self, ttl: Ttl) -> Duration {
        let usual = self.round_trip().mul_f64(2.5);
        let silence = ttl.duration().checked_div(6).unwrap_or_default().min(LONGEST_SILENCE).max(usual);
        silence.min(self.remaining().mul_f64(LAST_WARNING))
    }

    /// How long the last confirmed request took.
    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.round_trip.load(Ordering::Relaxed))
    }

    /// The time to the deadline. A deadline that was found passed stays passed: a caller that was told of the end is
    /// never told otherwise, even if a refresh is confirmed at that moment.
    pub(crate) fn remaining(&self) -> Duration {
        let mut deadline = self.deadline.load(Ordering::Acquire);
        loop {
            let left = Duration::from_nanos(deadline).saturating_sub(self.clock.now());
            if !left.is_zero() {
                return left;
            }
            if deadline <= PASSED_LAST {
                return Duration::ZERO;
            }
            let passed = if deadline == self.last_deadline { PASSED_LAST } else { PASSED };
            match self.deadline.compare_exchange(deadline, passed, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Duration::ZERO,
                Err(moved) => deadline = moved,
            }
        }
    }

    /// Whether the lease has not ended. Takes no lock, so it can be called while the state is borrowed.
    pub(crate) fn is_valid(&self) -> bool {
        !self.has_ended.load(Ordering::Acquire) && !self.remaining().is_zero()
    }

    /// Extends the deadline after a confirmed refresh, up to the end of the maximum hold, unless it has passed. A thread that was blocked, or a machine
    /// that was suspended, can see the answer before it sees the time.
    pub(crate) fn extend_deadline(&self, until: Duration) -> bool {
        let mut deadline = self.deadline.load(Ordering::Acquire);
        loop {
            if Duration::from_nanos(deadline) <= self.clock.now() {
                return false;
            }
            let later = nanos(until).max(deadline).min(self.last_deadline);
            match self.deadline.compare_exchange(deadline, later, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(moved) => deadline = moved,
            }
        }
        self.transition(&LeaseState::Held);
        true
    }

    /// What the passing of the deadline means.
    fn expiry_cause(&self) -> LossCause {
        let deadline = self.deadline.load(Ordering::Acquire);
        let is_last = self.last_deadline != NEVER && [PASSED_LAST, self.last_deadline].contains(&deadline);
        if is_last { LossCause::HeldTooLong } else { LossCause::Expired }
    }

    /// Notes that a refresh failed. Returns whether that put the lease at risk, which records the error.
    pub(crate) fn note_at_risk(&self, error: &Error) -> bool {
        let remaining = self.remaining();
        let is_new = self.transition(&LeaseState::AtRisk);
        if is_new {
            self.report_risk(remaining, error);
            // As an error and not as text, so that a subscriber can read the source, too.
            let error: &(dyn std::error::Error + 'static) = error;
            warn!(key = %self.key, token = %self.token, ?remaining, error, "the lease is at risk: its refreshes are not confirmed, and it is lost after the remaining time");
        }
        is_new
    }

    /// Ends the lease as lost, unless it has ended.
    pub(crate) fn lose(&self, cause: LossCause) {
        let cause = if cause == LossCause::Expired { self.expiry_cause() } else { cause };
        self.end(&LeaseState::Lost { cause });
    }

    /// Ends the lease, unless it has ended. After the deadline an end by the holder counts as an expiry, even if the
    /// deadline was not seen to pass: the store keeps the key for the grace.
    pub(crate) fn end(&self, end: &LeaseState) {
        let by_will = matches!(end, LeaseState::Released | LeaseState::Lost { cause: LossCause::ShutDown });
        let lapsed = by_will && self.remaining().is_zero();
        let lapsed = lapsed.then(|| LeaseState::Lost { cause: self.expiry_cause() });
        let end = lapsed.as_ref().unwrap_or(end);
        if self.transition(end)
            && let LeaseState::Lost { cause } = end
        {
            match cause {
                LossCause::ShutDown | LossCause::Transferred => {
                    debug!(key = %self.key, token = %self.token, %cause, "the holder ended the lease");
                }
                cause => warn!(key = %self.key, token = %self.token, %cause, "the lease is lost"),
            }
        }
        // Also if another thread has changed the state and not published it yet: a task that the token wakes finds the
        // end.
        if let Some(state_sender) = self.state_sender.get() {
            self.publish(state_sender);
        }
        self.has_ended.store(true, Ordering::Release);
        self.ended.cancel();
        if let Some(linked) = self.linked.get() {
            linked.cancel();
        }
        self.report_end();
    }

    /// Cancels another token when the lease ends, or at once if it has ended.
    pub(crate) fn cancel_at_end(&self, other: &CancellationToken) {
        self.linked.get_or_init(|| other.clone());
        // The lease may have ended before the token was stored.
        if self.ended.is_cancelled() {
            other.cancel();
        }
    }

    /// Changes the state, unless the lease has ended or is in that state. Returns whether it changed.
    fn transition(&self, to: &LeaseState) -> bool {
        {
            let mut state = self.lock();
            if matches!(*state, LeaseState::Lost { .. } | LeaseState::Released) || *state == *to {
                return false;
            }
            state.clone_from(to);
        }
        if let Some(state_sender) = self.state_sender.get() {
            self.publish(state_sender);
        }
        true
    }

    /// Sends the current state to the followers. It is read here, so the latest state is sent last if two threads
    /// publish at once.
    fn publish(&self, state_sender: &watch::Sender<LeaseState>) {
        state_sender.send_if_modified(|published| {
            let state = self.lock();
            let moved = *published != *state;
            published.clone_from(&state);
            moved
        });
    }

    /// No other lock is taken under this one.
    fn lock(&self) -> MutexGuard<'_, LeaseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a lease that has ended.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_valid() { Ok(()) } else { Err(self.lost_error(self.cause())) }
    }

    /// The state now. A deadline that has passed is a loss, even if the task has not run since.
    pub(crate) fn state(&self) -> LeaseState {
        let valid = self.is_valid();
        let state = self.lock().clone();
        match state {
            LeaseState::Held | LeaseState::AtRisk if !valid => LeaseState::Lost { cause: self.expiry_cause() },
            state => state,
        }
    }

    /// What ended a lease that has ended.
    pub(crate) fn cause(&self) -> LossCause {
        match self.state() {
            LeaseState::Lost { cause } => cause,
            // The caller borrows the lease, so it is not released.
            _ => LossCause::ShutDown,
        }
    }

    /// Follows the state.
    pub(crate) fn watch(&self) -> watch::Receiver<LeaseState> {
        let state_sender = self.state_sender.get_or_init(|| watch::Sender::new(self.lock().clone()));
        let receiver = state_sender.subscribe();
        // The state may have changed before the sender was there.
        self.publish(state_sender);
        receiver
    }

    /// Ends the lease with the release of its group.
    pub(crate) fn end_with_group(&self, group: &GroupRelease, cause: LossCause) {
        self.end_action.get_or_init(|| EndAction::WithGroup(group.subscribe()));
        self.lose(cause);
    }

    /// What ended the lease, if its holder did not release it.
    pub(crate) fn loss(&self) -> Option<LossCause> {
        match &*self.lock() {
            LeaseState::Lost { cause } => Some(cause.clone()),
            _ => None,
        }
    }

    pub(crate) fn lost_error(&self, cause: LossCause) -> Error {
        Error::Lost { key: self.key.clone(), token: self.token, cause }
    }
}

/// Ends those of these leases that are held. The first of their tasks to run releases all of them.
pub(crate) fn end_together<'a>(leases: impl IntoIterator<Item = &'a Arc<LeaseShared>>) {
    let leases: Vec<_> = leases.into_iter().filter(|lease| lease.is_valid()).collect();
    let release = Arc::new(JointRelease::new(lease_refs(leases.iter().map(|lease| (lease.key.clone(), lease.token)))));
    // A single lease is released like any other.
    for lease in leases.iter().filter(|_| leases.len() > 1) {
        lease.end_action.get_or_init(|| EndAction::Jointly(Arc::clone(&release)));
    }
    for lease in &leases {
        lease.end(&LeaseState::Released);
    }
    release.ended.cancel();
}

impl fmt::Debug for LeaseShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseShared").field("key", &self.key).field("token", &self.token).finish_non_exhaustive()
    }
}

/// A reading of the clock in nanoseconds, which a `u64` counts for 584 years.
fn nanos(reading: Duration) -> u64 {
    u64::try_from(reading.as_nanos()).unwrap_or(NEVER)
}

#[cfg(test)]
pub(crate) mod tests;

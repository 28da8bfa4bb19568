//! What a lease and its task know together: until when, and how it ended.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{
    Clock, Error, FencingToken, HybridTime, Key, LeaseId, LossCause, Result, Ttl,
    engine::{
        command_queue::CommandQueue,
        end_action::EndAction,
        joint_release::{GroupRelease, JointRelease},
        lease_state::LeaseState,
        pending_releases::ReleaseStage,
    },
    record::{LeaseSpec, lease_refs},
};

/// A deadline that somebody found passed.
const PASSED: u64 = 0;
/// The deadline of a lease without expiry, and all that a clock cannot count to.
const NEVER: u64 = u64::MAX;

/// How long a refresh of a long ttl may be unanswered before the lease is at risk.
const LONGEST_SILENCE: Duration = Duration::from_secs(5);

/// The part of the time to the deadline after which a silent store puts the lease at risk at the latest.
const LAST_WARNING: f64 = 0.94;

/// What a lease and its task know together.
pub(crate) struct LeaseShared {
    pub(crate) key: Key,
    pub(crate) lease: LeaseId,
    pub(crate) token: FencingToken,
    /// How much longer than its ttl the store keeps the key, in milliseconds.
    pub(crate) grace: u64,
    /// Whether no other holder can have the key meanwhile.
    exclusive: AtomicBool,
    /// The store's tick when it last said that the lease was granted, or was not yet.
    pub(crate) tick: HybridTime,
    clock: Clock,
    /// Nanoseconds on the clock. Only ever moves on, and at last to [`PASSED`].
    deadline: AtomicU64,
    /// Nanoseconds that the last confirmed request took.
    round_trip: AtomicU64,
    state: Mutex<LeaseState>,
    /// Who follows the state. Few leases are followed, and this is larger than all else here.
    followed: OnceLock<watch::Sender<LeaseState>>,
    /// What becomes of the lease at the store when its holder has no more use for it.
    pub(crate) end_action: OnceLock<EndAction>,
    /// Where its release stands, for the acquires of its own handle.
    pub(crate) release: ReleaseStage,
    /// How much work is being done that ends with the lease.
    working: AtomicUsize,
    /// What its task is asked for.
    pub(crate) commands: CommandQueue,
    /// Cancelled after the state has become one of the two ends.
    pub(crate) ended: CancellationToken,
    /// Whether `ended` is cancelled. A look at the token takes a lock, and all leases of a batch are looked at.
    has_ended: AtomicBool,
    /// What else ends with it.
    together: OnceLock<CancellationToken>,
}

impl LeaseShared {
    pub(crate) fn new(
        key: Key,
        terms: &LeaseSpec,
        (token, tick): (FencingToken, HybridTime),
        clock: Clock,
        deadline: Duration,
    ) -> Self {
        Self {
            key,
            lease: terms.lease,
            grace: terms.grace,
            exclusive: AtomicBool::new(terms.limit <= 1),
            token,
            tick,
            clock,
            deadline: AtomicU64::new(nanos(deadline)),
            round_trip: AtomicU64::new(0),
            state: Mutex::new(LeaseState::Held),
            followed: OnceLock::new(),
            end_action: OnceLock::new(),
            together: OnceLock::new(),
            release: ReleaseStage::default(),
            working: AtomicUsize::new(0),
            commands: CommandQueue::default(),
            ended: CancellationToken::new(),
            has_ended: AtomicBool::new(false),
        }
    }

    /// Whether no other holder can have the key meanwhile.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.exclusive.load(Ordering::Acquire)
    }

    /// A downgrade is sent: from now on other holders may share the key.
    pub(crate) fn share(&self) {
        self.exclusive.store(false, Ordering::Release);
    }

    /// When the lease ends, on the clock; the beginning of time once it has passed.
    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// Whether there is no deadline.
    pub(crate) fn never_expires(&self) -> bool {
        self.deadline.load(Ordering::Acquire) == NEVER
    }

    /// Notes how long a confirmed request took.
    pub(crate) fn note_round_trip(&self, took: Duration) {
        self.round_trip.store(nanos(took), Ordering::Relaxed);
    }

    /// How long a refresh may be unanswered before the lease is at risk: a sixth of the ttl, 5 seconds at most, and no less
    /// than two and a half times the last round trip, as long as that is before the deadline. So a round trip that is long and
    /// always was puts nothing at risk, nor does one for which a connection is opened.
    pub(crate) fn risk_after(&self, ttl: Ttl) -> Duration {
        let usual = self.round_trip().mul_f64(2.5);
        let silence = ttl.duration().checked_div(6).unwrap_or_default().min(LONGEST_SILENCE).max(usual);
        silence.min(self.remaining().mul_f64(LAST_WARNING))
    }

    /// How long the last confirmed request took.
    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.round_trip.load(Ordering::Relaxed))
    }

    /// How long it is to the deadline. One that was found passed stays so: whoever is told that the
    /// lease is over is never told otherwise later, even if a refresh is confirmed at that moment.
    pub(crate) fn remaining(&self) -> Duration {
        let mut deadline = self.deadline.load(Ordering::Acquire);
        loop {
            let left = Duration::from_nanos(deadline).saturating_sub(self.clock.now());
            if !left.is_zero() {
                return left;
            }
            match self.deadline.compare_exchange(deadline, PASSED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Duration::ZERO,
                Err(moved) => deadline = moved,
            }
        }
    }

    /// Whether the lease has not ended. Takes no lock, so that it can be asked while the state is
    /// borrowed.
    pub(crate) fn is_valid(&self) -> bool {
        !self.has_ended.load(Ordering::Acquire) && !self.remaining().is_zero()
    }

    /// The store confirmed a refresh: moves the deadline on, unless it has passed. A thread that was
    /// blocked, or a machine that slept, may see the answer before it sees the time.
    pub(crate) fn extend_deadline(&self, until: Duration) -> bool {
        let mut deadline = self.deadline.load(Ordering::Acquire);
        loop {
            if Duration::from_nanos(deadline) <= self.clock.now() {
                return false;
            }
            let later = nanos(until).max(deadline);
            match self.deadline.compare_exchange(deadline, later, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(moved) => deadline = moved,
            }
        }
        self.transition(&LeaseState::Held);
        true
    }

    /// A refresh failed.
    pub(crate) fn at_risk(&self, error: &Error) {
        let remaining = self.remaining();
        // As an error and not as its text, so that a subscriber can tell the source, too.
        let error: &(dyn std::error::Error + 'static) = error;
        if self.transition(&LeaseState::AtRisk) {
            warn!(key = %self.key, token = %self.token, ?remaining, error, "the lease is at risk: the store does not confirm its refreshes, and it is lost when the remaining time is over");
        } else {
            debug!(key = %self.key, token = %self.token, ?remaining, error, "the lease is still at risk");
        }
    }

    /// Ends the lease as lost, unless it has ended.
    pub(crate) fn lose(&self, cause: LossCause) {
        self.end(&LeaseState::Lost { cause });
    }

    /// Ends the lease, unless it has ended. After its deadline that is by nobody's will any more, also
    /// where nobody has seen it pass: the store keeps the key for the grace.
    pub(crate) fn end(&self, end: &LeaseState) {
        let by_will = matches!(end, LeaseState::Released | LeaseState::Lost { cause: LossCause::ShutDown });
        let lapsed = LeaseState::Lost { cause: LossCause::Expired };
        let end = if by_will && self.remaining().is_zero() { &lapsed } else { end };
        if self.transition(end)
            && let LeaseState::Lost { cause } = end
        {
            match cause {
                LossCause::ShutDown | LossCause::Transferred => {
                    debug!(key = %self.key, token = %self.token, %cause, "the lease ends by the will of its holder");
                }
                cause => warn!(key = %self.key, token = %self.token, %cause, "the lease is lost"),
            }
        }
        // Also where another thread has moved it and not told yet: whoever is woken by the token finds the end.
        if let Some(followed) = self.followed.get() {
            self.tell(followed);
        }
        self.has_ended.store(true, Ordering::Release);
        self.ended.cancel();
        if let Some(together) = self.together.get() {
            together.cancel();
        }
    }

    /// Notes that work begins which ends with the lease, until this is dropped.
    pub(crate) fn work(&self) -> AtWork<'_> {
        self.working.fetch_add(1, Ordering::Relaxed);
        AtWork(self)
    }

    /// Whether such work goes on.
    pub(crate) fn is_at_work(&self) -> bool {
        self.working.load(Ordering::Relaxed) > 0
    }

    /// Cancels another token when the lease ends, or at once if it has.
    pub(crate) fn ends_with(&self, other: &CancellationToken) {
        self.together.get_or_init(|| other.clone());
        // It may have ended before it knew.
        if self.ended.is_cancelled() {
            other.cancel();
        }
    }

    /// Moves to another state, unless the lease has ended or is there; says whether it moved.
    fn transition(&self, to: &LeaseState) -> bool {
        {
            let mut state = self.lock();
            if matches!(*state, LeaseState::Lost { .. } | LeaseState::Released) || *state == *to {
                return false;
            }
            state.clone_from(to);
        }
        if let Some(followed) = self.followed.get() {
            self.tell(followed);
        }
        true
    }

    /// Tells who follows the state as it is at this moment, so that of two who tell at once it is the later
    /// one's that stays.
    fn tell(&self, followed: &watch::Sender<LeaseState>) {
        followed.send_if_modified(|told| {
            let state = self.lock();
            let moved = *told != *state;
            told.clone_from(&state);
            moved
        });
    }

    /// No other lock is taken while it is held.
    fn lock(&self) -> MutexGuard<'_, LeaseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a lease that has ended.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_valid() { Ok(()) } else { Err(self.lost(self.cause())) }
    }

    /// Where the lease stands. A deadline that has passed is a loss even if the task has not run
    /// since.
    pub(crate) fn state(&self) -> LeaseState {
        let valid = self.is_valid();
        let state = self.lock().clone();
        match state {
            LeaseState::Held | LeaseState::AtRisk if !valid => LeaseState::Lost { cause: LossCause::Expired },
            state => state,
        }
    }

    /// What ended the lease that has ended.
    pub(crate) fn cause(&self) -> LossCause {
        match self.state() {
            LeaseState::Lost { cause } => cause,
            // Who could ask borrows the lease, so it is not released.
            _ => LossCause::ShutDown,
        }
    }

    /// Follows the state.
    pub(crate) fn watch(&self) -> watch::Receiver<LeaseState> {
        let followed = self.followed.get_or_init(|| watch::Sender::new(self.lock().clone()));
        let follows = followed.subscribe();
        // It may have moved before there was anybody to tell.
        self.tell(followed);
        follows
    }

    /// Ends the lease with the release of its group.
    pub(crate) fn end_with_group(&self, group: &GroupRelease, cause: LossCause) {
        self.end_action.get_or_init(|| EndAction::WithGroup(group.subscribe()));
        self.lose(cause);
    }

    /// What ended the lease, if it was not its holder's will.
    pub(crate) fn is_lost(&self) -> Option<LossCause> {
        match &*self.lock() {
            LeaseState::Lost { cause } => Some(cause.clone()),
            _ => None,
        }
    }

    pub(crate) fn lost(&self, cause: LossCause) -> Error {
        Error::Lost { key: self.key.clone(), token: self.token, cause }
    }
}

/// Ends these leases, as far as they are held. The task of the first to come gives all of them back.
pub(crate) fn end_jointly<'a>(leases: impl IntoIterator<Item = &'a Arc<LeaseShared>>) {
    let leases: Vec<_> = leases.into_iter().filter(|lease| lease.is_valid()).collect();
    let release = Arc::new(JointRelease::new(lease_refs(leases.iter().map(|lease| (lease.key.clone(), lease.token)))));
    // One alone is released as any other is.
    for lease in leases.iter().filter(|_| leases.len() > 1) {
        lease.end_action.get_or_init(|| EndAction::Jointly(Arc::clone(&release)));
    }
    for lease in &leases {
        lease.end(&LeaseState::Released);
    }
    release.ended.cancel();
}

/// Work that is being done.
pub(crate) struct AtWork<'a>(&'a LeaseShared);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::Relaxed);
    }
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

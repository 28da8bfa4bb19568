//! What a lease and its task know together: until when, and how it ended.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{Clock, Error, FencingToken, Key, LeaseId, LossCause, Owner, Result};

/// Where a lease stands. It only ever moves down this list, save that a refresh brings `AtRisk`
/// back to `Held`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseState {
    /// Held, as far as this process can know.
    Held,
    /// Refreshes fail; the deadline is still ahead. Time to bring work to a point where it can
    /// stop.
    AtRisk,
    /// Over, and not by its holder's will.
    Lost {
        /// What ended it.
        cause: LossCause,
    },
    /// Over, because its holder released or dropped it.
    Released,
}

/// What a lease and its task know together.
pub(crate) struct Hold {
    pub(crate) key: Key,
    pub(crate) owner: Owner,
    pub(crate) lease: LeaseId,
    pub(crate) token: FencingToken,
    clock: Clock,
    /// Nanoseconds on the clock. Only ever moves on.
    deadline: AtomicU64,
    pub(crate) state: watch::Sender<LeaseState>,
    /// Cancelled after the state has become one of the two ends.
    pub(crate) ended: CancellationToken,
}

impl Hold {
    pub(crate) fn new(
        key: Key,
        owner: Owner,
        lease: LeaseId,
        token: FencingToken,
        clock: Clock,
        deadline: Duration,
    ) -> Self {
        Self {
            key,
            owner,
            lease,
            token,
            clock,
            deadline: AtomicU64::new(nanos(deadline)),
            state: watch::Sender::new(LeaseState::Held),
            ended: CancellationToken::new(),
        }
    }

    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.deadline().saturating_sub(self.clock.now())
    }

    pub(crate) fn is_valid(&self) -> bool {
        !self.ended.is_cancelled() && !self.remaining().is_zero()
    }

    /// The store confirmed a refresh: moves the deadline on.
    pub(crate) fn kept_until(&self, deadline: Duration) {
        self.deadline.fetch_max(nanos(deadline), Ordering::AcqRel);
        self.shift(&LeaseState::Held);
    }

    /// A refresh failed.
    pub(crate) fn at_risk(&self, error: &Error) {
        let remaining = self.remaining();
        if self.shift(&LeaseState::AtRisk) {
            warn!(key = %self.key, token = %self.token, ?remaining, %error, "the lease is at risk");
        } else {
            debug!(key = %self.key, token = %self.token, ?remaining, %error, "the lease is still at risk");
        }
    }

    /// Ends the lease as lost, unless it has ended.
    pub(crate) fn lose(&self, cause: LossCause) {
        self.end(&LeaseState::Lost { cause });
    }

    /// Ends the lease, unless it has ended.
    pub(crate) fn end(&self, end: &LeaseState) {
        if self.shift(end)
            && let LeaseState::Lost { cause } = end
        {
            match cause {
                LossCause::ShutDown => debug!(key = %self.key, token = %self.token, "the lease ends with its handle"),
                cause => warn!(key = %self.key, token = %self.token, %cause, "the lease is lost"),
            }
        }
        self.ended.cancel();
    }

    /// Moves to another state, unless the lease has ended or is there; says whether it moved.
    fn shift(&self, to: &LeaseState) -> bool {
        self.state.send_if_modified(|state| {
            let moves = !matches!(state, LeaseState::Lost { .. } | LeaseState::Released) && state != to;
            if moves {
                *state = to.clone();
            }
            moves
        })
    }

    /// Refuses a lease that has ended. One whose deadline has passed ends here if its task was not
    /// faster.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_valid() {
            return Ok(());
        }
        self.lose(LossCause::Expired);
        Err(self.lost(self.cause()))
    }

    /// What ended the lease that has ended.
    pub(crate) fn cause(&self) -> LossCause {
        match &*self.state.borrow() {
            LeaseState::Lost { cause } => cause.clone(),
            // Nobody can ask a lease after its release; a future of it that is left over can.
            _ => LossCause::ShutDown,
        }
    }

    pub(crate) fn is_lost(&self) -> Option<LossCause> {
        match &*self.state.borrow() {
            LeaseState::Lost { cause } => Some(cause.clone()),
            _ => None,
        }
    }

    pub(crate) fn lost(&self, cause: LossCause) -> Error {
        Error::Lost { key: self.key.clone(), token: self.token, cause }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", &self.key)
            .field("owner", &self.owner)
            .field("id", &self.lease)
            .field("token", &self.token)
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}

/// A reading of the clock in nanoseconds, which a `u64` counts for 584 years.
fn nanos(reading: Duration) -> u64 {
    u64::try_from(reading.as_nanos()).unwrap_or(u64::MAX)
}

//! What an exploration can find: a promise that is broken, and outcomes to which few orders of steps lead.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

/// A promise that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Breach {
    /// No token is issued twice.
    TokenTwice,
    /// Tokens are in the order of grants.
    TokenOutOfOrder,
    /// No two believe at once that do not share.
    TwoBelieve,
    /// No request touches another's lease.
    NewerTouched,
    /// Waiters are served in order.
    OutOfTurn,
    /// No holder reads an older value than one confirmed under a smaller token.
    OlderValue,
    /// Every waiter that lives is granted the key.
    NeverGranted,
    /// No two leases complete a tick.
    CompletedTwice,
    /// No lease completes a tick again after a reset.
    CompletedAgain,
    /// No lease completes a tick after a later grant.
    CompletedLate,
    /// No revoked lease completes a tick.
    RevokedCompletes,
    /// Only a reset lowers the last completed tick.
    TickLowered,
    /// No completed work runs again.
    RanAgain,
    /// A confirmed completion is in the record.
    NotCompleted,
    /// No key is granted before the minimum hold ends.
    GrantedEarly,
    /// No request finds a released lease.
    Revived,
    /// No lease is kept past its maximum hold.
    KeptTooLong,
    /// No holder believes past its maximum hold.
    PastMaximum,
    /// No holder believes after the store frees the key.
    BelievesFreed,
}

/// An outcome that an exploration must reach, so that its promises are about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rare {
    /// A process believes that it holds the key.
    Believed,
    /// A collected record is made again, and believed in.
    MadeAgain,
    /// The server confirms a refresh while a later attempt of the same lease is awaited.
    EarlierConfirmed,
    /// The server grants the key to an abandoned attempt, after it refused a later attempt of the same lease.
    GhostGranted,
    /// The server grants the key although, by the true time, the record still keeps it for another lease.
    GrantedAhead,
    /// One command of two acquires grants the key to the first and queues the second.
    GrantedTogether,
    /// A joint refresh stalls, and another lease is in the record when it executes.
    KeptTooLate,
    /// A downgrade stalls, and a later grant of its lease id is in the record when it executes.
    DowngradedTooLate,
    /// A downgraded holder and a sharer believe.
    Shared,
    /// A holder reads the value of an earlier one.
    ValueRead,
    /// A write of a value stalls, and a later one is in the record when it executes.
    PutTooLate,
    /// A lease completes its tick after it has expired.
    CompletedAfterExpiry,
    /// A client resends a completion that was applied, and reads that it was.
    ResentCompletion,
    /// A client finds after the grant that its tick is completed.
    FoundDone,
    /// A client finds after the grant that a reset allows its completed tick.
    AllowedByReset,
    /// An acquire finds the key unavailable, because the minimum hold of a released lease is not over.
    RefusedByEntry,
    /// A revocation ends the minimum hold of a released lease.
    EntryRevoked,
    /// A completion executes a second time, after a reset.
    GhostAfterReset,
    /// The maximum hold cuts a confirmed refresh.
    RefreshCut,
    /// The answer to a resent acquire grants the key with less time left than the maximum hold.
    ResentGrantCut,
}

/// What an exploration has reached so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reached(Arc<Mutex<BTreeSet<Rare>>>);

impl Reached {
    pub(crate) fn note(&self, rare: impl IntoIterator<Item = Rare>) {
        self.0.lock().unwrap().extend(rare);
    }

    pub(crate) fn has(&self, rare: Rare) -> bool {
        self.0.lock().unwrap().contains(&rare)
    }
}

//! What a store answers and sends: the types of the methods of [`Store`](super::Store).

use crate::{
    record::{ListedLease, Outcome, Position, Record, StoreClock, StoreTime},
    types::{
        acquire_id::AcquireId,
        instant::Instant,
        key::Key,
        token::{FencingToken, HybridTime},
    },
};

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The outcome.
    pub outcome: Outcome,
    /// When the request was applied, on the store's clocks. `None`: there was no record, and nothing to do. A release
    /// that grants the key to no waiter may have `None`, too.
    pub at: Option<StoreClock>,
    /// Whether the record changed. Then the outcome is not stale. `false`: it did not change, or that is not known.
    pub changed: bool,
    /// When the request was sent, on the holders' [`Clock`](crate::store::Clock), if it had to wait after the call. Deadlines count from
    /// then.
    pub sent: Option<Instant>,
}

/// A notification to a handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notification {
    /// Each later hand-over is notified.
    Started {
        /// The hybrid time after which that holds.
        since: HybridTime,
    },
    /// An acquire of this handle was granted the key that it waited for.
    Granted {
        /// The number of the acquire.
        number: u64,
        /// The fencing token of the lease.
        token: FencingToken,
        /// When it was granted, on the store's clock, if the store knows.
        at: Option<StoreTime>,
    },
    /// An acquire of this handle or its lease must be checked by a request: its key was taken from it, or it is now the
    /// first waiter and may not know when the key is available.
    Recheck {
        /// The number of the acquire.
        number: u64,
    },
}

impl Notification {
    /// The notification for an entry of [`Record::handover`] in a change at this time.
    #[must_use]
    pub fn of(acquire_id: AcquireId, token: Option<FencingToken>, at: Option<StoreTime>) -> Self {
        let number = acquire_id.number;
        token.map_or(Self::Recheck { number }, |token| Self::Granted { number, token, at })
    }
}

/// A state of a record: after a change, or as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordState {
    /// The record, if there is one. Its queue may be left out.
    pub record: Option<Box<Record>>,
    /// The time of the change. While a key is followed, its hybrid times never go back. If there is no record, the time may be
    /// wrong by a second.
    pub at: StoreClock,
}

/// What a follower of records receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowedState {
    /// A state of one record. Of a record of a prefix, only the holders, `version`, `last_seen`, and the revocations of the
    /// change must be right.
    Record {
        /// The key.
        key: Key,
        /// The state. The hybrid times of a stream never go back.
        state: RecordState,
    },
    /// All states of the beginning were sent, and were current at this time.
    Complete {
        /// The time.
        at: StoreClock,
    },
}

/// A record as it was at some time between the call and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The record.
    pub record: Box<Record>,
    /// The store's time of the read.
    pub at: StoreClock,
}

/// A page of a list of leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The leases, in the order of keys and then of tokens.
    pub leases: Vec<ListedLease>,
    /// The position after which the list goes on. `None`: the list has ended.
    pub next: Option<Position>,
}

//! The record of a key: its holders, its queue, and the highest token that it ever issued or was raised to.
//!
//! A record is plain data. [`apply`] is the state machine, a pure function: the memory store runs it, and the MongoDB
//! store runs the same state machine as an update pipeline in the server.

mod batch;
pub(crate) mod events;
mod filter;
pub(crate) mod inspection;
mod request;
mod state_machine;
mod time;

use std::time::Duration;

pub use batch::{BatchRequest, KeyRequest, LeaseRefs, lease_refs};
pub use events::{Event, EventKind};
pub use filter::{Filter, KeyFilter, Position, SharingFilter};
pub use inspection::{HolderInfo, Inspection, KeyValue, ListedLease, WaiterInfo};
pub use request::*;
pub use state_machine::{apply, apply_batch, apply_in_turn, apply_together};
pub use time::StoreTime;

use serde::{Deserialize, Deserializer, Serialize};

use crate::types::{
    acquire_id::AcquireId,
    error::Error,
    group::Group,
    json::Json,
    key::Key,
    lease_id::{LeaseId, exposed},
    metadata::Metadata,
    owner::Owner,
    sharing::Sharing,
    token::{FencingToken, HybridTime},
    ttl::Ttl,
};

/// A reading of a store's clocks: the wall clock times leases, and the hybrid logical clock numbers tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreClock {
    /// The store's wall clock.
    pub now: StoreTime,
    /// The store's hybrid logical clock.
    pub hlc: HybridTime,
}

/// What an acquire wants: a lease of this owner, for this long, exclusive or shared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseSpec {
    /// The lease id, a secret. Serialized, it is exposed.
    #[serde(with = "exposed")]
    pub lease: LeaseId,
    /// The acquire that is notified of a hand-over.
    #[serde(rename = "caller")]
    pub acquire_id: AcquireId,
    /// The owner.
    pub owner: Owner,
    /// How many holders may share the key.
    #[serde(rename = "limit")]
    pub sharing: Sharing,
    /// How long a holder lasts without a refresh, in milliseconds.
    pub ttl: u64,
    /// How much longer the store waits before it grants the key to another lease, in milliseconds.
    pub grace: u64,
    /// The group of the lease, if it has one.
    pub group: Option<Group>,
    /// The metadata of the lease.
    pub metadata: Metadata,
    /// How long the lease holds the key at least and at most.
    pub hold: HoldLimits,
}

impl LeaseSpec {
    /// Whether these are the terms of the acquire with this lease id and this acquire id.
    pub(crate) fn is_of(&self, lease: LeaseId, acquire_id: AcquireId) -> bool {
        self.lease == lease && self.acquire_id == acquire_id
    }
}

#[cfg(test)]
impl LeaseSpec {
    /// What the acquire of this number asks for in a test.
    pub(crate) fn of_number(number: u8, sharing: Sharing, ttl: u64) -> Self {
        Self {
            lease: LeaseId::from_bytes([number; 16]),
            acquire_id: format!("{number:016x}/{number}").parse().unwrap(),
            owner: format!("owner {number}").parse().unwrap(),
            sharing,
            ttl,
            grace: 0,
            group: None,
            metadata: Metadata::default(),
            hold: HoldLimits::default(),
        }
    }
}

/// How long a lease holds its key at least and at most, counted from the grant on the store's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldLimits {
    /// If the lease is released sooner, the key stays unavailable for the rest of this time. In milliseconds, never 0. `None`:
    /// no minimum.
    #[serde(rename = "at_least", with = "zero_is_none")]
    pub min: Option<u64>,
    /// No refresh extends the lease beyond this time. In milliseconds, without the grace, never 0. `None`: no maximum.
    #[serde(rename = "at_most", with = "zero_is_none")]
    pub max: Option<u64>,
}

/// A number of the stored format in which 0 is none.
mod zero_is_none {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[allow(clippy::ref_option, reason = "serde calls it so")]
    pub(super) fn serialize<S: Serializer>(limit: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        limit.unwrap_or_default().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
        Ok(Some(u64::deserialize(deserializer)?).filter(|limit| *limit > 0))
    }
}

/// An entry of a record: a lease that holds the key, or one that was released before its minimum hold was over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// What its acquire wants.
    pub terms: LeaseSpec,
    /// The fencing token of this lease, which never changes.
    pub version: FencingToken,
    /// Counts the writes that kept this lease alive. So each of them changes the record: a write that changes nothing
    /// proves nothing.
    pub refreshes: u64,
    /// When the key was granted.
    pub since: StoreTime,
    /// When the lease was granted or last extended.
    pub last_seen: StoreTime,
    /// When the store may grant the key to another lease.
    pub expires_at: StoreTime,
    /// No write moves `expires_at` past this time. `None`: the lease has no maximum hold.
    pub not_after: Option<StoreTime>,
    /// When the lease was released, if its minimum hold was not over then. The entry keeps the key unavailable until
    /// `expires_at`, under [`LeaseId::NONE`].
    pub released_at: Option<StoreTime>,
}

/// An entry of a record: an acquire that waits for the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// What it wants.
    pub terms: LeaseSpec,
    /// How long the waiter stays queued after its last acquire, and how long it then keeps a key that it was granted,
    /// in milliseconds.
    pub wait_ttl: u64,
    /// Counts its repeated acquires. So each answer "queued" comes from a write that changed the record.
    pub refreshes: u64,
    /// When it was queued.
    pub since: StoreTime,
    /// When its last acquire came.
    pub last_seen: StoreTime,
    /// When the waiter leaves the queue.
    pub expires_at: StoreTime,
}

/// A revocation: an operator took the key from its holders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "unstable-store"), non_exhaustive)]
pub struct PastRevocation {
    /// The operator.
    pub by: String,
    /// The reason.
    pub reason: String,
    /// When.
    pub at: StoreTime,
    /// The tokens of the leases that it ended.
    pub tokens: Vec<FencingToken>,
}

/// The last tick of a schedule that was completed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "unstable-store"), non_exhaustive)]
pub struct CompletedTick {
    /// The tick. A later tick is a larger number. That of a time is in milliseconds since the Unix epoch.
    pub tick: u64,
    /// The token of the lease that completed it. A reset keeps it, so that the completion, if it is delayed, does not
    /// undo the reset.
    pub token: FencingToken,
    /// The owner of that lease, or the operator that reset the schedule since.
    pub by: String,
    /// When.
    pub at: StoreTime,
}

/// A completed run of a schedule. [`Mongoseal::runs`](crate::Mongoseal::runs) returns the last of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "unstable-store"), non_exhaustive)]
pub struct PastRun {
    /// The tick that it completed.
    pub tick: u64,
    /// The token of its lease.
    pub token: FencingToken,
    /// The owner of its lease.
    pub by: String,
    /// When the work began: the time that it took, by the runner's clock, before the completion.
    pub since: StoreTime,
    /// When the tick was completed.
    pub at: StoreTime,
    /// Whether the work failed: see [`RunOnce::complete_on_error`](crate::action::RunOnce::complete_on_error).
    #[serde(rename = "failed")]
    pub is_failed: bool,
    /// The [note](crate::TickLease::note) of the work. Empty: none.
    pub note: String,
    /// The time between two ticks of the schedule in milliseconds, never 0, if its [`Tick`](crate::Tick) has a period.
    #[serde(with = "zero_is_none")]
    pub period: Option<u64>,
}

/// The value of a key, and the write that stored it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredValue {
    /// The content. `None`: the value was cleared.
    #[serde(default, deserialize_with = "some", skip_serializing_if = "Option::is_none")]
    pub content: Option<Json>,
    /// The token of the lease that wrote it.
    pub token: FencingToken,
    /// The id of the write: a random number below 2^53, never 0. A later write under the same token names it.
    pub write: u64,
    /// When.
    pub at: StoreTime,
}

/// Reads a content that is there, also `null`.
fn some<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}

/// The record of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The highest fencing token ever issued for the key, or the token that it was raised to.
    pub version: FencingToken,
    /// The holders, in the order of their grants.
    pub holders: Vec<Holder>,
    /// The waiters, in the order of their turn.
    pub queue: Vec<Waiter>,
    /// The acquires to which the last change granted the key from the queue, with their tokens. Without a token: those
    /// from which it took the key, and the first waiter if it must send its acquire again to learn when the key is
    /// available. So a handle that reads only this, in a stream of changes, gets all that concerns it and nothing else.
    pub handover: Vec<(AcquireId, Option<FencingToken>)>,
    /// When the record last changed.
    pub last_seen: StoreTime,
    /// When the record stops mattering. Never goes back.
    pub expires_at: StoreTime,
    /// The last revocations, oldest first.
    pub history: Vec<PastRevocation>,
    /// The last tick that was completed, if the key is that of a schedule.
    pub done: Option<CompletedTick>,
    /// The last completed runs, oldest first, if the key is that of a schedule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<PastRun>,
    /// The value of the key, unless none was ever put.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<StoredValue>,
}

/// The time until an expiry. [`Duration::MAX`] if that is longer than the longest ttl: then the lease has no expiry.
pub(crate) fn time_until(expires_at: StoreTime, now: StoreTime) -> Duration {
    Some(expires_at.since(now)).filter(|left| *left <= Ttl::MAX.duration()).unwrap_or(Duration::MAX)
}

impl Holder {
    /// Whether it has this lease id and this token.
    pub(crate) fn is_lease(&self, lease: LeaseId, token: FencingToken) -> bool {
        self.terms.lease == lease && self.version == token
    }

    /// How long from `now` until the key is free without a refresh. [`Duration::MAX`]: without expiry.
    #[must_use]
    pub fn free_in(&self, now: StoreTime) -> Duration {
        time_until(self.expires_at, now)
    }

    /// The error of a request that it keeps from the key, at this reading of the store's clock.
    pub(crate) fn held_error(self, key: &Key, at: Option<StoreClock>) -> Error {
        Error::Held {
            key: key.clone(),
            free_in: at.map(|at| self.free_in(at.now)).unwrap_or_default(),
            is_released: self.released_at.is_some(),
            owner: self.terms.owner,
            token: self.version,
        }
    }

    /// When its minimum hold ends.
    #[must_use]
    pub fn held_until(&self) -> Option<StoreTime> {
        self.terms.hold.min.map(|min| self.since.after(min))
    }
}

impl Record {
    /// How many revocations a record keeps.
    pub const MAX_HISTORY: usize = 8;

    /// How many completed runs a record keeps.
    pub const MAX_RUNS: usize = 32;

    /// The highest version from which a key can still issue tokens. It leaves room for all grants of one request.
    pub const MAX_VERSION: u64 = FencingToken::MAX.get().saturating_sub(1 << 20);

    /// The holder with this lease id, expired or not.
    #[must_use]
    pub fn holder(&self, lease: LeaseId) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.terms.lease == lease)
    }

    /// The holder with this lease id, unless it has expired.
    #[must_use]
    pub fn live_holder(&self, lease: LeaseId, now: StoreTime) -> Option<&Holder> {
        self.holder(lease).filter(|holder| holder.expires_at > now)
    }

    /// Whether the acquire with this lease id and this acquire id holds the key or waits for it.
    pub(crate) fn has_acquire(&self, lease: LeaseId, acquire_id: AcquireId, now: StoreTime) -> bool {
        let holders = self.holders.iter().map(|holder| (&holder.terms, holder.expires_at));
        let waiters = self.queue.iter().map(|waiter| (&waiter.terms, waiter.expires_at));
        holders.chain(waiters).any(|(terms, expires_at)| terms.is_of(lease, acquire_id) && expires_at > now)
    }

    /// How many waiters have not expired.
    #[must_use]
    pub fn count_waiters(&self, now: StoreTime) -> usize {
        self.queue.iter().filter(|waiter| waiter.expires_at > now).count()
    }

    /// The part of the record from which the outcome of a request is read.
    #[must_use]
    pub fn summarize(&self, request: &Request) -> RecordSummary {
        RecordSummary::of(request, self.version, &self.holders, &self.queue, (self.done.as_ref(), self.value.as_ref()))
    }
}

#[cfg(test)]
mod tests;

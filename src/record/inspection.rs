//! What of a record is for people to see: all but the lease ids, which are secrets.

use std::time::Duration;

use super::{Holder, LeaseSpec, Record, Revocation, StoreTime, Waiter};
use crate::{FencingToken, Group, Key, Metadata, Owner};

/// A record as it was when it was read, without the secrets in it.
///
/// Made by [`Mongoseal::inspect`](crate::Mongoseal::inspect).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The key.
    pub key: Key,
    /// The highest fencing token ever issued for the key, or the token that it was raised to.
    pub version: FencingToken,
    /// Who holds the key, in the order in which they came. Among them may be holders whose time is over:
    /// they stay in the record until it is asked for the next time.
    pub holders: Vec<HolderInfo>,
    /// Who waits for it, in order of their turn. As with holders, some may be gone.
    pub queue: Vec<WaiterInfo>,
    /// The last revocations, oldest first.
    pub history: Vec<PastRevocation>,
    /// When the record last changed.
    pub last_seen: StoreTime,
    /// When it was read: `read_at.since(last_seen)` is how long ago it changed.
    pub read_at: StoreTime,
}

/// Somebody who holds a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// Who, in words for people.
    pub owner: Owner,
    /// The lease's fencing token.
    pub token: FencingToken,
    /// How many may hold the key together at most, as far as this holder cares; `None` is exclusive.
    pub limit: Option<u32>,
    /// When the key was granted.
    pub since: StoreTime,
    /// When the holder was last heard of.
    pub last_seen: StoreTime,
    /// How long the store keeps the key for this holder if nothing is heard of it, by the store's
    /// clock; zero where that time is over. `None` is for ever: a lease without expiry.
    pub remaining: Option<Duration>,
    /// The group it belongs to, if it belongs to one.
    pub group: Option<Group>,
    /// What the owner says of its lease.
    pub metadata: Metadata,
}

/// Somebody who waits for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaiterInfo {
    /// Who, in words for people.
    pub owner: Owner,
    /// How many wait before it.
    pub position: usize,
    /// How many may hold the key together at most, as far as this waiter cares; `None` is exclusive.
    pub limit: Option<u32>,
    /// When it was queued.
    pub since: StoreTime,
    /// When it was last heard of.
    pub last_seen: StoreTime,
    /// How long it keeps its place if nothing is heard of it, by the store's clock; zero where that
    /// time is over.
    pub remaining: Duration,
    /// The group it will belong to, if it belongs to one.
    pub group: Option<Group>,
    /// What it says of itself.
    pub metadata: Metadata,
}

/// That an operator took the key from its holders.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PastRevocation {
    /// Who did.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: StoreTime,
    /// Which tokens were taken.
    pub tokens: Vec<FencingToken>,
}

/// A lease as it was when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedLease {
    /// The key that is held.
    pub key: Key,
    /// By whom.
    pub holder: HolderInfo,
    /// When it was read: `read_at.since(holding.since)` is for how long it had been held.
    pub read_at: StoreTime,
}

impl Inspection {
    /// What people may see of a record that was read at this time.
    #[must_use]
    pub fn of(key: Key, record: Record, read_at: StoreTime) -> Self {
        let Record { version, holders, queue, last_seen, history, .. } = record;
        let waiting = |(position, waiter)| WaiterInfo::of(waiter, position, read_at);
        Self {
            key,
            version,
            holders: holders.into_iter().map(|holder| HolderInfo::of(holder, read_at)).collect(),
            queue: queue.into_iter().enumerate().map(waiting).collect(),
            history: history.into_iter().map(PastRevocation::of).collect(),
            last_seen,
            read_at,
        }
    }
}

impl HolderInfo {
    /// What people may see of a holder that was read at this time.
    #[must_use]
    pub fn of(holder: Holder, read_at: StoreTime) -> Self {
        let remaining = holder.remaining(read_at);
        let LeaseSpec { owner, limit, group, metadata, .. } = holder.terms;
        Self {
            owner,
            token: holder.version,
            limit: shared_by(limit),
            since: holder.since,
            last_seen: holder.last_seen,
            remaining,
            group,
            metadata,
        }
    }

    /// Whether its time was over: the store gives the key to whoever asks next.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.remaining == Some(Duration::ZERO)
    }

    /// Whether the key is held by this one alone.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.limit.is_none()
    }
}

impl WaiterInfo {
    fn of(waiter: Waiter, position: usize, read_at: StoreTime) -> Self {
        let LeaseSpec { owner, limit, group, metadata, .. } = waiter.terms;
        Self {
            owner,
            position,
            limit: shared_by(limit),
            since: waiter.since,
            last_seen: waiter.last_seen,
            remaining: waiter.expires_at.since(read_at),
            group,
            metadata,
        }
    }
}

impl PastRevocation {
    fn of(revocation: Revocation) -> Self {
        let Revocation { by, reason, at, tokens } = revocation;
        Self { by, reason, at, tokens }
    }
}

impl ListedLease {
    /// What people may see of a holder of this key that was read at this time.
    #[must_use]
    pub fn of(key: Key, holder: Holder, read_at: StoreTime) -> Self {
        Self { key, holder: HolderInfo::of(holder, read_at), read_at }
    }
}

/// A limit as people see it.
pub(crate) fn shared_by(limit: u32) -> Option<u32> {
    (limit > 0).then_some(limit)
}

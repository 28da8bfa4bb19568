//! The public part of a record: all but the lease ids, which are secrets.

use std::time::Duration;

use serde::de::DeserializeOwned;

use super::{CompletedTick, Holder, LeaseSpec, PastRevocation, Record, StoreTime, StoredValue, Waiter};
use crate::types::{
    error::Result, group::Group, json::Json, key::Key, metadata::Metadata, owner::Owner, sharing::Sharing,
    token::FencingToken,
};

/// A record as it was when it was read, without its secrets.
///
/// [`Mongoseal::inspect`](crate::Mongoseal::inspect) returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The key.
    pub key: Key,
    /// The highest fencing token ever issued for the key, or the token that it was raised to.
    pub version: FencingToken,
    /// The holders, in the order of their grants. Some may have expired: an expired holder stays in the record until
    /// the next write that prunes.
    pub holders: Vec<HolderInfo>,
    /// The waiters, in the order of their turn. Some may have expired.
    pub queue: Vec<WaiterInfo>,
    /// The last revocations, oldest first.
    pub history: Vec<PastRevocation>,
    /// The last tick that was completed, if the key is that of a schedule: see [`Mongoseal::once`](crate::Mongoseal::once).
    pub done: Option<CompletedTick>,
    /// The value of the key, if it has one: see [`Lease::put_value`](crate::Lease::put_value).
    pub value: Option<KeyValue<Json>>,
    /// When the record last changed.
    pub last_seen: StoreTime,
    /// When it was read: `read_at.since(last_seen)` is how long ago it changed.
    pub read_at: StoreTime,
}

/// A holder of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// The owner, chosen by its process.
    pub owner: Owner,
    /// The fencing token of the lease.
    pub token: FencingToken,
    /// How many holders may share the key, as this holder wants it.
    pub sharing: Sharing,
    /// When the key was granted.
    pub since: StoreTime,
    /// When the lease was granted or last extended.
    pub last_seen: StoreTime,
    /// How long until the key is free if this holder does not refresh, by the store's clock. Zero: expired.
    /// [`Duration::MAX`]: without expiry.
    pub free_in: Duration,
    /// How much longer than the ttl the store keeps the key. The holder stops believing this much earlier than the key is
    /// free.
    pub grace: Duration,
    /// The end of its minimum hold, if it has one: if the lease is released before, the key stays unavailable until then.
    pub held_until: Option<StoreTime>,
    /// The end of its maximum hold, with the grace, if it has one: no refresh extends the lease past this time.
    pub not_after: Option<StoreTime>,
    /// When the lease was released, if its minimum hold was not over then. No process holds the key since, and it is
    /// unavailable for the time that remains.
    pub released_at: Option<StoreTime>,
    /// The group of the lease, if it has one.
    pub group: Option<Group>,
    /// The metadata of the lease.
    pub metadata: Metadata,
}

/// A waiter for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaiterInfo {
    /// The owner, chosen by its process.
    pub owner: Owner,
    /// How many waiters are before it.
    pub position: usize,
    /// How many holders may share the key, as this waiter wants it.
    pub sharing: Sharing,
    /// When it was queued.
    pub since: StoreTime,
    /// When its last acquire came.
    pub last_seen: StoreTime,
    /// How long it keeps its place without a further acquire, by the store's clock. Zero: expired.
    pub remaining: Duration,
    /// The group that its lease will have, if any.
    pub group: Option<Group>,
    /// The metadata that its lease will have.
    pub metadata: Metadata,
}

/// A lease as it was when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedLease {
    /// The key.
    pub key: Key,
    /// The holder.
    pub holder: HolderInfo,
    /// How many waiters the key has that have not expired. A purge does not count them, and returns 0.
    pub waiting: usize,
    /// The value of the key, if it has one.
    pub value: Option<KeyValue<Json>>,
    /// When it was read: `read_at.since(holder.since)` is for how long the key had been held.
    pub read_at: StoreTime,
}

/// The value of a key: see [`Lease::put_value`](crate::Lease::put_value).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyValue<T> {
    /// The content.
    pub content: T,
    /// The token of the lease that wrote it.
    pub token: FencingToken,
    /// When.
    pub at: StoreTime,
}

impl KeyValue<Json> {
    /// The value, unless it was cleared.
    #[must_use]
    pub fn of(value: Option<StoredValue>) -> Option<Self> {
        let StoredValue { content, token, at, .. } = value?;
        Some(Self { content: content?, token, at })
    }

    /// Reads the content as a value of this type.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if it has another form.
    pub fn parse<T: DeserializeOwned>(self) -> Result<KeyValue<T>> {
        Ok(KeyValue { content: self.content.parse()?, token: self.token, at: self.at })
    }
}

impl Inspection {
    /// The public part of a record that was read at this time.
    #[must_use]
    pub fn of(key: Key, record: Record, read_at: StoreTime) -> Self {
        let Record { version, holders, queue, last_seen, history, done, value, .. } = record;
        let waiting = |(position, waiter)| WaiterInfo::of(waiter, position, read_at);
        Self {
            key,
            version,
            holders: holders.into_iter().map(|holder| HolderInfo::of(holder, read_at)).collect(),
            queue: queue.into_iter().enumerate().map(waiting).collect(),
            history,
            done,
            value: KeyValue::of(value),
            last_seen,
            read_at,
        }
    }
}

impl HolderInfo {
    /// The public part of a holder that was read at this time.
    #[must_use]
    pub fn of(holder: Holder, read_at: StoreTime) -> Self {
        let (free_in, held_until) = (holder.free_in(read_at), holder.held_until());
        let LeaseSpec { owner, sharing, grace, group, metadata, .. } = holder.terms;
        Self {
            owner,
            grace: Duration::from_millis(grace),
            token: holder.version,
            sharing,
            since: holder.since,
            last_seen: holder.last_seen,
            free_in,
            held_until,
            not_after: holder.not_after,
            released_at: holder.released_at,
            group,
            metadata,
        }
    }

    /// Whether the lease had expired: the store grants the key to the next acquire.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.free_in.is_zero()
    }

    /// Whether the key is held by this holder alone.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.sharing.is_exclusive()
    }
}

impl WaiterInfo {
    fn of(waiter: Waiter, position: usize, read_at: StoreTime) -> Self {
        let LeaseSpec { owner, sharing, group, metadata, .. } = waiter.terms;
        Self {
            owner,
            position,
            sharing,
            since: waiter.since,
            last_seen: waiter.last_seen,
            remaining: waiter.expires_at.since(read_at),
            group,
            metadata,
        }
    }
}

impl ListedLease {
    /// The public part of a holder of this key that was read at this time, when the key had so many waiters.
    #[must_use]
    pub fn of(key: Key, holder: Holder, waiting: usize, value: Option<StoredValue>, read_at: StoreTime) -> Self {
        Self { key, holder: HolderInfo::of(holder, read_at), waiting, value: KeyValue::of(value), read_at }
    }
}

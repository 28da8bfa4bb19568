//! The record of a key: who holds it, who waits for it, and the highest token it ever issued or was raised to.
//!
//! A record is plain data. What the verbs do to it is [`apply`], a pure function: the memory store
//! runs it, and the MongoDB store runs the same machine as an update pipeline inside the server.

mod batch;
pub(crate) mod events;
mod filter;
pub(crate) mod inspection;
mod request;
mod state_machine;

use std::time::Duration;

pub use batch::{BatchRequest, LeaseRefs, lease_refs};
pub use events::{Event, EventKind};
pub use filter::{Filter, Position, SharingFilter};
pub use inspection::{HolderInfo, Inspection, ListedLease, PastRevocation, WaiterInfo};
pub use request::*;
pub use state_machine::{apply, apply_batch, apply_together};

use crate::{AcquireId, FencingToken, Group, LeaseId, Metadata, Owner, Ttl, types::token::HybridTime};

/// A time on the store's clock: milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreTime(i64);

impl StoreTime {
    /// The time so many milliseconds after the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// The time so many milliseconds later.
    #[must_use]
    pub fn after(self, millis: u64) -> Self {
        Self(self.0.saturating_add_unsigned(millis))
    }

    /// How long it is from `now` until this time; zero where it has passed.
    #[must_use]
    pub fn since(self, now: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(now.0)).unwrap_or(0))
    }
}

/// When a store looked at a record: on its wall clock, which times leases, and on its hybrid
/// logical clock, which numbers tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreClock {
    /// The store's wall clock.
    pub now: StoreTime,
    /// The store's hybrid logical clock.
    pub tick: HybridTime,
}

impl StoreClock {
    /// The hybrid clock's second as a time.
    fn hybrid(&self) -> StoreTime {
        StoreTime(i64::try_from(self.tick.seconds.saturating_mul(1000)).unwrap_or(i64::MAX))
    }
}

/// What somebody asks of a key: who, for how long, alone or with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseSpec {
    /// The secret that stands for the lease.
    pub lease: LeaseId,
    /// Whom to tell when the key was handed over.
    pub caller: AcquireId,
    /// Who asks.
    pub owner: Owner,
    /// How many may hold the key together at most; 0 is exclusive.
    pub limit: u32,
    /// How long a holder lasts without a refresh, in milliseconds.
    pub ttl: u64,
    /// How much longer the store waits before it gives the key to somebody else, in milliseconds.
    pub grace: u64,
    /// What it has in common with other leases.
    pub group: Option<Group>,
    /// What the owner says of its lease.
    pub metadata: Metadata,
}

/// An entry of a record: somebody who holds the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Who, and what was asked.
    pub terms: LeaseSpec,
    /// The fencing token of this lease, the same for as long as it lives.
    pub version: FencingToken,
    /// Counts the writes that kept this lease alive, so that each of them changes the record:
    /// a write that changes nothing proves nothing.
    pub refreshes: u64,
    /// When the key was granted.
    pub since: StoreTime,
    /// When the holder was last heard of.
    pub last_seen: StoreTime,
    /// When the store may give the key to somebody else.
    pub expires_at: StoreTime,
}

/// An entry of a record: somebody who waits for the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Who, and what was asked.
    pub terms: LeaseSpec,
    /// How long the waiter stays queued, and later keeps a key it was handed, without being heard
    /// of; in milliseconds.
    pub wait_ttl: u64,
    /// Counts how often it asked again, so that each answer "queued" comes from a write that changed
    /// the record.
    pub refreshes: u64,
    /// When it was queued.
    pub since: StoreTime,
    /// When the waiter was last heard of.
    pub last_seen: StoreTime,
    /// When the waiter falls out of the queue.
    pub expires_at: StoreTime,
}

/// That an operator took the key from its holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// Who did.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: StoreTime,
    /// Which tokens were taken.
    pub tokens: Vec<FencingToken>,
}

/// All that is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The highest fencing token ever issued for the key, or the token that it was raised to.
    pub version: FencingToken,
    /// Who holds the key, in the order in which they came.
    pub holders: Vec<Holder>,
    /// Who waits for it, in order of their turn.
    pub queue: Vec<Waiter>,
    /// To whom the last change handed the key from the queue, with which tokens, and, without one, from
    /// whom it took the key: a handle that
    /// looks only at this, in a stream of changes, hears of what concerns it and of nothing else.
    pub handover: Vec<(AcquireId, Option<FencingToken>)>,
    /// When the record last changed.
    pub last_seen: StoreTime,
    /// When the record has stopped mattering. Never goes back.
    pub expires_at: StoreTime,
    /// The last revocations, oldest first.
    pub history: Vec<Revocation>,
}

/// How long it is to an expiry. One that is further away than the longest ttl is none: whoever takes
/// up a lease without expiry with a ttl has not made it one that ends.
pub(crate) fn remaining(expires_at: StoreTime, now: StoreTime) -> Option<Duration> {
    Some(expires_at.since(now)).filter(|left| *left <= Ttl::MAX.duration())
}

impl Holder {
    /// How long it lasts from `now` without a refresh: `None` without expiry.
    #[must_use]
    pub fn remaining(&self, now: StoreTime) -> Option<Duration> {
        remaining(self.expires_at, now)
    }
}

impl Record {
    /// How many revocations a record remembers.
    pub const MAX_HISTORY: usize = 8;

    /// The highest version from which a key can still issue tokens: room is left for as many
    /// grants as one request can make.
    pub const MAX_VERSION: u64 = FencingToken::MAX.get().saturating_sub(1 << 20);

    /// The entry of the holder with this lease, whether or not it has expired.
    #[must_use]
    pub fn holder(&self, lease: LeaseId) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.terms.lease == lease)
    }

    /// The entry of the holder with this lease, unless it has expired.
    #[must_use]
    pub fn live_holder(&self, lease: LeaseId, now: StoreTime) -> Option<&Holder> {
        self.holder(lease).filter(|holder| holder.expires_at > now)
    }

    /// What of the record tells the outcome of a request.
    #[must_use]
    pub fn view(&self, request: &Request) -> RecordSummary {
        let position = match request {
            Request::Leave(leave) => self.queue.iter().position(|waiter| leave.ends(&waiter.terms)),
            request => request.lease().and_then(|lease| self.position(lease)),
        };
        RecordSummary { version: self.version, holders: self.holders.clone(), position, waiting: self.queue.len() }
    }

    /// How many wait before this lease.
    #[must_use]
    pub fn position(&self, lease: LeaseId) -> Option<usize> {
        self.queue.iter().position(|waiter| waiter.terms.lease == lease)
    }
}

#[cfg(test)]
mod tests;

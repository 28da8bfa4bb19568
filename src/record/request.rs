//! The requests to a record, and their outcomes.

mod outcome;

pub use outcome::{Outcome, RecordSummary, ReturnDocument};

use super::{Holder, LeaseSpec, StoreTime, StoredValue};
use crate::types::{
    acquire_id::AcquireId,
    json::Json,
    lease_id::LeaseId,
    metadata::Metadata,
    sharing::Sharing,
    token::{FencingToken, HybridTime},
};

/// A request to the record of a key. Each can be sent twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Acquires the key.
    Acquire(Acquire),
    /// Refreshes a lease.
    Refresh(Refresh),
    /// Releases a lease.
    Release(Release),
    /// Releases what an acquire was granted, or leaves its place in the queue.
    Leave(Leave),
    /// Takes the key from its holders.
    Revoke(Revoke),
    /// Transfers a lease to another lease id.
    Transfer(Transfer),
    /// Transfers a lease that alone holds its key, and excludes others from then on.
    Upgrade(Transfer),
    /// Lets other holders share the key.
    Downgrade(Downgrade),
    /// Raises the version of the record.
    Raise(Raise),
    /// Completes a tick of a schedule and releases the lease.
    Complete(Complete),
    /// Lowers the last completed tick of a schedule.
    Reset(Reset),
    /// Puts or clears the value of the key.
    PutValue(PutValue),
    /// Only prunes and grants, as each request does: removes what has expired and hands the key over to the next
    /// waiter.
    Prune,
}

/// Acquires the key. If this acquire holds or waits already, it keeps its token or its place in the queue. If its lease
/// id is in the record under another acquire id, it changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// The lease that is wanted.
    pub terms: LeaseSpec,
    /// How to wait if the key cannot be granted now. `None`: the acquire takes no place in the queue, and leaves the
    /// place that it has.
    pub wait: Option<WaitSpec>,
}

impl Acquire {
    /// The outcome, read from the record after the acquire. `None`: there is no record.
    #[must_use]
    pub fn outcome(&self, after: Option<&RecordSummary>) -> Outcome {
        let Some(after) = after else { return Outcome::Absent };
        let boxed = |holder: &Holder| Box::new(holder.clone());
        if let Some(holder) =
            after.holders.iter().find(|holder| holder.terms.is_of(self.terms.lease, self.terms.acquire_id))
        {
            let value = after.value.clone().map(Box::new);
            return Outcome::Granted { token: holder.version, not_after: holder.not_after, value };
        }
        if let (Some(holder), None) = (after.holder(self.terms.lease), after.position) {
            return Outcome::Refused { holder: boxed(holder) };
        }
        let by_expiry = |holder: &&Holder| holder.expires_at;
        let (first, last) = (after.holders.iter().min_by_key(by_expiry), after.holders.iter().max_by_key(by_expiry));
        // If the acquire is not granted, there is a holder.
        let (Some(first), Some(last)) = (first, last) else { return Outcome::Absent };
        match (after.position, self.wait) {
            (Some(position), _) => Outcome::Queued { position, version: after.version, holder: boxed(first) },
            (None, Some(_)) => Outcome::Full { length: after.waiting },
            (None, None) => Outcome::Refused { holder: boxed(last) },
        }
    }
}

/// How to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitSpec {
    /// How long the waiter stays queued after its last acquire, in milliseconds.
    pub ttl: u64,
    /// How many may wait for the key at most, this one included.
    pub queue_limit: u32,
}

/// Refreshes a lease. Never creates one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refresh {
    /// The lease id.
    pub lease: LeaseId,
    /// How long it lasts from now without a further refresh, in milliseconds. It never ends sooner than before.
    pub ttl: u64,
    /// How much longer the store waits, in milliseconds.
    pub grace: u64,
    /// The new metadata. `None`: it stays as it is.
    pub metadata: Option<Metadata>,
    /// The acquire that is notified of a revocation from now on, in a handle that resumes the lease. `None`: it stays as
    /// it is.
    pub acquire_id: Option<AcquireId>,
}

/// Releases a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The lease id.
    pub lease: LeaseId,
    /// The token. So a delayed release does not end a later grant of the same lease id.
    pub token: FencingToken,
}

/// Releases what an acquire was granted, or leaves its place in the queue. Its caller does not know the outcome of the
/// acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leave {
    /// The lease id of the acquire.
    pub lease: LeaseId,
    /// The acquire id. So a delayed leave does not end what a later acquire with the same lease id was granted.
    pub acquire_id: AcquireId,
}

/// Takes the key from its holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoke {
    /// The operator.
    pub by: String,
    /// The reason.
    pub reason: String,
    /// The last token to revoke: a lease with a later token stays.
    pub upto: FencingToken,
}

/// Transfers a lease to another lease id, with a larger token and its ttl from now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The lease id.
    pub lease: LeaseId,
    /// The token.
    pub token: FencingToken,
    /// The lease id that holds the key from now on.
    pub to: LeaseId,
}

/// Lets other holders share a key whose holder has excluded them. The lease, its token and its expiry stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Downgrade {
    /// The lease id.
    pub lease: LeaseId,
    /// The token. A delayed downgrade does not change a later grant of the same lease id.
    pub token: FencingToken,
    /// How many holders may share the key from then on, this one included.
    pub sharing: Sharing,
}

impl Downgrade {
    /// Whether this holder gets the new limit: it excludes all others, or has that limit already. The limit of a sharing
    /// holder never changes, so a delayed downgrade does not undo a later one.
    pub(crate) fn changes(&self, holder: &Holder) -> bool {
        holder.is_lease(self.lease, self.token)
            && (holder.terms.sharing.is_exclusive() || holder.terms.sharing == self.sharing)
    }
}

/// Raises the version of the record, so that each later token of the key is larger. Creates a missing record. Holders
/// and waiters stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raise {
    /// The version is at least this token afterwards.
    pub to: FencingToken,
}

impl Raise {
    /// The record is kept at least until this time: the end of the second that the token stands for. After it the clock
    /// alone numbers larger tokens, and the key no longer needs the record.
    pub(crate) fn keep_until(self) -> StoreTime {
        StoreTime::default().after(HybridTime::from(self.to).seconds.saturating_add(1).saturating_mul(1_000))
    }
}

/// Completes a tick of a schedule and releases the lease under which it ran.
///
/// The tick is completed if the lease holds the key, or has expired and the key was granted to no other lease since. A
/// revoked lease does not complete it. Completing never lowers the last completed tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complete {
    /// The lease id.
    pub lease: LeaseId,
    /// The token of the lease.
    pub token: FencingToken,
    /// The tick.
    pub tick: u64,
    /// The owner of the lease.
    pub by: String,
    /// How long after the completion the record matters at least, in milliseconds. The store keeps it for its retention
    /// after that.
    pub keep: u64,
    /// What the record keeps of the run beside.
    pub report: RunReport,
}

/// What a runner reports of a completed run: see [`PastRun`](super::PastRun).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunReport {
    /// How long the work took, in milliseconds.
    pub took: u64,
    /// Whether the work failed.
    pub is_failed: bool,
    /// The note of the work. Empty: none.
    pub note: String,
    /// The time between two ticks of the schedule, in milliseconds, never 0. `None`: it is not known.
    pub period: Option<u64>,
}

/// Puts or clears the value of the key, under a lease that holds the key and excludes others.
///
/// The write names the write before it. So the writes under a token form a chain: a delayed or repeated one changes
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutValue {
    /// The lease id.
    pub lease: LeaseId,
    /// The token of the lease.
    pub token: FencingToken,
    /// The id of the write under this token that it replaces. 0: it is the first under this token.
    pub after: u64,
    /// The id of this write: see [`StoredValue::write`](super::StoredValue::write).
    pub write: u64,
    /// The content. `None`: clears the value.
    pub content: Option<Json>,
    /// How long after the write the record matters at least, in milliseconds. The store keeps it for its retention after
    /// that.
    pub keep: u64,
    /// Whether the write that stores the value releases the lease.
    pub releases: bool,
}

impl PutValue {
    /// Whether the value is that of this write.
    pub(crate) fn is_in(&self, value: Option<&StoredValue>) -> bool {
        value.is_some_and(|value| value.token == self.token && value.write == self.write)
    }

    /// The id of the last write under the token of this one. 0: there is none.
    pub(crate) fn last_write(&self, value: Option<&StoredValue>) -> u64 {
        value.filter(|value| value.token == self.token).map_or(0, |value| value.write)
    }

    fn outcome(&self, after: &RecordSummary) -> Outcome {
        let value = after.value.as_ref();
        if self.is_in(value) {
            return Outcome::ValuePut;
        }
        match after.holders.iter().find(|holder| holder.is_lease(self.lease, self.token)) {
            Some(holder) if holder.terms.sharing.is_exclusive() => {
                Outcome::ValueOutdated { write: self.last_write(value) }
            }
            Some(holder) => Outcome::Refused { holder: Box::new(holder.clone()) },
            None => Outcome::Absent,
        }
    }
}

/// Lowers the last completed tick of a schedule, so that the ticks after `tick` can run again. Never raises it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The last tick that is completed from then on.
    pub tick: u64,
    /// The last completion to undo, by its token. So a delayed reset does not undo a later completion.
    pub upto: FencingToken,
    /// The operator.
    pub by: String,
}

impl Request {
    /// The lease id of the request, if it has one.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseId> {
        match self {
            Self::Acquire(acquire) => Some(acquire.terms.lease),
            Self::Refresh(refresh) => Some(refresh.lease),
            Self::Release(release) => Some(release.lease),
            Self::Leave(leave) => Some(leave.lease),
            Self::Transfer(transfer) | Self::Upgrade(transfer) => Some(transfer.lease),
            Self::Downgrade(downgrade) => Some(downgrade.lease),
            Self::Complete(complete) => Some(complete.lease),
            Self::PutValue(put) => Some(put.lease),
            Self::Revoke(_) | Self::Raise(_) | Self::Reset(_) | Self::Prune => None,
        }
    }

    /// The state of the record from which the outcome is read.
    #[must_use]
    pub fn return_document(&self) -> ReturnDocument {
        match self {
            Self::Acquire(_)
            | Self::Refresh(_)
            | Self::Transfer(_)
            | Self::Upgrade(_)
            | Self::Downgrade(_)
            | Self::Raise(_)
            | Self::Complete(_)
            | Self::Reset(_)
            | Self::PutValue(_) => ReturnDocument::After,
            Self::Release(_) | Self::Leave(_) | Self::Revoke(_) | Self::Prune => ReturnDocument::Before,
        }
    }

    /// Reads the outcome from the [state](Self::return_document) of the record. `now` is the time at which the request
    /// was applied.
    #[must_use]
    pub fn outcome(&self, summary: Option<&RecordSummary>, now: StoreTime) -> Outcome {
        match (self, summary) {
            (Self::Acquire(acquire), after) => acquire.outcome(after),
            (Self::Refresh(refresh), Some(after)) => match after.holder(refresh.lease) {
                Some(holder) => Outcome::Refreshed { token: holder.version },
                None => Outcome::Absent,
            },
            (Self::Release(release), Some(before)) => {
                let held = before
                    .holders
                    .iter()
                    .any(|holder| holder.is_lease(release.lease, release.token) && holder.expires_at > now);
                if held { Outcome::Released } else { Outcome::Absent }
            }
            (Self::Leave(leave), Some(before)) => {
                let is_own = |holder: &Holder| holder.terms.is_of(leave.lease, leave.acquire_id);
                let held = before.holders.iter().any(|holder| is_own(holder) && holder.expires_at > now);
                if held || before.position.is_some() { Outcome::Released } else { Outcome::Absent }
            }
            (Self::Revoke(revoke), Some(before)) => {
                let ends = |holder: &&Holder| holder.expires_at > now && holder.version <= revoke.upto;
                Outcome::Revoked { holders: before.holders.iter().filter(ends).cloned().collect() }
            }
            (Self::Transfer(transfer) | Self::Upgrade(transfer), Some(after)) => {
                let receiver = after.holder(transfer.to);
                let is_giver = |holder: &Holder| holder.is_lease(transfer.lease, transfer.token);
                if !after.holders.iter().any(is_giver) {
                    return receiver.map_or(Outcome::Absent, |holder| Outcome::Transferred { token: holder.version });
                }
                // The giver still holds: nothing was transferred.
                let other = receiver.or_else(|| after.holders.iter().find(|holder| !is_giver(holder)));
                other.map_or(Outcome::Absent, |holder| Outcome::Refused { holder: Box::new(holder.clone()) })
            }
            (Self::Downgrade(downgrade), Some(after)) => {
                match after.holders.iter().find(|holder| holder.is_lease(downgrade.lease, downgrade.token)) {
                    Some(holder) if holder.terms.sharing == downgrade.sharing => Outcome::Downgraded,
                    Some(holder) => Outcome::Refused { holder: Box::new(holder.clone()) },
                    None => Outcome::Absent,
                }
            }
            (Self::Raise(_), Some(after)) => Outcome::Raised { version: after.version },
            (Self::Complete(complete), Some(after)) => match &after.done {
                Some(done) if done.token == complete.token => Outcome::Completed,
                _ => Outcome::Absent,
            },
            (Self::PutValue(put), Some(after)) => put.outcome(after),
            (Self::Reset(_), Some(after)) => Outcome::Reset { done: after.done.clone() },
            (Self::Prune, Some(before)) => {
                let over = |holder: &&Holder| holder.expires_at <= now;
                Outcome::Pruned { holders: before.holders.iter().filter(over).cloned().collect() }
            }
            (_, None) => Outcome::Absent,
        }
    }
}

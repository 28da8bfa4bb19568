//! Events of a key, computed from one state of its record to the next.

use super::{Holder, HolderInfo, PastRevocation, Record, StoreTime};
use crate::types::{key::Key, owner::Owner, token::FencingToken};

/// An event of a key.
///
/// An [`EventStream`](crate::inspect::EventStream) returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The key.
    pub key: Key,
    /// The fencing token of the lease.
    pub token: FencingToken,
    /// The owner of the lease.
    pub owner: Owner,
    /// When, on the store's clock. If states in between were not seen, as when polling, it happened then or before.
    pub at: StoreTime,
    /// What happened.
    pub kind: EventKind,
}

/// What happened to a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// The lease held the key when the watch began. Later also if an operator put an older record back, or the store's clock
    /// was set back so far that an expired lease holds again. So it does in a write that a lock of the record delayed past
    /// the expiry: such a write has the time at which it was sent.
    Holds {
        /// The holder.
        holding: HolderInfo,
    },
    /// The lease was granted the key.
    Granted {
        /// The holder.
        holding: HolderInfo,
    },
    /// Its holder released it.
    Released,
    /// The lease expired.
    Expired,
    /// An operator revoked it.
    Revoked {
        /// The operator.
        by: String,
        /// The reason.
        reason: String,
    },
    /// Its holder transferred it to another lease id, which has a larger token.
    Transferred {
        /// The holder from now on.
        to: HolderInfo,
    },
    /// The record was deleted while it held the key, or an older copy was put back. In a watch of a prefix also: its
    /// document is no longer a record.
    Removed,
}

/// The first events of a watch: the holders of a record that was read at this time.
pub(crate) fn present(key: &Key, record: Option<&Record>, at: StoreTime) -> Vec<Event> {
    live(record, at).map(|holder| event(key, holder, at, EventKind::Holds { holding: holding(holder, at) })).collect()
}

/// The events between a state of a record and a later one, which was seen at this time. If an expired holder was
/// reported before, leave it out of `before`.
///
/// Between two consecutive states this returns all events. Otherwise it returns how the holders of `before` ended, as
/// far as the later record shows, and the holders of the later record.
pub(crate) fn changes(key: &Key, before: Option<&Record>, after: Option<&Record>, at: StoreTime) -> Vec<Event> {
    let diff = RecordDiff { key, before, after, at };
    let mut events: Vec<Event> = holders(before).filter_map(|holder| diff.end_event(holder)).collect();
    // Holders that expired at different times are dropped by one change.
    events.sort_by_key(|event| event.at);
    let received: Vec<FencingToken> = events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Transferred { to } => Some(to.token),
            _ => None,
        })
        .collect();
    events.extend(diff.arrived().filter(|holder| !received.contains(&holder.version)).map(|holder| {
        let holding = holding(holder, at);
        // A token that was issued before is not a new grant.
        if before.is_none_or(|before| holder.version > before.version) {
            event(key, holder, holder.since, EventKind::Granted { holding })
        } else {
            event(key, holder, at, EventKind::Holds { holding })
        }
    }));
    events
}

/// The holders of a record. An entry that only keeps the key unavailable after its release is none.
fn holders(record: Option<&Record>) -> impl Iterator<Item = &Holder> {
    record.into_iter().flat_map(|record| &record.holders).filter(|holder| holder.released_at.is_none())
}

/// The record without its expired holders, which stay in it until the next write that prunes.
pub(crate) fn without_expired(mut record: Record, at: StoreTime) -> Record {
    record.holders.retain(|holder| holder.expires_at > at);
    record
}

fn live(record: Option<&Record>, at: StoreTime) -> impl Iterator<Item = &Holder> {
    holders(record).filter(move |holder| holder.expires_at > at)
}

fn event(key: &Key, holder: &Holder, at: StoreTime, kind: EventKind) -> Event {
    Event { key: key.clone(), token: holder.version, owner: holder.terms.owner.clone(), at, kind }
}

fn holding(holder: &Holder, at: StoreTime) -> HolderInfo {
    HolderInfo::of(holder.clone(), at)
}

/// The difference between two states.
struct RecordDiff<'a> {
    key: &'a Key,
    before: Option<&'a Record>,
    after: Option<&'a Record>,
    at: StoreTime,
}

impl<'a> RecordDiff<'a> {
    /// The holders of the later state that the earlier one did not have.
    fn arrived(&self) -> impl Iterator<Item = &'a Holder> {
        let before = self.before;
        live(self.after, self.at).filter(move |holder| holders(before).all(|other| other.version != holder.version))
    }

    /// How a holder ended, if it did.
    fn end_event(&self, holder: &Holder) -> Option<Event> {
        let still = holders(self.after).find(|other| other.version == holder.version);
        if still.is_some_and(|still| still.expires_at > self.at) {
            return None;
        }
        let end = still.unwrap_or(holder).expires_at;
        let expired = event(self.key, holder, end, EventKind::Expired);
        let Some(after) = self.after.filter(|after| after.version >= holder.version) else {
            let removed = event(self.key, holder, self.at, EventKind::Removed);
            return Some(if end <= self.at { expired } else { removed });
        };
        Some(if let Some(PastRevocation { by, reason, at, .. }) = self.revocation(holder) {
            event(self.key, holder, *at, EventKind::Revoked { by: by.clone(), reason: reason.clone() })
        } else if let Some(receiver) = self.receiver(holder) {
            event(self.key, holder, receiver.since, EventKind::Transferred { to: holding(receiver, self.at) })
        } else if still.is_some() || end <= after.last_seen {
            // The change that removes a holder is made at `last_seen`, and first removes what has expired.
            expired
        } else {
            event(self.key, holder, after.last_seen, EventKind::Released)
        })
    }

    /// The revocation that ended a holder.
    fn revocation(&self, holder: &Holder) -> Option<&'a PastRevocation> {
        self.after?.history.iter().find(|event| event.tokens.contains(&holder.version))
    }

    /// The holder to which a holder transferred its lease. A transfer changes the lease id and the token, but not the
    /// acquire. New holders have versions of their own, so `>=` would mean the same.
    fn receiver(&self, holder: &Holder) -> Option<&'a Holder> {
        self.arrived().find(|receiver| {
            receiver.terms.acquire_id == holder.terms.acquire_id
                && receiver.terms.lease != holder.terms.lease
                && receiver.version > holder.version
        })
    }
}

#[cfg(test)]
mod tests;

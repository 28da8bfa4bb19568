//! What happens to a key, told from one state of its record to the next.

use super::{Holder, HolderInfo, Record, Revocation, StoreTime};
use crate::{FencingToken, Owner};

/// Something that happened to a key.
///
/// Given by an [`EventStream`](crate::EventStream).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The lease to which it happened, by its fencing token.
    pub token: FencingToken,
    /// Who holds or held it, in words for people.
    pub owner: Owner,
    /// When, on the store's clock. Where states in between were not seen, as when polling, it happened
    /// then or before.
    pub at: StoreTime,
    /// What happened.
    pub kind: EventKind,
}

/// What happened to a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// It was there when watching began. Later, too, where an operator put an older record back, or the
    /// store's clock was set back so far that an expired lease counts again.
    Holds {
        /// The holder.
        holding: HolderInfo,
    },
    /// The key was granted to it.
    Granted {
        /// The holder.
        holding: HolderInfo,
    },
    /// Its holder gave the key back.
    Released,
    /// Its time was over.
    Expired,
    /// An operator took the key away.
    Revoked {
        /// Who did.
        by: String,
        /// Why.
        reason: String,
    },
    /// Its holder gave the key to another lease id, and so to a larger token.
    Transferred {
        /// The holder from now on.
        to: HolderInfo,
    },
    /// The record was deleted while it held the key, or an older copy was put back.
    Removed,
}

/// Who holds the key in a record that was seen at this time, as the first events of who watches.
pub(crate) fn present(record: Option<&Record>, at: StoreTime) -> Vec<Event> {
    live(record, at).map(|holder| event(holder, at, EventKind::Holds { holding: holding(holder, at) })).collect()
}

/// What happened from one state of a record to a later one, which was seen at this time. Who holds the
/// key before and is not to be told of as expired again is left out of `before`.
///
/// Of two states that follow each other it tells all. Of others it tells how those ended who held the
/// key before, as far as the later record shows, and who holds it after.
pub(crate) fn changes(before: Option<&Record>, after: Option<&Record>, at: StoreTime) -> Vec<Event> {
    let change = Change { before, after, at };
    let mut events: Vec<Event> = holders(before).filter_map(|holder| change.end(holder)).collect();
    let received: Vec<FencingToken> = events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Transferred { to } => Some(to.token),
            _ => None,
        })
        .collect();
    events.extend(change.arrived().filter(|holder| !received.contains(&holder.version)).map(|holder| {
        let holding = holding(holder, at);
        // A token that was issued before is no grant.
        if before.is_none_or(|before| holder.version > before.version) {
            event(holder, holder.since, EventKind::Granted { holding })
        } else {
            event(holder, at, EventKind::Holds { holding })
        }
    }));
    events
}

/// The record without the holders whose time is over: they are nobody, and stay in it until its next
/// change.
pub(crate) fn without_expired(mut record: Record, at: StoreTime) -> Record {
    record.holders.retain(|holder| holder.expires_at > at);
    record
}

fn holders(record: Option<&Record>) -> impl Iterator<Item = &Holder> {
    record.into_iter().flat_map(|record| &record.holders)
}

fn live(record: Option<&Record>, at: StoreTime) -> impl Iterator<Item = &Holder> {
    holders(record).filter(move |holder| holder.expires_at > at)
}

fn event(holder: &Holder, at: StoreTime, kind: EventKind) -> Event {
    Event { token: holder.version, owner: holder.terms.owner.clone(), at, kind }
}

fn holding(holder: &Holder, at: StoreTime) -> HolderInfo {
    HolderInfo::of(holder.clone(), at)
}

/// From one state to the other.
struct Change<'a> {
    before: Option<&'a Record>,
    after: Option<&'a Record>,
    at: StoreTime,
}

impl<'a> Change<'a> {
    /// Those who hold the key now and did not before.
    fn arrived(&self) -> impl Iterator<Item = &'a Holder> {
        let before = self.before;
        live(self.after, self.at).filter(move |holder| holders(before).all(|other| other.version != holder.version))
    }

    /// How a holder ended, if it did.
    fn end(&self, holder: &Holder) -> Option<Event> {
        let still = holders(self.after).find(|other| other.version == holder.version);
        if still.is_some_and(|still| still.expires_at > self.at) {
            return None;
        }
        let end = still.unwrap_or(holder).expires_at;
        let expired = event(holder, end, EventKind::Expired);
        let Some(after) = self.after.filter(|after| after.version >= holder.version) else {
            let removed = event(holder, self.at, EventKind::Removed);
            return Some(if end <= self.at { expired } else { removed });
        };
        Some(if let Some(Revocation { by, reason, at, .. }) = self.revocation(holder) {
            event(holder, *at, EventKind::Revoked { by: by.clone(), reason: reason.clone() })
        } else if let Some(heir) = self.heir(holder) {
            event(holder, heir.since, EventKind::Transferred { to: holding(heir, self.at) })
        } else if still.is_some() || end <= after.last_seen {
            // The change that drops a holder is made at `last_seen`, and drops first whose time is over.
            expired
        } else {
            event(holder, after.last_seen, EventKind::Released)
        })
    }

    /// The revocation that took the key from a holder.
    fn revocation(&self, holder: &Holder) -> Option<&'a Revocation> {
        self.after?.history.iter().find(|event| event.tokens.contains(&holder.version))
    }

    /// To whom a holder gave the key: a transfer changes lease id and token, and not the acquire it came
    /// from. Who arrived has a version that no one had before, so `>=` would be the same.
    fn heir(&self, holder: &Holder) -> Option<&'a Holder> {
        self.arrived().find(|heir| {
            heir.terms.caller == holder.terms.caller
                && heir.terms.lease != holder.terms.lease
                && heir.version > holder.version
        })
    }
}

#[cfg(test)]
mod tests;

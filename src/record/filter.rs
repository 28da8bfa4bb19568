//! Which leases are wanted.

use std::time::Duration;

use super::{ListedLease, StoreTime};
use crate::{FencingToken, Group, Key, Owner};

/// Which leases are wanted: those that everything here holds for. The default is all that have not
/// expired.
///
/// What it means is what [`admits`](Self::admits) says; a store may ask in its own language.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Filter {
    /// Of this key.
    pub key: Option<Key>,
    /// Of keys that begin with this text.
    pub prefix: String,
    /// Of this owner.
    pub owner: Option<Owner>,
    /// Of this group.
    pub group: Option<Group>,
    /// Held alone, or with others.
    pub sharing: Option<SharingFilter>,
    /// Granted after this time.
    pub since_after: Option<StoreTime>,
    /// Granted before this time.
    pub since_before: Option<StoreTime>,
    /// With at least this much time left. A lease without expiry has more than any.
    pub remaining_at_least: Option<Duration>,
    /// With less than this left.
    pub remaining_less_than: Option<Duration>,
    /// Also those whose time is over, and that nobody has cleared away yet.
    pub with_expired: bool,
}

/// Whether a key is held alone or with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingFilter {
    /// By one at a time.
    Exclusive,
    /// By as many as all of them agree to.
    Shared,
}

/// A place in a list of leases: behind the one with this token and this key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The token.
    pub token: FencingToken,
    /// The key, in which leases with the same token are in order. A text, because it may be of
    /// something in between that is none of ours.
    pub key: String,
}

impl Filter {
    /// Whether a lease is wanted.
    #[must_use]
    pub fn admits(&self, lease: &ListedLease) -> bool {
        let ListedLease { key, holder, .. } = lease;
        let sharing = if holder.is_exclusive() { SharingFilter::Exclusive } else { SharingFilter::Shared };
        self.key.as_ref().is_none_or(|wanted| wanted == key)
            && key.as_str().starts_with(&self.prefix)
            && self.owner.as_ref().is_none_or(|owner| *owner == holder.owner)
            && self.group.as_ref().is_none_or(|group| Some(group) == holder.group.as_ref())
            && self.sharing.is_none_or(|wanted| wanted == sharing)
            && self.since_after.is_none_or(|after| holder.since > after)
            && self.since_before.is_none_or(|before| holder.since < before)
            && self.remaining_at_least.is_none_or(|least| holder.remaining.is_none_or(|left| left >= least))
            && self.remaining_less_than.is_none_or(|bound| holder.remaining.is_some_and(|left| left < bound))
            && (self.with_expired || !holder.is_expired())
    }
}

impl Position {
    /// The place behind this lease.
    #[must_use]
    pub fn behind(lease: &ListedLease) -> Self {
        Self { token: lease.holder.token, key: lease.key.as_str().to_owned() }
    }

    /// Whether a lease comes later.
    #[must_use]
    pub fn precedes(&self, lease: &ListedLease) -> bool {
        (self.token, self.key.as_str()) < (lease.holder.token, lease.key.as_str())
    }
}

#[cfg(test)]
mod tests;

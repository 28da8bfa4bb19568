//! Filters of leases.

use std::time::Duration;

use super::{ListedLease, StoreTime};
use crate::types::{
    error::{Error, Result},
    group::Group,
    key::Key,
    owner::Owner,
    token::FencingToken,
};

/// A filter of leases: all conditions must hold. Default: all leases that have not expired.
///
/// [`admits`](Self::admits) defines its meaning; a store may query in its own language.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Filter {
    /// With this key.
    pub key: Option<Key>,
    /// With a key that begins with this text.
    pub prefix: String,
    /// With this owner.
    pub owner: Option<Owner>,
    /// With this group.
    pub group: Option<Group>,
    /// Exclusive or shared.
    pub sharing: Option<SharingFilter>,
    /// Granted after this time.
    pub since_after: Option<StoreTime>,
    /// Granted before this time.
    pub since_before: Option<StoreTime>,
    /// Whose key is free in this time or later without a refresh. That of a lease without expiry is free in
    /// [`Duration::MAX`].
    pub free_in_at_least: Option<Duration>,
    /// Whose key is free before this time without a refresh.
    pub free_in_less_than: Option<Duration>,
    /// Also expired leases that are still in their records.
    pub with_expired: bool,
}

/// Whether a key is held exclusively or shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingFilter {
    /// Held by one lease at a time.
    Exclusive,
    /// Held by as many leases as each of them allows.
    Shared,
}

/// The keys that are followed or watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyFilter {
    /// This key.
    Key(Key),
    /// All keys that begin with this text, byte for byte. An empty text: all keys.
    Prefix(String),
}

impl KeyFilter {
    /// Whether a key is meant.
    #[must_use]
    pub fn admits(&self, key: &Key) -> bool {
        match self {
            Self::Key(wanted) => wanted == key,
            Self::Prefix(prefix) => key.as_str().starts_with(prefix),
        }
    }

    pub(crate) fn is_key(&self) -> bool {
        matches!(self, Self::Key(_))
    }

    /// The key or the prefix, for the log.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Key(key) => key.as_str(),
            Self::Prefix(prefix) => prefix,
        }
    }
}

/// A position in a list of leases: behind the lease with this key and this token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The key. A text, because it may be the id of a document that is not a record.
    pub key: String,
    /// The token. Leases with the same key are in the order of tokens.
    pub token: FencingToken,
}

impl Filter {
    /// Refuses a text with which no key can begin.
    pub(crate) fn ensure_prefix(text: &str) -> Result<()> {
        if text.len() > Key::MAX_BYTES || text.contains('\0') {
            return Err(Error::invalid(format!(
                "no key begins with this prefix of {} bytes: a key has at most {} and no NUL character",
                text.len(),
                Key::MAX_BYTES
            )));
        }
        Ok(())
    }

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
            && self.free_in_at_least.is_none_or(|least| holder.free_in >= least)
            && self.free_in_less_than.is_none_or(|bound| holder.free_in < bound)
            && (self.with_expired || !holder.is_expired())
    }
}

impl Position {
    /// The position behind this lease.
    #[must_use]
    pub fn behind(lease: &ListedLease) -> Self {
        Self { key: lease.key.as_str().to_owned(), token: lease.holder.token }
    }

    /// Whether a lease comes after this position.
    #[must_use]
    pub fn precedes(&self, lease: &ListedLease) -> bool {
        (self.key.as_str(), self.token) < (lease.key.as_str(), lease.holder.token)
    }
}

#[cfg(test)]
mod tests;

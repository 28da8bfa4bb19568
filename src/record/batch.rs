//! What can be done to many leases at once.

use std::collections::HashMap;

use crate::{FencingToken, Key};

/// Leases by their keys, each key once, and by their tokens, which no other leases of the key ever have.
pub type LeaseRefs = Vec<(Key, Vec<FencingToken>)>;

/// These leases by their keys, in the order in which the keys come first.
pub fn lease_refs(leases: impl IntoIterator<Item = (Key, FencingToken)>) -> LeaseRefs {
    let (mut refs, mut place) = (LeaseRefs::new(), HashMap::new());
    for (key, token) in leases {
        let at = *place.entry(key.clone()).or_insert(refs.len());
        match refs.get_mut(at) {
            Some((_, tokens)) => tokens.push(token),
            None => refs.push((key, vec![token])),
        }
    }
    refs
}

/// What can be done to many leases at once. Each can be asked for twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchRequest {
    /// Gives them back: of each key all that are named, or none where one of them is over.
    Release,
    /// Takes them from their holders, who are told: of each key all that are named, or none where one
    /// of them is over.
    Revoke {
        /// Who does.
        by: String,
        /// Why.
        reason: String,
    },
    /// Keeps them alive: of each key all that are named, or none where one of them is over. None ends
    /// sooner than it would have, and each keeps its own grace.
    Keep {
        /// How long they last from now without a further refresh, in milliseconds.
        ttl: u64,
    },
    /// Keeps them alive: all of them, or none where one is over or nearly so. Those come first that are
    /// likely to be written by somebody else soon.
    Refresh {
        /// How long they last from now without a further refresh, in milliseconds. None ends sooner
        /// than it would have, and each keeps its own grace.
        ttl: u64,
        /// How much time each must have left, in milliseconds.
        least: u64,
    },
}

impl BatchRequest {
    /// How much time a lease must have left, in milliseconds: any at all.
    #[must_use]
    pub fn least(&self) -> u64 {
        match self {
            Self::Refresh { least, .. } => (*least).max(1),
            Self::Release | Self::Revoke { .. } | Self::Keep { .. } => 1,
        }
    }
}

//! What can be done to many leases at once.

use std::collections::BTreeMap;

use crate::{FencingToken, Key};

/// Leases, each named by its key and its token, which no other lease of the key ever has.
pub type Named = BTreeMap<Key, Vec<FencingToken>>;

/// What can be done to many leases at once. Each can be asked for twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joint {
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
    /// Keeps them alive: all of them, or none where one is over or nearly so.
    Refresh {
        /// How long they last from now without a further refresh, in milliseconds. None ends sooner
        /// than it would have.
        ttl: u64,
        /// How much longer the store waits, in milliseconds.
        grace: u64,
        /// How much time each must have left, in milliseconds.
        least: u64,
    },
}

impl Joint {
    /// How much time a lease must have left, in milliseconds: any at all.
    #[must_use]
    pub fn least(&self) -> u64 {
        match self {
            Self::Refresh { least, .. } => (*least).max(1),
            Self::Release | Self::Revoke { .. } => 1,
        }
    }
}

//! Requests for many leases.

use std::collections::HashMap;

use super::Request;
use crate::types::{key::Key, token::FencingToken};

/// Leases by key and token. Each key comes once. A token names one lease of its key for ever.
pub type LeaseRefs = Vec<(Key, Vec<FencingToken>)>;

/// Groups leases by key, in the order in which the keys first come.
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

/// A request for many leases. Each can be sent twice. The [contract of a store](crate::store) says how it is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchRequest {
    /// Releases them.
    Release,
    /// Takes the key from them and notifies their holders.
    Revoke {
        /// The operator.
        by: String,
        /// The reason.
        reason: String,
    },
    /// Refreshes them. No lease ends sooner than before, and each keeps its own grace.
    Keep {
        /// How long they last from now without a further refresh, in milliseconds.
        ttl: u64,
    },
}

/// A request to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRequest {
    /// A request of its own.
    Single(Request),
    /// The part of a batch request that names leases of the key.
    Batch(Vec<FencingToken>, BatchRequest),
}

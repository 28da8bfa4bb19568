//! What the last answers said of keys.
//!
//! Purpose: a request of the fast path that changes nothing is a wasted command. With only "the record exists" known of a
//! key, a hand-over between 8 handles took 3.99 commands a grant instead of 2.04, and
//! 15 % more of the primary's processor (`--bench figures hand-over`, medians of three rounds).

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Mutex,
};

use crate::types::{key::Key, lock::lock};

/// The most keys that are kept. One more key removes all others.
const MAX_KEYS: usize = 65_536;

/// What the last answer said of a key whose record exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::mongo) enum PathHint {
    /// The key was granted to a single holder, without a waiter.
    Free,
    /// The key has other holders, or waiters.
    Busy,
    /// The key has revocations, or a request of the fast path was not answered. The whole pipeline is sent.
    Whole,
}

/// What the last answers said of keys. It decides only which command is tried first, so it may be wrong. A key is kept
/// as its hash, which another key may have, too.
#[derive(Default)]
pub(in crate::store::mongo) struct KnownKeys {
    hasher: RandomState,
    seen: Mutex<HashMap<u64, PathHint>>,
}

impl KnownKeys {
    pub(in crate::store::mongo) fn get(&self, key: &Key) -> Option<PathHint> {
        lock(&self.seen).get(&self.hasher.hash_one(key)).copied()
    }

    pub(in crate::store::mongo) fn record(&self, key: &Key, what: PathHint) {
        let hash = self.hasher.hash_one(key);
        let mut seen = lock(&self.seen);
        if seen.len() >= MAX_KEYS && !seen.contains_key(&hash) {
            seen.clear();
        }
        seen.insert(hash, what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_hint_of_a_key_counts_and_the_number_of_keys_is_bounded() {
        let known = KnownKeys::default();
        let key = |number: usize| number.to_string().parse().unwrap();
        for number in 0..MAX_KEYS {
            known.record(&key(number), PathHint::Busy);
        }
        known.record(&key(0), PathHint::Free);
        assert_eq!((known.get(&key(0)), known.get(&key(1))), (Some(PathHint::Free), Some(PathHint::Busy)));
        known.record(&key(MAX_KEYS), PathHint::Busy);
        assert_eq!((known.get(&key(1)), known.get(&key(MAX_KEYS))), (None, Some(PathHint::Busy)));
    }
}

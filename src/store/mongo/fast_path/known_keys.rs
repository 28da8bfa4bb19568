//! What the last answers said of keys.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::Key;

/// The most keys that are kept. One more key removes all others.
const MAX_KEYS: usize = 65_536;

/// What the last answer said of a key whose record exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::mongo) enum Seen {
    /// It was granted to a single holder, without a waiter.
    Free,
    /// It has other holders, or waiters.
    Busy,
    /// It has revocations, or a request of the fast path was not answered. The fast path does not apply.
    Unsuited,
}

/// What the last answers said of keys. It decides only which command is tried first, so it may be wrong. A key is kept
/// as its hash, which another key may have, too.
#[derive(Default)]
pub(in crate::store::mongo) struct KnownKeys {
    hasher: RandomState,
    seen: Mutex<HashMap<u64, Seen>>,
}

impl KnownKeys {
    pub(in crate::store::mongo) fn get(&self, key: &Key) -> Option<Seen> {
        self.seen().get(&self.hasher.hash_one(key)).copied()
    }

    pub(in crate::store::mongo) fn note(&self, key: &Key, what: Seen) {
        let hash = self.hasher.hash_one(key);
        let mut seen = self.seen();
        if seen.len() >= MAX_KEYS && !seen.contains_key(&hash) {
            seen.clear();
        }
        seen.insert(hash, what);
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<u64, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_note_of_a_key_counts_and_the_number_of_keys_is_bounded() {
        let known = KnownKeys::default();
        let key = |number: usize| number.to_string().parse().unwrap();
        for number in 0..MAX_KEYS {
            known.note(&key(number), Seen::Busy);
        }
        known.note(&key(0), Seen::Free);
        assert_eq!((known.get(&key(0)), known.get(&key(1))), (Some(Seen::Free), Some(Seen::Busy)));
        known.note(&key(MAX_KEYS), Seen::Busy);
        assert_eq!((known.get(&key(1)), known.get(&key(MAX_KEYS))), (None, Some(Seen::Busy)));
    }
}

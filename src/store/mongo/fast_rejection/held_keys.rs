//! The keys that were held at their last acquire.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::Key;

/// The most keys that are kept. One more key removes all others.
const MAX_HELD_KEYS: usize = 1_000;

/// The keys that another lease held at their last acquire.
#[derive(Default)]
pub(in crate::store::mongo) struct HeldKeys(Mutex<HashSet<Key>>);

impl HeldKeys {
    /// Whether another lease held the key at the last acquire.
    pub(in crate::store::mongo) fn contains(&self, key: &Key) -> bool {
        self.keys().contains(key)
    }

    fn keys(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whether another lease held a key at an acquire.
    pub(in crate::store::mongo) fn note(&self, key: &Key, is_held: bool) {
        let mut keys = self.keys();
        if !is_held {
            keys.remove(key);
            return;
        }
        if keys.len() >= MAX_HELD_KEYS {
            keys.clear();
        }
        keys.insert(key.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_key_is_kept_until_it_was_granted_and_no_more_than_a_thousand_are() {
        let held = HeldKeys::default();
        let key = |number: usize| number.to_string().parse().unwrap();
        for number in 0..MAX_HELD_KEYS {
            held.note(&key(number), true);
        }
        assert_eq!(held.keys().len(), MAX_HELD_KEYS);
        held.note(&key(0), false);
        assert!(!held.keys().contains(&key(0)) && held.keys().contains(&key(1)));
        held.note(&key(0), true);
        held.note(&key(MAX_HELD_KEYS), true);
        assert_eq!(*held.keys(), HashSet::from([key(MAX_HELD_KEYS)]));
    }
}

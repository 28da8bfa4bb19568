//! Locks: requests of a key wait while a transaction of their handle writes its record.
//!
//! Purpose: a write of a record that a transaction holds waits at the server and keeps a connection of the client. The
//! refresh of a group is such a transaction. If writes of its own handle kept all connections, none would be left for
//! its commit.
//!
//! Mechanism: each key in use has a fair read-write lock. A request of one record holds its key's lock as a reader, a
//! transaction the locks of its keys as a writer.
//!
//! Invariants: a transaction holds up requests of its own keys only. Transactions take locks in the order of the keys,
//! so there is no deadlock.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock},
    time::timeout,
};

use crate::{Deadline, Error, Key, Result};

/// How long a transaction waits for the requests before it. Later requests of its keys wait as long, too.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The locks of the keys in use.
#[derive(Clone, Default)]
pub(super) struct KeyLocks(Arc<Mutex<HashMap<Key, Arc<RwLock<()>>>>>);

/// The use of a lock. The last use removes the lock.
struct LockUse {
    locks: KeyLocks,
    key: Key,
}

/// The right to send a request for a key.
pub(super) struct RequestGuard {
    _guard: OwnedRwLockReadGuard<()>,
    _use: LockUse,
}

/// The right to write some records in a transaction. All other requests of this handle for their keys wait.
pub(super) struct TransactionGuard {
    _guards: Vec<OwnedRwLockWriteGuard<()>>,
    _uses: Vec<LockUse>,
}

impl KeyLocks {
    fn map(&self) -> MutexGuard<'_, HashMap<Key, Arc<RwLock<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn use_lock(&self, key: &Key) -> (LockUse, Arc<RwLock<()>>) {
        let lock = Arc::clone(self.map().entry(key.clone()).or_default());
        (LockUse { locks: self.clone(), key: key.clone() }, lock)
    }

    /// Waits until no transaction of this handle writes the record of this key.
    pub(super) async fn lock_for_request(&self, key: &Key, deadline: Deadline) -> Result<RequestGuard> {
        let (lock_use, lock) = self.use_lock(key);
        match timeout(deadline.remaining(), lock.read_owned()).await {
            Ok(guard) => Ok(RequestGuard { _guard: guard, _use: lock_use }),
            Err(_elapsed) => Err(Error::unavailable(
                "a transaction that refreshes the group of this key's lease is under way: retry",
            )),
        }
    }

    /// Waits until no other request of this handle for one of these keys is under way.
    pub(super) async fn lock_for_transaction(&self, keys: impl IntoIterator<Item = &Key>) -> Result<TransactionGuard> {
        let (uses, locks): (Vec<_>, Vec<_>) =
            keys.into_iter().collect::<BTreeSet<_>>().into_iter().map(|key| self.use_lock(key)).unzip();
        let mut guards = Vec::with_capacity(locks.len());
        let locked = timeout(LOCK_TIMEOUT, async {
            for lock in locks {
                guards.push(lock.write_owned().await);
            }
        });
        if locked.await.is_err() {
            return Err(Error::unavailable(
                "MongoDB has not answered earlier requests for keys of the group: check whether a transaction has locked a record, and retry",
            ));
        }
        Ok(TransactionGuard { _guards: guards, _uses: uses })
    }
}

impl Drop for LockUse {
    fn drop(&mut self) {
        let mut locks = self.locks.map();
        // The map has one reference. Each use and each waiter of the lock has another one.
        if locks.get(&self.key).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            locks.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;

    fn key(name: &str) -> Key {
        name.parse().unwrap()
    }

    const SOON: Duration = Duration::from_millis(10);

    fn soon() -> Deadline {
        Deadline::after(Clock::tokio(), SOON)
    }

    #[tokio::test(start_paused = true)]
    async fn a_transaction_holds_up_requests_of_its_own_keys_only_and_unused_locks_are_dropped() {
        let locks = KeyLocks::default();
        let (a, b, c) = (key("a"), key("b"), key("c"));
        let closed = locks.lock_for_transaction([&b, &a]).await.unwrap();
        assert!(locks.lock_for_request(&a, soon()).await.is_err());
        let passed = locks.lock_for_request(&c, soon()).await.unwrap();
        drop(closed);
        let again = locks.lock_for_request(&a, soon()).await.unwrap();
        assert_eq!(locks.map().len(), 2, "those of a and c");
        drop((passed, again));
        assert!(locks.map().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_transaction_waits_for_requests_of_its_keys_and_gives_up_at_last() {
        let locks = KeyLocks::default();
        let (a, b) = (key("a"), key("b"));
        let passed = locks.lock_for_request(&b, soon()).await.unwrap();
        assert!(timeout(LOCK_TIMEOUT.saturating_sub(SOON), locks.lock_for_transaction([&a, &b])).await.is_err());
        assert!(locks.lock_for_transaction([&a, &b]).await.is_err());
        let others = locks.lock_for_request(&a, soon()).await.unwrap();
        drop(others);
        let (closed, ()) = tokio::join!(locks.lock_for_transaction([&a, &b]), async {
            tokio::time::sleep(SOON).await;
            drop(passed);
        });
        drop(closed.unwrap());
        assert!(locks.map().is_empty());
    }
}

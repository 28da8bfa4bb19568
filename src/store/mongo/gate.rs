//! Requests of a key wait here while a transaction of their handle writes its record.
//!
//! Purpose: a write of a record that a transaction holds waits at the server and keeps a connection of the client. The
//! refresh of a group is such a transaction. If writes of its own handle kept all connections, none would be left for
//! its commit.
//!
//! Mechanism: each key in use has a gate, a fair read-write lock. A request of one
//! record holds its key's gate as a reader, a transaction those of its keys as a writer.
//!
//! Invariants: a transaction holds up requests of its own keys only. Transactions enter gates in the order of the keys,
//! so none waits for one that waits for it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock},
    time::timeout,
};

use crate::{Error, Key, Result};

/// How long a transaction waits for the requests before it. Later requests of its keys wait as long, too.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);

/// The gates of the keys in use.
#[derive(Clone, Default)]
pub(super) struct Gates(Arc<Mutex<HashMap<Key, Arc<RwLock<()>>>>>);

/// A gate that its owner uses or waits for.
struct Gate {
    gates: Gates,
    key: Key,
}

/// The right to send a request of one key.
pub(super) struct Passed {
    _guard: OwnedRwLockReadGuard<()>,
    _gate: Gate,
}

/// The right to write some records in a transaction. All other requests of this handle for their keys wait.
pub(super) struct Closed {
    _guards: Vec<OwnedRwLockWriteGuard<()>>,
    _gates: Vec<Gate>,
}

impl Gates {
    fn map(&self) -> MutexGuard<'_, HashMap<Key, Arc<RwLock<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gate(&self, key: &Key) -> (Gate, Arc<RwLock<()>>) {
        let lock = Arc::clone(self.map().entry(key.clone()).or_default());
        (Gate { gates: self.clone(), key: key.clone() }, lock)
    }

    /// Waits until no transaction of this handle writes the record of this key.
    pub(super) async fn pass(&self, key: &Key, within: Duration) -> Result<Passed> {
        let (gate, lock) = self.gate(key);
        match timeout(within, lock.read_owned()).await {
            Ok(guard) => Ok(Passed { _guard: guard, _gate: gate }),
            Err(_elapsed) => Err(Error::unavailable("a group of this key's lease is being refreshed: retry")),
        }
    }

    /// Waits until no other request of this handle for one of these keys is under way.
    pub(super) async fn close(&self, keys: impl IntoIterator<Item = &Key>) -> Result<Closed> {
        let (gates, locks): (Vec<_>, Vec<_>) =
            keys.into_iter().collect::<BTreeSet<_>>().into_iter().map(|key| self.gate(key)).unzip();
        let mut guards = Vec::with_capacity(locks.len());
        let closed = timeout(CLOSED_WITHIN, async {
            for lock in locks {
                guards.push(lock.write_owned().await);
            }
        });
        if closed.await.is_err() {
            return Err(Error::unavailable(
                "MongoDB has not answered earlier requests for keys of the group: check whether a transaction has locked a record, and retry",
            ));
        }
        Ok(Closed { _guards: guards, _gates: gates })
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let mut gates = self.gates.map();
        // What is counted beside the map's own are those who still use or wait for it.
        if gates.get(&self.key).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            gates.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        name.parse().unwrap()
    }

    const SOON: Duration = Duration::from_millis(10);

    #[tokio::test(start_paused = true)]
    async fn a_transaction_holds_up_requests_of_its_own_keys_only_and_gates_nobody_uses_are_forgotten() {
        let gates = Gates::default();
        let (a, b, c) = (key("a"), key("b"), key("c"));
        let closed = gates.close([&b, &a]).await.unwrap();
        assert!(gates.pass(&a, SOON).await.is_err());
        let passed = gates.pass(&c, SOON).await.unwrap();
        drop(closed);
        let again = gates.pass(&a, SOON).await.unwrap();
        assert_eq!(gates.map().len(), 2, "those of a and c");
        drop((passed, again));
        assert!(gates.map().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_transaction_waits_for_requests_of_its_keys_and_gives_up_at_last() {
        let gates = Gates::default();
        let (a, b) = (key("a"), key("b"));
        let passed = gates.pass(&b, SOON).await.unwrap();
        assert!(timeout(CLOSED_WITHIN.saturating_sub(SOON), gates.close([&a, &b])).await.is_err());
        assert!(gates.close([&a, &b]).await.is_err());
        let others = gates.pass(&a, SOON).await.unwrap();
        drop(others);
        let (closed, ()) = tokio::join!(gates.close([&a, &b]), async {
            tokio::time::sleep(SOON).await;
            drop(passed);
        });
        drop(closed.unwrap());
        assert!(gates.map().is_empty());
    }
}

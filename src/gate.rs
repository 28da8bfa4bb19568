//! One request at a time for a key that many of a handle want.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Key;

/// Where those of a handle who want to wait for the same key let one another pass. Writes of one
/// record that meet at the server make each other start over, and each takes a connection of the
/// client: a thousand at once all run out of time.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<HashMap<Key, Arc<Semaphore>>>);

/// Leave to send a request, given back when dropped.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    key: &'a Key,
    turn: Option<Arc<Semaphore>>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Gate {
    /// Waits for the requests before this one, but no longer than `within`: one that hangs must not
    /// hold up the others for ever.
    pub(crate) async fn enter<'a>(&'a self, key: &'a Key, within: Duration) -> Pass<'a> {
        let turn = Arc::clone(self.keys().entry(key.clone()).or_insert_with(|| Arc::new(Semaphore::new(1))));
        let asked = Arc::clone(&turn).acquire_owned();
        let mut pass = Pass { gate: self, key, turn: Some(turn), permit: None };
        let permit = tokio::time::timeout(within, asked).await;
        pass.permit = permit.ok().and_then(Result::ok);
        pass
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<Key, Arc<Semaphore>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.permit = None;
        let mut keys = self.gate.keys();
        // Given back under the lock, so that of two who leave at once the later one sees it.
        self.turn = None;
        // The map's: nobody else comes, as long as the map is locked.
        if keys.get(self.key).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            keys.remove(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_passes_at_a_time_in_order_and_a_key_nobody_wants_is_forgotten() {
        let gate = Arc::new(Gate::default());
        let key: Key = "k".parse().unwrap();
        let first = gate.enter(&key, Duration::from_secs(9)).await;
        let second = tokio::time::timeout(Duration::from_secs(1), gate.enter(&key, Duration::from_secs(9)));
        assert!(second.await.is_err());
        drop(first);
        let third = gate.enter(&key, Duration::from_secs(9)).await;
        assert!(third.permit.is_some());
        let fourth = gate.enter(&key, Duration::from_secs(1)).await;
        assert!(fourth.permit.is_none(), "one that hangs does not hold up the others for ever");
        drop((third, fourth));
        assert!(gate.keys().is_empty());
    }
}

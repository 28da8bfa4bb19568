//! The turns of the requests for one key in one process.
//!
//! Purpose: concurrent requests of one process would make each other's swaps fail.
//!
//! Mechanism: a request takes the turn of its key, and gives it back when it ends. If the turn does not come in time, the
//! request is sent out of turn, because the answer to the request before it may be lost.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Mutex as Turnstile, OwnedMutexGuard};

use crate::Key;

/// The keys for which requests run or wait.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<Key, Arc<Turnstile<()>>>>);

/// A turn, until this is dropped.
pub(super) struct Turn {
    turns: Arc<Turns>,
    key: Key,
    held: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    fn keys(&self) -> MutexGuard<'_, HashMap<Key, Arc<Turnstile<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Waits for the turn. Requests of other keys do not wait.
    pub(super) async fn take(turns: &Arc<Turns>, key: &Key) -> Self {
        let turnstile = Arc::clone(turns.keys().entry(key.clone()).or_default());
        // Before the wait, so that a dropped wait removes the key, too.
        let mut turn = Self { turns: Arc::clone(turns), key: key.clone(), held: None };
        turn.held = Some(turnstile.lock_owned().await);
        turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.held = None;
        let mut keys = self.turns.keys();
        // The map has one reference. A request that waits has another.
        if keys.get(&self.key).is_some_and(|turnstile| Arc::strong_count(turnstile) == 1) {
            keys.remove(&self.key);
        }
    }
}

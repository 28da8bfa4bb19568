//! The leases of a handle that have not ended at the store, by key.
//!
//! Purpose: an acquire waits for the releases of its own handle. So a caller that drops a lease and acquires its key
//! again is not refused because of that lease.
//!
//! Mechanism: the keeper adds each lease, and it is removed after its end. A drop or release of a lease marks it as ended
//! before it returns. An acquire waits while a lease of its key is here that has ended in this process.
//!
//! Invariant: a lease is removed after the last request for it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
};

use tokio_util::sync::CancellationToken;

use crate::{
    engine::lease_inner::LeaseInner,
    types::{key::Key, lock::lock, token::FencingToken},
};

/// The leases of a handle that have not ended at the store.
#[derive(Debug, Default)]
pub(crate) struct OwnLeases(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    leases: BTreeMap<(Key, FencingToken), Arc<LeaseInner>>,
    /// The keys for which acquires wait. Cancelled when a lease of the key has ended at the store.
    waiting: HashMap<Key, CancellationToken>,
}

impl OwnLeases {
    /// Adds a lease.
    pub(crate) fn add(&self, lease: &Arc<LeaseInner>) {
        lock(&self.0).leases.insert((lease.key.clone(), lease.token), Arc::clone(lease));
    }

    /// Removes a lease.
    pub(crate) fn remove(&self, lease: &LeaseInner) {
        let removed = {
            let mut entries = lock(&self.0);
            entries.leases.remove(&(lease.key.clone(), lease.token));
            entries.waiting.remove(&lease.key)
        };
        // Not under the lock: it wakes the acquires that wait.
        if let Some(removed) = removed {
            removed.cancel();
        }
    }

    /// Waits until each lease of this key that has ended in this process has ended at the store.
    pub(crate) async fn wait_for_ends(&self, key: &Key) {
        loop {
            let removed = {
                let mut entries = lock(&self.0);
                let mut of_key =
                    entries.leases.range((key.clone(), FencingToken::MIN)..=(key.clone(), FencingToken::MAX));
                if !of_key.any(|(_, lease)| lease.ended.is_cancelled()) {
                    return;
                }
                entries.waiting.entry(key.clone()).or_default().clone()
            };
            removed.cancelled().await;
        }
    }
}

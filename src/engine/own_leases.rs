//! The leases of a handle whose tasks have not ended, by key.
//!
//! Purpose: an acquire waits for the releases of its own handle. So a caller that drops a lease and acquires its key
//! again is not refused because of that lease.
//!
//! Mechanism: the task of a lease adds it when it starts, and removes it when it ends. A drop or release of a lease marks it
//! as ended before it returns. An acquire waits while a lease of its key is here that has ended in this process.
//!
//! Invariant: a lease is removed after the last request of its task.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
};

use tokio_util::sync::CancellationToken;

use crate::{
    engine::lease_inner::LeaseInner,
    types::{key::Key, lock::lock, token::FencingToken},
};

/// The leases of a handle whose tasks have not ended.
#[derive(Debug, Default)]
pub(crate) struct OwnLeases(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    leases: BTreeMap<(Key, FencingToken), Arc<LeaseInner>>,
    /// The keys for which acquires wait. Cancelled when the task of a lease of the key has ended.
    waiting: HashMap<Key, CancellationToken>,
}

impl OwnLeases {
    /// Adds a lease whose task starts.
    pub(crate) fn add(&self, lease: &Arc<LeaseInner>) {
        lock(&self.0).leases.insert((lease.key.clone(), lease.token), Arc::clone(lease));
    }

    /// Removes a lease whose task has ended.
    pub(crate) fn remove(&self, lease: &LeaseInner) {
        let task_ended = {
            let mut entries = lock(&self.0);
            entries.leases.remove(&(lease.key.clone(), lease.token));
            entries.waiting.remove(&lease.key)
        };
        // Not under the lock: it wakes the acquires that wait.
        if let Some(task_ended) = task_ended {
            task_ended.cancel();
        }
    }

    /// Waits until each lease of this key that has ended in this process has ended at the store.
    pub(crate) async fn wait_for_ends(&self, key: &Key) {
        loop {
            let task_ended = {
                let mut entries = lock(&self.0);
                let mut of_key =
                    entries.leases.range((key.clone(), FencingToken::MIN)..=(key.clone(), FencingToken::MAX));
                if !of_key.any(|(_, lease)| lease.ended.is_cancelled()) {
                    return;
                }
                entries.waiting.entry(key.clone()).or_default().clone()
            };
            task_ended.cancelled().await;
        }
    }
}

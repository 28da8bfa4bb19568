//! The releases of a handle that are in progress, by key.
//!
//! Purpose: an acquire waits for the releases of its own handle. So a caller that drops a lease and acquires its key
//! again is not refused because of that lease.
//!
//! Mechanism: a release begins when the caller drops or releases the lease, and ends with the lease's task. Both are
//! noted under one lock.
//!
//! Invariant: a release that has ended never begins again.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
};

use tokio_util::sync::CancellationToken;

use crate::Key;

const NOT_BEGUN: u8 = 0;
const UNDER_WAY: u8 = 1;
const OVER: u8 = 2;

/// The releases in progress.
#[derive(Debug, Default)]
pub(crate) struct PendingReleases(Mutex<HashMap<Key, OfKey>>);

/// The releases of one key.
#[derive(Debug, Default)]
struct OfKey {
    count: usize,
    /// Cancelled when all of them have ended.
    over: CancellationToken,
}

/// The stage of a lease's release. Changes only under the lock of [`PendingReleases`].
#[derive(Debug, Default)]
pub(crate) struct ReleaseStage(AtomicU8);

impl ReleaseStage {
    fn advance(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl PendingReleases {
    fn by_key(&self) -> MutexGuard<'_, HashMap<Key, OfKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the release of a lease begins, unless it has begun before.
    pub(crate) fn begin(&self, key: &Key, stage: &ReleaseStage) {
        let mut by_key = self.by_key();
        if stage.advance(NOT_BEGUN, UNDER_WAY) {
            let of_key = by_key.entry(key.clone()).or_default();
            of_key.count = of_key.count.saturating_add(1);
        }
    }

    /// Notes that the task of a lease has ended.
    pub(crate) fn end(&self, key: &Key, stage: &ReleaseStage) {
        let mut by_key = self.by_key();
        if stage.advance(NOT_BEGUN, OVER) || !stage.advance(UNDER_WAY, OVER) {
            return;
        }
        let Some(of_key) = by_key.get_mut(key) else { return };
        of_key.count = of_key.count.saturating_sub(1);
        let last = if of_key.count == 0 { by_key.remove(key) } else { None };
        // Not under the lock: it wakes the acquires that wait.
        drop(by_key);
        if let Some(last) = last {
            last.over.cancel();
        }
    }

    /// Waits until no release of this key is in progress.
    pub(crate) async fn wait_until_none(&self, key: &Key) {
        loop {
            let Some(over) = self.by_key().get(key).map(|of_key| of_key.over.clone()) else { return };
            over.cancelled().await;
        }
    }
}

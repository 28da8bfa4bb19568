//! The work that must stop when a lease ends.
//!
//! Invariant: if a lease has ended before its task checks for work, work that begins later finds the lease ended.

use std::sync::atomic::{Ordering, fence};

use tokio::sync::Notify;

use super::LeaseShared;

impl LeaseShared {
    /// Notes that work runs which must stop when the lease ends, until this is dropped. Call it before the check that the
    /// lease is held.
    pub(crate) fn begin_work(&self) -> AtWork<'_> {
        self.work_count.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        AtWork(self)
    }

    /// Whether such work runs.
    pub(crate) fn is_at_work(&self) -> bool {
        fence(Ordering::SeqCst);
        self.work_count.load(Ordering::SeqCst) > 0
    }

    /// Waits until no such work runs. Only the task of the lease waits.
    pub(crate) async fn work_ended(&self) {
        let idle = self.idle.get_or_init(Box::default);
        while self.is_at_work() {
            idle.notified().await;
        }
    }
}

/// Work that runs under a lease.
pub(crate) struct AtWork<'a>(&'a LeaseShared);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        let others = self.0.work_count.fetch_sub(1, Ordering::SeqCst).saturating_sub(1);
        fence(Ordering::SeqCst);
        // If no task waits now, a later one finds the count.
        if let Some(idle) = self.0.idle.get().filter(|_| others == 0) {
            Notify::notify_one(idle);
        }
    }
}

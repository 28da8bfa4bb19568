//! The work that must stop when a lease ends.

use std::sync::atomic::Ordering;

use super::LeaseShared;

impl LeaseShared {
    /// Notes that work runs which must stop when the lease ends, until this is dropped.
    pub(crate) fn begin_work(&self) -> AtWork<'_> {
        self.work_count.fetch_add(1, Ordering::Relaxed);
        AtWork(self)
    }

    /// Whether such work runs.
    pub(crate) fn is_at_work(&self) -> bool {
        self.work_count.load(Ordering::Relaxed) > 0
    }
}

/// Work that runs under a lease.
pub(crate) struct AtWork<'a>(&'a LeaseShared);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.work_count.fetch_sub(1, Ordering::Relaxed);
    }
}

//! The limits of a lease beside its ttl.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// The limits of a lease beside its ttl.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// The end of the maximum hold, on the clock.
    pub(crate) last_deadline: Option<Duration>,
    /// How long the holder may report no progress.
    pub(crate) stalled_after: Option<Duration>,
}

/// The progress of a holder.
pub(super) struct Progress {
    /// How long the holder may report none.
    stalled_after: Duration,
    /// Nanoseconds on the clock at the last report.
    last: AtomicU64,
}

impl Progress {
    /// `now` is in nanoseconds on the clock.
    pub(super) fn new(stalled_after: Duration, now: u64) -> Self {
        Self { stalled_after, last: AtomicU64::new(now) }
    }

    pub(super) fn note(&self, now: u64) {
        self.last.fetch_max(now, Ordering::Relaxed);
    }

    /// The holder cannot report progress until [`begin`](Self::begin), so it does not stall.
    pub(super) fn suspend(&self) {
        self.last.store(u64::MAX, Ordering::Relaxed);
    }

    /// The holder can report progress from now on.
    pub(super) fn begin(&self, now: u64) {
        self.last.store(now, Ordering::Relaxed);
    }

    /// When, on the clock, the holder has stalled unless it reports progress before.
    pub(super) fn stalls_at(&self) -> Duration {
        Duration::from_nanos(self.last.load(Ordering::Relaxed)).saturating_add(self.stalled_after)
    }
}

//! How long the holder may keep the key: its maximum hold and its progress.

use std::time::Duration;

use super::{LeaseShared, NEVER, nanos};

impl LeaseShared {
    /// The time to the end of the maximum hold.
    pub(crate) fn remaining_at_most(&self) -> Duration {
        match self.last_deadline {
            NEVER => Duration::MAX,
            last => Duration::from_nanos(last).saturating_sub(self.clock.now()),
        }
    }

    /// Notes that the holder makes progress.
    pub(crate) fn note_progress(&self) {
        if let Some(progress) = &self.progress {
            progress.note(nanos(self.clock.now()));
        }
    }

    /// The caller does not have the lease yet, because others are acquired with it. So it cannot stall.
    pub(crate) fn suspend_progress(&self) {
        if let Some(progress) = &self.progress {
            progress.suspend();
        }
    }

    /// The caller gets the lease now.
    pub(crate) fn begin_progress(&self) {
        if let Some(progress) = &self.progress {
            progress.begin(nanos(self.clock.now()));
        }
    }

    /// When, on the clock, the holder has stalled unless it reports progress before.
    pub(crate) fn stalls_at(&self) -> Option<Duration> {
        self.progress.as_ref().map(|progress| progress.stalls_at())
    }
}

//! How many commands are under way at once.
//!
//! Purpose: the driver serves requests that wait for a connection in their order, and a burst of acquires must not delay a
//! refresh until its lease is lost.
//!
//! Mechanism: each command has a permit, except refreshes and reads.

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use crate::{Deadline, Error, Result};

/// The permits of a runtime.
pub(super) struct Admission(Semaphore);

impl Default for Admission {
    fn default() -> Self {
        Self::new(Self::MAX_UNDER_WAY)
    }
}

impl Admission {
    /// Fewer than `connect` opens connections.
    const MAX_UNDER_WAY: usize = 48;

    pub(super) fn new(permits: usize) -> Self {
        Self(Semaphore::new(permits))
    }

    /// Waits until another command may be under way. If the caller gives up meanwhile, the request is never sent.
    pub(super) async fn admit(&self, deadline: Deadline) -> Result<SemaphorePermit<'_>> {
        let admitted = timeout(deadline.remaining(), self.0.acquire()).await.ok().and_then(Result::ok);
        admitted.ok_or_else(|| {
            Error::unavailable(
                "earlier requests of this handle have no answer yet: check that a primary can be reached and retry",
            )
        })
    }
}

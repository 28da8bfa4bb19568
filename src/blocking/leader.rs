//! A leadership of a blocking handle.

use super::{Lease, LeaseView};
use crate::{
    engine::lease_state::ReleaseOutcome,
    types::{error::Result, token::FencingToken},
};

/// A leadership: a [`Lease`] that other processes observe. Dropping it resigns in the background.
///
/// [`Campaign::run`](super::Campaign::run) returns it.
#[derive(Debug)]
#[must_use = "a leader resigns when it is dropped, and `let _ =` drops it at once: bind it to a variable"]
pub struct Leader {
    lease: Lease,
}

impl Leader {
    pub(super) fn new(lease: Lease) -> Self {
        Self { lease }
    }

    /// The lease of the leadership.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The token to pass with every write as leader: larger than that of every earlier leader.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.lease.token()
    }

    /// Replaces the leader's value, and notifies the observers. The token stays.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::Leader::proclaim`](crate::Leader::proclaim).
    pub fn proclaim(&self, value: impl Into<String>) -> Result<()> {
        self.lease.update_metadata(crate::Leader::metadata(value)?)
    }

    /// Resigns, and returns whether it led until then. The next in line is elected.
    ///
    /// # Errors
    ///
    /// As [`Lease::release`].
    pub fn resign(self) -> Result<ReleaseOutcome> {
        self.lease.release()
    }

    /// Runs `work` on the calling thread while the leadership is held, as [`Lease::run`] does for a lease.
    ///
    /// # Errors
    ///
    /// As [`Lease::run`].
    pub fn run<T>(&self, work: impl FnOnce(LeaseView) -> T) -> Result<T> {
        self.lease.run(work)
    }

    /// Runs `work` that returns a `Result` on the calling thread while the leadership is held, as [`Lease::try_run`] does
    /// for a lease.
    ///
    /// # Errors
    ///
    /// As [`Lease::try_run`].
    pub fn try_run<T, E>(&self, work: impl FnOnce(LeaseView) -> Result<T, E>) -> Result<T, E>
    where
        E: From<crate::Error>,
    {
        self.lease.try_run(work)
    }
}

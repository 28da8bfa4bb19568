//! A leadership of a blocking handle.

use super::Lease;
use crate::{engine::lease_state::ReleaseOutcome, types::error::Result};

/// A leadership: a [lease](crate::election::Leader::lease) that other processes observe: a [`mongoseal::election::Leader`](crate::election::Leader) with
/// blocking calls. Dropping it resigns in the background.
///
/// [`Campaign::run`](super::Campaign::run) returns it.
pub type Leader = crate::election::Leader<Lease>;

impl Leader {
    /// Replaces the leader's value, and notifies the observers. The token stays.
    ///
    /// # Errors
    ///
    /// As [`mongoseal::election::Leader::proclaim`](crate::election::Leader::proclaim).
    pub fn proclaim(&self, value: impl Into<String>) -> Result<()> {
        self.lease.update_metadata(self.metadata_with(value)?)
    }

    /// Resigns, and returns whether it led until then. The next in line is elected.
    ///
    /// # Errors
    ///
    /// As [`Lease::release`].
    pub fn resign(self) -> Result<ReleaseOutcome> {
        self.lease.release()
    }
}

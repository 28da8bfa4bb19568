//! The leases of a set before all of them are granted.
//!
//! Invariant: unless the set is complete, each lease is taken back. No work has run under it, so a minimum hold does not
//! apply.

use std::mem;

use crate::{lease::Lease, types::error::Result};

/// Leases that were granted for a set. Dropping them takes them back in the background.
#[derive(Default)]
pub(super) struct Gathered(Vec<Lease>);

impl Gathered {
    pub(super) fn push(&mut self, lease: Lease) {
        self.0.push(lease);
    }

    /// Refuses a set of which a lease is lost.
    pub(super) fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(Lease::check)
    }

    /// The leases of a complete set.
    pub(super) fn complete(mut self) -> Vec<Lease> {
        mem::take(&mut self.0)
    }

    /// Takes the leases back, all at the same time.
    pub(super) async fn take_back(mut self) {
        let leases = mem::take(&mut self.0);
        leases.iter().for_each(Lease::begin_take_back);
        for lease in leases {
            lease.take_back().await;
        }
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        self.0.iter().for_each(Lease::begin_take_back);
    }
}

//! A lease that was granted and that its caller does not have yet.

use std::{ops::Deref, sync::atomic::Ordering};

use crate::engine::held_lease::Lease;

/// A granted lease on its way to the caller, which is marked as ungiven.
///
/// Dropping it takes the lease back in the background.
pub(crate) struct Ungiven(pub(super) Lease);

impl Ungiven {
    /// Gives the lease to the caller, for whom a drop is a release.
    pub(crate) fn give(self) -> Lease {
        self.0.lease_inner().is_ungiven.store(false, Ordering::Release);
        self.0
    }

    /// Takes the lease back, and waits for that.
    pub(crate) async fn take_back(self) {
        Self::take_back_all(vec![self]).await;
    }

    /// Takes leases back, all at the same time, and waits for that.
    pub(crate) async fn take_back_all(leases: Vec<Self>) {
        for Self(lease) in &leases {
            lease.take_back();
        }
        for Self(lease) in leases {
            // If this fails, the ttl ends the lease, and a warning says so.
            drop(lease.wait_for_end().await);
        }
    }
}

impl Deref for Ungiven {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.0
    }
}

//! A lease that was granted and that its caller does not have yet.

use std::{
    ops::Deref,
    sync::{Arc, atomic::Ordering},
};

use crate::engine::{end_action::EndAction, held_lease::Lease, lease_inner::LeaseInner, lease_state::LeaseState};

/// A granted lease on its way to the caller.
///
/// Dropping it takes the lease back in the background: no work has run under the lease, so a minimum hold does not apply.
pub(crate) struct Ungiven {
    /// Dropped before the lease, whose own drop releases it.
    on_drop: TakeBack,
    lease: Lease,
}

/// Takes a lease back when it is dropped, unless the lease was given to the caller.
struct TakeBack(Arc<LeaseInner>);

impl Ungiven {
    /// For a lease that is marked as ungiven.
    pub(crate) fn new(lease: Lease) -> Self {
        Self { on_drop: TakeBack(Arc::clone(lease.lease_inner())), lease }
    }

    /// Gives the lease to the caller, for whom a drop is a release.
    pub(crate) fn give(self) -> Lease {
        self.lease.lease_inner().is_ungiven.store(false, Ordering::Release);
        self.lease
    }

    /// Takes the lease back, and waits for that.
    pub(crate) async fn take_back(self) {
        self.on_drop.begin();
        // If this fails, the ttl ends the lease, and a warning says so.
        drop(self.lease.wait_for_end().await);
    }

    /// Takes leases back, all at the same time, and waits for that.
    pub(crate) async fn take_back_all(leases: Vec<Self>) {
        for lease in &leases {
            lease.on_drop.begin();
        }
        for lease in leases {
            lease.take_back().await;
        }
    }
}

impl TakeBack {
    fn begin(&self) {
        self.0.end_with(EndAction::TakeBack, &LeaseState::RELEASED);
    }
}

impl Deref for Ungiven {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl Drop for TakeBack {
    fn drop(&mut self) {
        if self.0.is_ungiven.load(Ordering::Acquire) {
            self.begin();
        }
    }
}

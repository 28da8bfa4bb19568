//! A view of leases for work that checks whether they are still held.

use std::{fmt, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{engine::lease_inner::LeaseInner, lease::remaining, types::error::Result};

/// Shows whether a lease, or each lease of a set, is still held. Work checks it before each step, on any thread.
///
/// [`Lease::run`](super::Lease::run) passes it to the work, and [`Lease::view`](super::Lease::view) makes it. It outlives
/// the lease and does not keep it. Its calls need no request and return at once.
///
/// What this process knows is no proof: it may be paused between the check and the write. Pass the
/// [token](super::Lease::token) to the storage.
#[derive(Clone)]
pub struct LeaseView {
    leases: Arc<[Arc<LeaseInner>]>,
    ended: CancellationToken,
}

impl LeaseView {
    pub(super) fn of<'a>(leases: impl IntoIterator<Item = &'a crate::Lease>, ended: CancellationToken) -> Self {
        Self { leases: leases.into_iter().map(|lease| Arc::clone(lease.lease_inner())).collect(), ended }
    }

    /// Whether the lease has not ended, as far as this process can know: see [`Lease::is_valid`](super::Lease::is_valid).
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.leases.iter().all(|lease| lease.is_valid())
    }

    /// How long the lease lasts without another refresh: see [`Lease::remaining`](super::Lease::remaining).
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.leases.iter().map(|lease| remaining(lease)).min().unwrap_or_default()
    }

    /// Returns an error if the lease has ended, so that work can leave with `?`.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost), with the cause. [`Error::Ended`](crate::Error::Ended) if the holder has ended
    /// the lease.
    pub fn check(&self) -> Result<()> {
        self.leases.iter().try_for_each(|lease| lease.check())
    }

    /// A token that is cancelled when the lease ends: see [`Lease::cancellation_token`](super::Lease::cancellation_token).
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.ended.child_token()
    }
}

impl fmt::Debug for LeaseView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states = self.leases.iter().map(|lease| (lease.key.as_str(), lease.state()));
        f.write_str("LeaseView ")?;
        f.debug_map().entries(states).finish()
    }
}

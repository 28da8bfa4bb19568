//! The state that a handle shares with its siblings.
//!
//! Purpose: many handles on one collection, such as one for each tenant, need one client and one change stream.
//!
//! Mechanism: for the store, siblings are one handle. Their acquires share one numbering, so one listener wakes the
//! waiters and holders of all. Each handle has a [`Membership`] until it is shut down or dropped.
//!
//! Invariants: no two acquires of siblings have the same number. The last sibling that is shut down closes the store.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tokio::sync::OnceCell;

use crate::{
    engine::registry::Registry,
    store::{Store, pool::RefreshPermits},
    types::acquire_id::{AcquireId, HandleId},
};

/// The state that a handle shares with its siblings.
#[derive(Debug)]
pub(crate) struct Siblings {
    /// The id by which the store knows these handles.
    pub(super) id: HandleId,
    /// How many acquires there were.
    acquires: AtomicU64,
    /// Owned by the handles that are not shut down.
    pub(super) membership: Weak<Membership>,
    /// Set when the store was closed for these handles.
    pub(crate) closed: OnceCell<()>,
    /// Whether the store was checked.
    pub(super) is_prepared: AtomicBool,
    /// The waiters and holders.
    pub(crate) registry: Registry,
    /// Bounds their refreshes in flight.
    pub(crate) refresh_permits: Arc<RefreshPermits>,
}

/// Owned by each sibling until it is shut down or dropped.
#[derive(Debug)]
pub(crate) struct Membership;

impl Siblings {
    /// For a first handle, which has the membership.
    pub(super) fn begin(store: &dyn Store, refresh_permits: Arc<RefreshPermits>) -> (Arc<Self>, Arc<Membership>) {
        let membership = Arc::new(Membership);
        let siblings = Self {
            id: store.handle_id(),
            acquires: AtomicU64::new(0),
            membership: Arc::downgrade(&membership),
            closed: OnceCell::new(),
            is_prepared: AtomicBool::new(false),
            registry: Registry::default(),
            refresh_permits,
        };
        (Arc::new(siblings), membership)
    }

    /// The id of the next acquire.
    pub(crate) fn next_acquire_id(&self) -> AcquireId {
        AcquireId { handle: self.id, number: self.acquires.fetch_add(1, Ordering::Relaxed) }
    }

    /// Whether all siblings were shut down.
    pub(crate) fn is_over(&self) -> bool {
        self.membership.strong_count() == 0
    }
}

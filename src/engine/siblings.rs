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
    engine::{notifier::Notifier, owned_runtime::DedicatedThread},
    store::{Store, pool::RefreshPermits},
    types::acquire_id::{AcquireId, HandleId},
};

/// The state that a handle shares with its siblings.
#[derive(Debug)]
pub(crate) struct Siblings {
    pub(crate) store: Arc<dyn Store>,
    /// The id by which the store knows these handles.
    id: HandleId,
    /// How many acquires there were.
    acquires: AtomicU64,
    /// Owned by the handles that are not shut down.
    membership: Weak<Membership>,
    /// Set when the store was closed for these handles.
    pub(crate) closed: OnceCell<()>,
    /// Whether the store was checked.
    pub(crate) is_prepared: Arc<AtomicBool>,
    /// The waiters and holders.
    pub(crate) notifier: Arc<Notifier>,
    /// Bounds their refreshes in flight.
    pub(crate) refresh_permits: Arc<RefreshPermits>,
    /// The thread of their tasks. `None`: they run on the runtime of the caller that starts them.
    pub(crate) thread: Option<Arc<DedicatedThread>>,
}

/// Owned by each sibling until it is shut down or dropped.
#[derive(Debug)]
pub(crate) struct Membership;

impl Siblings {
    /// For a first handle, which has the membership.
    pub(crate) fn begin(
        store: Arc<dyn Store>,
        refresh_permits: Arc<RefreshPermits>,
        thread: Option<Arc<DedicatedThread>>,
    ) -> (Arc<Self>, Arc<Membership>) {
        let (id, membership) = (store.handle_id(), Arc::new(Membership));
        let siblings = Self {
            id,
            store,
            acquires: AtomicU64::new(0),
            membership: Arc::downgrade(&membership),
            closed: OnceCell::new(),
            is_prepared: Arc::default(),
            notifier: Arc::new(Notifier::new(id)),
            refresh_permits,
            thread,
        };
        (Arc::new(siblings), membership)
    }

    /// The membership of another handle. `None`: all siblings were shut down.
    pub(crate) fn join(&self) -> Option<Arc<Membership>> {
        self.membership.upgrade()
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

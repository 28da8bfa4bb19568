//! The state that a handle shares with its siblings.
//!
//! Purpose: many handles on one collection, such as one for each tenant, need one client and one change stream.
//!
//! Mechanism: for the store, siblings are one handle. Their acquires share one numbering, so one listener wakes the
//! waiters and holders of all.
//!
//! Invariants: no two acquires of siblings have the same number. The last sibling that is shut down closes the store.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use tokio::sync::OnceCell;

use crate::{
    AcquireId, HandleId,
    engine::{lease_ids::LeaseIds, notifier::Notifier, owned_runtime::DedicatedThread},
    store::{Store, pool::RefreshPermits},
};

/// The state that a handle shares with its siblings.
#[derive(Debug)]
pub(crate) struct Siblings {
    pub(crate) store: Arc<dyn Store>,
    /// The id by which the store knows these handles.
    id: HandleId,
    /// How many acquires there were.
    acquires: AtomicU64,
    /// How many of the handles are not shut down.
    open: AtomicUsize,
    /// Set when the store was closed for these handles.
    pub(crate) closed: OnceCell<()>,
    /// Whether the store was checked.
    pub(crate) is_prepared: Arc<AtomicBool>,
    /// The ids of leases that are held, acquired, released or taken back.
    pub(crate) lease_ids: Arc<LeaseIds>,
    /// The waiters and holders.
    pub(crate) notifier: Arc<Notifier>,
    /// Bounds their refreshes in flight.
    pub(crate) refresh_permits: Arc<RefreshPermits>,
    /// The thread of their tasks. `None`: they run on the runtime of the caller that starts them.
    pub(crate) thread: Option<Arc<DedicatedThread>>,
}

/// A handle's membership among siblings. Ends at its shutdown or when this is dropped.
#[derive(Debug)]
pub(crate) struct Membership {
    siblings: Arc<Siblings>,
    has_left: AtomicBool,
}

impl Siblings {
    /// For a first handle.
    pub(crate) fn begin(
        store: Arc<dyn Store>,
        refresh_permits: Arc<RefreshPermits>,
        thread: Option<Arc<DedicatedThread>>,
    ) -> Membership {
        let id = store.handle_id();
        let siblings = Self {
            id,
            store,
            acquires: AtomicU64::new(0),
            open: AtomicUsize::new(1),
            closed: OnceCell::new(),
            is_prepared: Arc::default(),
            lease_ids: Arc::default(),
            notifier: Arc::new(Notifier::new(id)),
            refresh_permits,
            thread,
        };
        Membership { siblings: Arc::new(siblings), has_left: AtomicBool::new(false) }
    }

    /// The id of the next acquire.
    pub(crate) fn next_acquire_id(&self) -> AcquireId {
        AcquireId { handle: self.id, number: self.acquires.fetch_add(1, Ordering::Relaxed) }
    }

    /// Whether all siblings were shut down.
    pub(crate) fn is_over(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0
    }
}

impl Membership {
    pub(crate) fn siblings(&self) -> &Siblings {
        &self.siblings
    }

    /// Adds another handle. `None`: all siblings were shut down.
    pub(crate) fn join(&self) -> Option<Self> {
        let joined = |open: usize| (open > 0).then(|| open.saturating_add(1));
        self.siblings.open.fetch_update(Ordering::AcqRel, Ordering::Acquire, joined).ok()?;
        Some(Self { siblings: Arc::clone(&self.siblings), has_left: AtomicBool::new(false) })
    }

    /// Ends the membership, once.
    pub(crate) fn leave(&self) {
        if !self.has_left.swap(true, Ordering::AcqRel) {
            self.siblings.open.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.leave();
    }
}

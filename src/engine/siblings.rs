//! What a handle shares with its siblings.
//!
//! Purpose: many handles on one collection, as one for each tenant, need one client and one change stream.
//!
//! Mechanism: to the store, siblings are one handle. Their acquires are numbered together, so one listener wakes the waiters
//! and holders of all.
//!
//! Invariants: no two acquires of siblings have the same number. The store is closed by the last sibling that is shut down.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use tokio::sync::OnceCell;

use crate::{
    AcquireId, HandleId,
    engine::{dedicated_thread::DedicatedThread, lease_ids::LeaseIds, notifier::Notifier},
    store::Store,
};

/// What a handle shares with its siblings.
#[derive(Debug)]
pub(crate) struct Siblings {
    pub(crate) store: Arc<dyn Store>,
    /// By which the store tells these handles from others.
    id: HandleId,
    /// How many acquires there were.
    acquires: AtomicU64,
    /// How many of the handles were not shut down.
    open: AtomicUsize,
    /// Whether the store was told that these handles need it no more.
    pub(crate) closed: OnceCell<()>,
    /// Whether the store was found fit.
    pub(crate) is_prepared: Arc<AtomicBool>,
    /// The leases that are held, acquired, released or taken back at this moment.
    pub(crate) lease_ids: Arc<LeaseIds>,
    /// Those who wait for a key.
    pub(crate) notifier: Arc<Notifier>,
    /// Where their tasks run, if not on the runtime of the caller that begins them.
    pub(crate) thread: Option<Arc<DedicatedThread>>,
}

/// The part of one handle in what it shares, given up at its shutdown or when this is dropped.
#[derive(Debug)]
pub(crate) struct Membership {
    siblings: Arc<Siblings>,
    has_left: AtomicBool,
}

impl Siblings {
    /// Of a first handle.
    pub(crate) fn begin(store: Arc<dyn Store>, thread: Option<Arc<DedicatedThread>>) -> Membership {
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
            thread,
        };
        Membership { siblings: Arc::new(siblings), has_left: AtomicBool::new(false) }
    }

    /// The next acquire of these handles.
    pub(crate) fn caller(&self) -> AcquireId {
        AcquireId { handle: self.id, number: self.acquires.fetch_add(1, Ordering::Relaxed) }
    }

    /// Whether all of the handles were shut down.
    pub(crate) fn is_over(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0
    }
}

impl Membership {
    pub(crate) fn siblings(&self) -> &Siblings {
        &self.siblings
    }

    /// That of another handle. `None` if all were shut down.
    pub(crate) fn join(&self) -> Option<Self> {
        let joined = |open: usize| (open > 0).then(|| open.saturating_add(1));
        self.siblings.open.fetch_update(Ordering::AcqRel, Ordering::Acquire, joined).ok()?;
        Some(Self { siblings: Arc::clone(&self.siblings), has_left: AtomicBool::new(false) })
    }

    /// Gives it up, once.
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

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
    Caller, HandleId, Result, dedicated::DedicatedThread, in_use::IdsInUse, seal::shut_down, store::Store,
    wait::Waiters,
};

/// What a handle shares with its siblings.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    /// By which the store tells these handles from others.
    pub(crate) id: HandleId,
    /// How many acquires there were.
    acquires: AtomicU64,
    /// How many of the handles were not shut down.
    open: AtomicUsize,
    /// Whether the store was told that these handles need it no more.
    pub(crate) closed: OnceCell<()>,
    /// Whether the store was found fit.
    pub(crate) prepared: AtomicBool,
    /// The leases that are held, acquired, released or taken back at this moment.
    pub(crate) in_use: IdsInUse,
    /// Those who wait for a key.
    pub(crate) waiters: Waiters,
    /// Where their tasks run, if not on the runtime of who begins them.
    pub(crate) thread: Option<Arc<DedicatedThread>>,
}

/// The part of one handle in what it shares, given up at its shutdown or when this is dropped.
#[derive(Debug)]
pub(crate) struct Membership {
    shared: Arc<Shared>,
    has_left: AtomicBool,
}

impl Shared {
    /// Of a first handle.
    pub(crate) fn begin(store: Arc<dyn Store>, thread: Option<Arc<DedicatedThread>>) -> Membership {
        let shared = Self {
            id: store.handle_id(),
            store,
            acquires: AtomicU64::new(0),
            open: AtomicUsize::new(1),
            closed: OnceCell::new(),
            prepared: AtomicBool::new(false),
            in_use: IdsInUse::default(),
            waiters: Waiters::default(),
            thread,
        };
        Membership { shared: Arc::new(shared), has_left: AtomicBool::new(false) }
    }

    /// The next acquire of these handles.
    pub(crate) fn caller(&self) -> Caller {
        Caller { handle: self.id, number: self.acquires.fetch_add(1, Ordering::Relaxed) }
    }

    /// Whether all of the handles were shut down.
    pub(crate) fn is_over(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0
    }
}

impl Membership {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// That of another handle.
    pub(crate) fn join(&self) -> Result<Self> {
        let joined = |open: usize| (open > 0).then(|| open.saturating_add(1));
        if self.shared.open.fetch_update(Ordering::AcqRel, Ordering::Acquire, joined).is_err() {
            return Err(shut_down());
        }
        Ok(Self { shared: Arc::clone(&self.shared), has_left: AtomicBool::new(false) })
    }

    /// Gives it up, once.
    pub(crate) fn leave(&self) {
        if !self.has_left.swap(true, Ordering::AcqRel) {
            self.shared.open.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.leave();
    }
}

//! The state that a handle and its leases share, and that which it shares with its siblings.
//!
//! Purpose: many handles on one collection, such as one for each tenant, need one client and one change stream.
//!
//! Mechanism: for the store, siblings are one handle. Their acquires share one numbering, so one listener wakes the
//! waiters and holders of all. Each handle has a [`Membership`] until it is shut down or dropped.
//!
//! Invariants: no two acquires of siblings have the same number. The last sibling that is shut down closes the store.

use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tokio::sync::OnceCell;

use crate::{
    engine::{
        context::{Context, shut_down_error},
        mailbox::Mailbox,
        notifier::Notifier,
        release_batch::ShutdownReleases,
        schedule::Schedule,
        settings::Settings,
    },
    store::{
        Store,
        pool::{PoolShares, RefreshPermits},
        runtime::Home,
    },
    types::{
        acquire_id::{AcquireId, HandleId},
        error::Result,
        lock::lock,
    },
};

/// The state that a handle and its leases share.
#[derive(Debug)]
pub(crate) struct HandleInner {
    pub(crate) context: Arc<Context>,
    siblings: Arc<Siblings>,
    /// `None`: the handle was shut down.
    membership: Mutex<Option<Arc<Membership>>>,
    /// The releases of the shutdown.
    pub(crate) releases: ShutdownReleases,
    /// What the keeper of the leases has to do, and when.
    pub(crate) schedule: Mutex<Schedule>,
    /// The messages to the keeper.
    pub(crate) mailbox: Arc<Mailbox>,
}

impl HandleInner {
    /// For a first handle, whose tasks run on this home.
    pub(crate) fn new(store: Arc<dyn Store>, settings: Settings, home: Arc<Home>) -> Result<Arc<Self>> {
        let permits = Arc::new(RefreshPermits::new(PoolShares::of(store.connections())));
        Self::of(Siblings::begin(store, permits, home), settings)
    }

    /// For a sibling on the same records.
    pub(crate) fn sibling(&self, settings: Settings) -> Result<Arc<Self>> {
        Self::of((Arc::clone(&self.siblings), self.join()?), settings)
    }

    /// For a sibling on other records.
    pub(crate) fn sibling_on(&self, store: Arc<dyn Store>, settings: Settings) -> Result<Arc<Self>> {
        // Fails if all siblings were shut down.
        drop(self.join()?);
        let Siblings { refresh_permits, home, .. } = &*self.siblings;
        Self::of(Siblings::begin(store, Arc::clone(refresh_permits), Arc::clone(home)), settings)
    }

    /// The membership of another handle, unless all siblings were shut down.
    fn join(&self) -> Result<Arc<Membership>> {
        self.siblings.membership.upgrade().ok_or_else(shut_down_error)
    }

    fn of((siblings, membership): (Arc<Siblings>, Arc<Membership>), settings: Settings) -> Result<Arc<Self>> {
        let ttl = settings.ttl.duration();
        settings.check_ttl(ttl, settings.grace_for(ttl))?;
        let (store, is_prepared) = (Arc::clone(&siblings.store), Arc::clone(&siblings.is_prepared));
        let schedule = Mutex::new(Schedule::new(store.part_size()));
        let context = Context::new(store, settings, is_prepared, Arc::clone(&siblings.home));
        Ok(Arc::new(Self {
            context,
            siblings,
            membership: Mutex::new(Some(membership)),
            releases: ShutdownReleases::default(),
            schedule,
            mailbox: Arc::default(),
        }))
    }

    /// The state that the handle shares with its siblings.
    pub(crate) fn siblings(&self) -> &Siblings {
        &self.siblings
    }

    /// Leaves the siblings, because the handle is shut down.
    pub(crate) fn leave(&self) {
        drop(lock(&self.membership).take());
    }
}

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
    /// The runtime of their tasks.
    pub(crate) home: Arc<Home>,
}

/// Owned by each sibling until it is shut down or dropped.
#[derive(Debug)]
pub(crate) struct Membership;

impl Siblings {
    /// For a first handle, which has the membership.
    pub(crate) fn begin(
        store: Arc<dyn Store>,
        refresh_permits: Arc<RefreshPermits>,
        home: Arc<Home>,
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
            home,
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

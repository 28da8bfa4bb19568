//! The state that a handle and its leases share.

use std::sync::{Arc, Mutex};

use crate::{
    engine::{
        confirm::ProvenStore,
        context::{Context, shut_down_error},
        mailbox::Mailbox,
        release_batch::ShutdownReleases,
        schedule::Schedule,
        settings::Settings,
        siblings::{Membership, Siblings},
    },
    store::{
        Store,
        pool::{PoolShares, RefreshPermits},
        runtime::Home,
    },
    types::{error::Result, lock::lock},
};

/// The state that a handle and its leases share.
#[derive(Debug)]
pub(crate) struct HandleInner {
    pub(crate) context: Arc<Context>,
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
        let permits = RefreshPermits::new(PoolShares::of(store.connections()));
        Self::of(Siblings::begin(&*store, Arc::new(permits)), ProvenStore::new(store), home, settings)
    }

    /// For a sibling on the same records.
    pub(crate) fn sibling(&self, settings: Settings) -> Result<Arc<Self>> {
        let Context { store, home, siblings, .. } = &*self.context;
        Self::of((Arc::clone(siblings), self.join()?), store.clone(), Arc::clone(home), settings)
    }

    /// For a sibling on other records.
    pub(crate) fn sibling_on(&self, store: Arc<dyn Store>, settings: Settings) -> Result<Arc<Self>> {
        // Fails if all siblings were shut down.
        drop(self.join()?);
        let Context { home, siblings, .. } = &*self.context;
        let siblings = Siblings::begin(&*store, Arc::clone(&siblings.refresh_permits));
        Self::of(siblings, ProvenStore::new(store), Arc::clone(home), settings)
    }

    /// The membership of another handle, unless all siblings were shut down.
    fn join(&self) -> Result<Arc<Membership>> {
        self.siblings().membership.upgrade().ok_or_else(shut_down_error)
    }

    fn of(
        (siblings, membership): (Arc<Siblings>, Arc<Membership>),
        store: ProvenStore,
        home: Arc<Home>,
        settings: Settings,
    ) -> Result<Arc<Self>> {
        let ttl = settings.ttl.duration();
        settings.check_ttl(ttl, settings.grace_for(ttl))?;
        Ok(Arc::new(Self {
            schedule: Mutex::new(Schedule::new(store.part_size())),
            context: Context::new(store, settings, home, siblings),
            membership: Mutex::new(Some(membership)),
            releases: ShutdownReleases::default(),
            mailbox: Arc::default(),
        }))
    }

    /// The state that the handle shares with its siblings.
    pub(crate) fn siblings(&self) -> &Siblings {
        &self.context.siblings
    }

    /// Leaves the siblings, because the handle is shut down.
    pub(crate) fn leave(&self) {
        drop(lock(&self.membership).take());
    }
}

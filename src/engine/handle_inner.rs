//! The state that a handle and its leases share.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{
    engine::{
        context::{Context, shut_down_error},
        own_leases::OwnLeases,
        owned_runtime::DedicatedThread,
        refresh_schedule::Schedules,
        release_batch::ReleaseQueue,
        settings::Settings,
        siblings::{Membership, Siblings},
    },
    store::{
        Store,
        pool::{PoolShares, RefreshPermits},
    },
    types::error::Result,
};

/// The state that a handle and its leases share.
#[derive(Debug)]
pub(crate) struct HandleInner {
    pub(crate) context: Arc<Context>,
    siblings: Arc<Siblings>,
    /// `None`: the handle was shut down.
    membership: Mutex<Option<Arc<Membership>>>,
    /// The leases whose tasks have not ended.
    pub(crate) own_leases: OwnLeases,
    /// The releases of the shutdown.
    pub(crate) releases: ReleaseQueue,
    /// When leases are refreshed, and in which parts.
    pub(crate) schedules: Arc<Schedules>,
}

impl HandleInner {
    /// For a first handle. Its tasks run on `thread`, or on the runtime that starts them.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        settings: Settings,
        thread: Option<Arc<DedicatedThread>>,
    ) -> Result<Arc<Self>> {
        let permits = Arc::new(RefreshPermits::new(PoolShares::of(store.connections())));
        Self::of(Siblings::begin(store, permits, thread), settings)
    }

    /// For a sibling on the same records.
    pub(crate) fn sibling(&self, settings: Settings) -> Result<Arc<Self>> {
        Self::of((Arc::clone(&self.siblings), self.join()?), settings)
    }

    /// For a sibling on other records.
    pub(crate) fn sibling_on(&self, store: Arc<dyn Store>, settings: Settings) -> Result<Arc<Self>> {
        // Fails if all siblings were shut down.
        drop(self.join()?);
        let Siblings { refresh_permits, thread, .. } = &*self.siblings;
        Self::of(Siblings::begin(store, Arc::clone(refresh_permits), thread.clone()), settings)
    }

    fn join(&self) -> Result<Arc<Membership>> {
        self.siblings.join().ok_or_else(shut_down_error)
    }

    fn of((siblings, membership): (Arc<Siblings>, Arc<Membership>), settings: Settings) -> Result<Arc<Self>> {
        let ttl = settings.ttl.duration();
        settings.check_ttl(ttl, settings.grace_for(ttl))?;
        let (store, is_prepared) = (Arc::clone(&siblings.store), Arc::clone(&siblings.is_prepared));
        let context = Context::new(store, settings, is_prepared, siblings.thread.clone());
        let schedules = Arc::new(Schedules::new(
            Arc::clone(&context),
            Arc::clone(&siblings.notifier),
            Arc::clone(&siblings.refresh_permits),
        ));
        Ok(Arc::new(Self {
            context,
            siblings,
            membership: Mutex::new(Some(membership)),
            own_leases: OwnLeases::default(),
            releases: ReleaseQueue::default(),
            schedules,
        }))
    }

    /// The state that the handle shares with its siblings.
    pub(crate) fn siblings(&self) -> &Siblings {
        &self.siblings
    }

    /// Leaves the siblings, because the handle is shut down.
    pub(crate) fn leave(&self) {
        drop(self.membership.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

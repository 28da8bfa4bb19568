//! The lease ids that a handle and its siblings use.
//!
//! Purpose: if one process resumed a lease that it holds already, two leases would both believe in one holder.
//!
//! Invariant: a lease id is in use from its acquire or its resume until its lease has ended.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

use crate::types::{
    clock::Clock,
    error::{Error, Result},
    lease_id::LeaseId,
};

/// How long a resume waits for the task of a lease that has just been orphaned. That task sends nothing.
const TASK_END: Duration = Duration::from_millis(100);

/// The lease ids in use.
#[derive(Debug, Default)]
pub(crate) struct LeaseIds {
    ids: Mutex<HashSet<LeaseId>>,
    /// Notified when an id is no longer in use.
    freed: Notify,
}

impl LeaseIds {
    fn ids(&self) -> MutexGuard<'_, HashSet<LeaseId>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lease id in use, until this is dropped.
#[derive(Debug)]
pub(crate) struct InUse {
    ids: Arc<LeaseIds>,
    lease: LeaseId,
}

impl InUse {
    pub(crate) fn begin(ids: &Arc<LeaseIds>, lease: LeaseId) -> Result<Self> {
        if !ids.ids().insert(lease) {
            return Err(Error::invalid(format!(
                "the lease id {lease} is in use by a lease of this handle or a sibling: wait until that has ended"
            )));
        }
        Ok(Self { ids: Arc::clone(ids), lease })
    }

    /// The same for a lease that this process may just have orphaned.
    pub(crate) async fn begin_anew(ids: &Arc<LeaseIds>, lease: LeaseId, clock: Clock) -> Result<Self> {
        let until = clock.now().after(TASK_END);
        loop {
            let freed = ids.freed.notified();
            let refused = match Self::begin(ids, lease) {
                Err(refused) => refused,
                begun => return begun,
            };
            tokio::select! {
                biased;
                () = freed => {}
                () = clock.sleep_until(until) => return Err(refused),
            }
        }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.ids.ids().remove(&self.lease);
        self.ids.freed.notify_waiters();
    }
}

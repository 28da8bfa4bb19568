//! The lease ids that a handle and its siblings use.
//!
//! Purpose: if one process resumed a lease that it holds already, two leases would both believe in one holder.
//!
//! Invariant: a lease id is in use from its acquire or its resume until its lease has ended.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{Error, LeaseId, Result};

/// The lease ids in use.
#[derive(Debug, Default)]
pub(crate) struct LeaseIds(Mutex<HashSet<LeaseId>>);

impl LeaseIds {
    fn ids(&self) -> MutexGuard<'_, HashSet<LeaseId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.ids.ids().remove(&self.lease);
    }
}

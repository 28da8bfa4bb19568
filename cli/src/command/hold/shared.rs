//! What the tasks of all leases and observations share.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mongoseal::Mongoseal;
use tokio::sync::{mpsc::Sender, oneshot};

use super::{
    notices::Notices,
    output::Output,
    request::{Id, Verb},
};

pub(super) struct Shared {
    pub(super) seal: Mongoseal,
    pub(super) output: Output,
    pub(super) notices: Arc<Notices>,
    tasks: Mutex<HashMap<Id, Task>>,
}

/// How to reach the task of a lease or an observation.
pub(super) enum Task {
    Lease(Sender<(Id, Verb)>),
    /// It ends with the id of the request that ends it.
    Observation(oneshot::Sender<Id>),
}

impl Shared {
    pub(super) fn new(seal: Mongoseal, output: Output, notices: Arc<Notices>) -> Self {
        Self { seal, output, notices, tasks: Mutex::default() }
    }

    pub(super) fn tasks(&self) -> MutexGuard<'_, HashMap<Id, Task>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a task that has ended. No request reaches it from then on.
    pub(super) fn forget(&self, id: &Id) {
        self.tasks().remove(id);
    }
}

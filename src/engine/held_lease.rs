//! A lease that is held: ends when it is dropped.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::oneshot;

use crate::{
    Error, LeaseId, LossCause, Result,
    engine::{
        end_action::{End, EndAction, ReleaseOutcome},
        lease_shared::LeaseShared,
        lease_state::LeaseState,
        shared::Shared,
    },
};

/// How much longer than its task, which ends with the operation timeout, a call on a lease waits.
const TASK_MARGIN: Duration = Duration::from_millis(100);

/// A lease that is held. Dropping it tells the task of the lease to release it.
pub(crate) struct HeldLease {
    pub(crate) shared: Arc<Shared>,
    hold: Arc<LeaseShared>,
    /// Filled by the task when it has ended the lease at the store. `None`: a call waits or waited for that.
    released: Mutex<Option<oneshot::Receiver<Result<End>>>>,
}

impl HeldLease {
    pub(crate) fn new(shared: Arc<Shared>, hold: Arc<LeaseShared>, released: oneshot::Receiver<Result<End>>) -> Self {
        Self { shared, hold, released: Mutex::new(Some(released)) }
    }

    /// What it knows together with its task.
    pub(crate) fn hold(&self) -> &Arc<LeaseShared> {
        &self.hold
    }

    /// Ends the lease, which its task then releases.
    pub(crate) fn end(&self) {
        self.shared.releases.begin(&self.hold.key, &self.hold.release);
        self.hold.end(&LeaseState::Released);
    }

    /// Ends the lease, which its task then transfers.
    pub(crate) fn transfer(&self, to: LeaseId) {
        self.hold.end_action.get_or_init(|| EndAction::Transfer(to));
        self.hold.lose(LossCause::Transferred);
    }

    /// Waits for what its task did at the end of the lease.
    pub(crate) async fn ended(&self) -> Result<End> {
        let released = self.released.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A transfer took it, before a release or at the same time as another transfer.
        let Some(released) = released else {
            return Ok(End::Released(ReleaseOutcome::AlreadyLost { cause: self.hold.cause() }));
        };
        let gone = || {
            Error::unavailable(
                "the runtime that kept the lease has ended: its ttl ends the lease, or a revocation if it has no expiry",
            )
        };
        let context = &self.shared.context;
        let Some(end) = context.before(context.operation_deadline().later_by(TASK_MARGIN), released).await else {
            return Err(Error::unavailable(
                "the lease's task did not end it within the operation timeout: drive the runtime on which it was acquired; else its ttl ends the lease, or a revocation if it has no expiry",
            ));
        };
        end.unwrap_or_else(|source| Err(gone().caused_by(source)))
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        self.end();
    }
}

//! The holder's side of a lease. Dropping it ends the lease.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::oneshot;

use crate::{
    engine::{
        end_action::End,
        handle_inner::HandleInner,
        lease_inner::LeaseInner,
        lease_state::{LeaseState, ReleaseOutcome},
    },
    types::error::{EndReason, Error, Result},
};

/// How much longer a call on a lease waits than the lease's task, which ends with the operation timeout.
const TASK_MARGIN: Duration = Duration::from_millis(100);

/// The holder's side of a lease. Dropping it makes the lease's task release it.
pub(crate) struct HeldLease {
    pub(crate) shared: Arc<HandleInner>,
    lease: Arc<LeaseInner>,
    /// Receives what the task did at the store when the lease ended. `None`: an earlier call took it.
    released: Mutex<Option<oneshot::Receiver<Result<End>>>>,
}

impl HeldLease {
    pub(crate) fn new(
        shared: Arc<HandleInner>,
        lease: Arc<LeaseInner>,
        released: oneshot::Receiver<Result<End>>,
    ) -> Self {
        Self { shared, lease, released: Mutex::new(Some(released)) }
    }

    /// The state that the lease shares with its task.
    pub(crate) fn lease_inner(&self) -> &Arc<LeaseInner> {
        &self.lease
    }

    /// Waits until the task has ended the lease at the store, and returns what it did.
    pub(crate) async fn wait_for_end(&self) -> Result<End> {
        let released = self.released.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A transfer took it, before a release or at the same time as another transfer.
        let Some(released) = released else {
            return Ok(End::Released(match self.lease.state() {
                LeaseState::Lost { cause } => ReleaseOutcome::AlreadyLost { cause },
                LeaseState::Ended { reason: EndReason::Transferred } => ReleaseOutcome::AlreadyTransferred,
                // A shutdown came before the transfer, which took its outcome.
                _ => ReleaseOutcome::Unknown,
            }));
        };
        let gone = || {
            Error::unavailable(
                "the runtime that kept the lease has ended: the lease ends with its ttl, or by a revocation if it has no expiry",
            )
        };
        let context = &self.shared.context;
        let Some(end) = context.operation_deadline().later_by(TASK_MARGIN).wait_for(released).await else {
            return Err(Error::unavailable(
                "the lease's task did not end it within the operation timeout: drive the runtime on which it was acquired; otherwise the lease ends with its ttl, or by a revocation if it has no expiry",
            ));
        };
        end.unwrap_or_else(|source| Err(gone().caused_by(source)))
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        self.lease.end(&LeaseState::RELEASED);
    }
}

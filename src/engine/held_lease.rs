//! The lease as its holder has it. Dropping it ends the lease.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    engine::{
        context::Context,
        end_action::{End, EndAction},
        handle_inner::HandleInner,
        lease_inner::LeaseInner,
        lease_state::{LeaseState, ReleaseOutcome},
    },
    types::{
        error::{EndReason, Error, Result},
        lock::lock,
    },
};

/// How much longer a call on a lease waits than what it waits for, which ends with the operation timeout.
pub(crate) const TASK_MARGIN: Duration = Duration::from_millis(100);

/// A lease: the right to act on its key until it ends, and the [`FencingToken`](crate::FencingToken) for the storage.
///
/// The handle refreshes the lease in the background. While the store cannot be reached the lease is
/// [`AtRisk`](LeaseState::AtRisk). At its deadline it is [`Lost`](LeaseState::Lost); the deadline is counted from
/// before the last confirmed request was sent. A lost lease stays lost.
///
/// What this process knows is no proof: it may have been paused between the check and the write. Pass
/// [`token`](Self::token) to the storage, and let the storage refuse smaller tokens.
///
/// # Drop
///
/// Dropping a lease releases it in the background. The drop only sends a message to the handle, so it does not block,
/// cannot fail and needs no runtime. If the runtime of its handle has ended, the ttl ends the lease.
#[must_use = "a lease is released when it is dropped, and `let _ =` drops it at once: bind it to a variable"]
pub struct Lease {
    pub(crate) handle: Arc<HandleInner>,
    inner: Arc<LeaseInner>,
}

impl Lease {
    pub(crate) fn new(handle: Arc<HandleInner>, lease: Arc<LeaseInner>) -> Self {
        Self { handle, inner: lease }
    }

    /// The state that the lease shares with its handle.
    pub(crate) fn lease_inner(&self) -> &Arc<LeaseInner> {
        &self.inner
    }

    /// Waits until the lease has ended at the store, and returns how.
    pub(crate) async fn wait_for_end(&self) -> Result<End> {
        self.inner.wait_for_end(&self.handle.context).await
    }

    /// Ends a lease that its caller does not have yet: no work has run under it, so a minimum hold does not apply.
    pub(super) fn take_back(&self) {
        self.inner.end_with(EndAction::TakeBack, &LeaseState::RELEASED);
    }
}

impl LeaseInner {
    /// Waits until the lease has ended at the store, and returns how. Later calls return the same, but only the first one
    /// returns an error.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before, the next call waits.
    pub(crate) async fn wait_for_end(&self, context: &Context) -> Result<End> {
        let Some(done) = context.operation_deadline().later_by(TASK_MARGIN).wait_for(self.done.wait()).await else {
            return Err(Error::unavailable(
                "the handle did not end the lease within the operation timeout: drive the runtime in which the handle was made; otherwise the lease ends with its ttl, or by a revocation if it has no expiry",
            ));
        };
        let mut done = lock(done);
        if let Some(Ok(end)) = &*done {
            return Ok(end.clone());
        }
        done.take().unwrap_or_else(|| {
            Ok(End::Released(match self.state() {
                LeaseState::Lost { cause } => ReleaseOutcome::AlreadyLost { cause },
                LeaseState::Ended { reason: EndReason::Transferred } => ReleaseOutcome::AlreadyTransferred,
                _ => ReleaseOutcome::Unknown,
            }))
        })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.inner.is_ungiven.load(Ordering::Acquire) {
            self.take_back();
        } else {
            self.inner.end(&LeaseState::RELEASED);
        }
    }
}

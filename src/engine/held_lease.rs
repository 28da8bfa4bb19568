//! The lease as its holder has it. Dropping it ends the lease.

use std::{
    pin::Pin,
    sync::Arc,
    task::{self, Poll},
    time::Duration,
};

use tokio::sync::oneshot;

use crate::{
    engine::{
        context::Context,
        end_action::End,
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
}

impl LeaseInner {
    /// Waits until the lease has ended at the store, and returns how. If the future is dropped before, the
    /// next call waits.
    pub(crate) async fn wait_for_end(&self, context: &Context) -> Result<End> {
        let released = lock(&self.released).take();
        // A transfer or a release with a value took it before this call.
        let Some(released) = released.map(|released| Waiting { lease: self, released: Some(released) }) else {
            return Ok(End::Released(match self.state() {
                LeaseState::Lost { cause } => ReleaseOutcome::AlreadyLost { cause },
                LeaseState::Ended { reason: EndReason::Transferred } => ReleaseOutcome::AlreadyTransferred,
                // A shutdown came before the transfer, which took its outcome.
                _ => ReleaseOutcome::Unknown,
            }));
        };
        let Some(end) = context.operation_deadline().later_by(TASK_MARGIN).wait_for(released).await else {
            return Err(Error::unavailable(
                "the handle did not end the lease within the operation timeout: drive the runtime in which the handle was made; otherwise the lease ends with its ttl, or by a revocation if it has no expiry",
            ));
        };
        end.unwrap_or_else(|source| {
            let gone = "the runtime that kept the lease has ended: the lease ends with its ttl, or by a revocation if it has no expiry";
            Err(Error::unavailable(gone).caused_by(source))
        })
    }
}

impl LeaseInner {
    /// Leaves it to the next call that waits for the end to tell this outcome.
    pub(crate) fn leave_outcome(&self, outcome: ReleaseOutcome) {
        let (released, next) = oneshot::channel();
        drop(released.send(Ok(End::Released(outcome))));
        *lock(&self.released) = Some(next);
    }
}

/// Waits for what was done at the store. If it is dropped before, the next call on the lease can wait.
struct Waiting<'a> {
    lease: &'a LeaseInner,
    released: Option<oneshot::Receiver<Result<End>>>,
}

impl Future for Waiting<'_> {
    type Output = std::result::Result<Result<End>, oneshot::error::RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Self::Output> {
        let Some(released) = &mut self.released else { return Poll::Pending };
        let done = task::ready!(Pin::new(released).poll(context));
        self.released = None;
        Poll::Ready(done)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(released) = self.released.take() {
            *lock(&self.lease.released) = Some(released);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.inner.end(&LeaseState::RELEASED);
    }
}

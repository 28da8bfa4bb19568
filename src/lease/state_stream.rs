//! A stream of the states of a lease.

use std::{
    fmt, future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::{Stream, StreamExt, stream};

use crate::engine::{lease_inner::LeaseInner, lease_state::LeaseState};

/// A stream of the states of a lease. [`Lease::watch_state`](crate::Lease::watch_state) makes it.
///
/// It outlives the lease and returns its end. It returns copies, so the caller can drop or release the lease at any
/// time. It is a [`Stream`] of what [`changed`](Self::changed) returns.
///
/// # Examples
///
/// ```
/// use mongoseal::{EndReason, LeaseState, Mongoseal};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> mongoseal::Result<()> {
/// let seal = Mongoseal::in_memory();
/// let lease = seal.acquire("reports/nightly").await?;
/// let mut states = lease.watch_state();
/// assert_eq!(states.get(), LeaseState::Held);
///
/// lease.release().await?;
/// assert_eq!(states.changed().await, Some(LeaseState::Ended { reason: EndReason::Released }));
/// assert_eq!(states.changed().await, None);
/// # Ok(())
/// # }
/// ```
#[must_use = "a stream of states does nothing until it is polled"]
pub struct StateStream {
    lease: Arc<LeaseInner>,
    changes: Pin<Box<dyn Stream<Item = LeaseState> + Send + Sync>>,
}

impl StateStream {
    pub(crate) fn new(lease: &Arc<LeaseInner>) -> Self {
        let changes = stream::unfold(Some(lease.watch()), |changes| async move {
            let mut changes = changes?;
            // The sender lives as long as this stream, which keeps the `LeaseInner`.
            if changes.changed().await.is_err() {
                future::pending::<()>().await;
            }
            let state = changes.borrow_and_update().clone();
            let rest = (!state.is_over()).then_some(changes);
            Some((state, rest))
        });
        // A caller may poll it after its end, which `unfold` answers with a panic.
        Self { lease: Arc::clone(lease), changes: Box::pin(changes.fuse()) }
    }

    /// The state now. Needs no request.
    #[must_use]
    pub fn get(&self) -> LeaseState {
        self.lease.state()
    }

    /// Waits until the state changes, and returns the new state. After the end of the lease it returns `None`.
    ///
    /// If the state changes several times before the call, the call returns only the last state. A deadline that has
    /// passed changes [`get`](Self::get) at once; this returns it when the handle has noticed it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call returns the state that this one would have returned.
    pub async fn changed(&mut self) -> Option<LeaseState> {
        self.changes.next().await
    }
}

impl Stream for StateStream {
    type Item = LeaseState;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<LeaseState>> {
        self.changes.poll_next_unpin(context)
    }
}

impl fmt::Debug for StateStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateStream").field("state", &self.get()).finish_non_exhaustive()
    }
}

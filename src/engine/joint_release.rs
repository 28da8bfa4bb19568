//! Leases that are released together.
//!
//! Mechanism: the tasks of the leases share one [`JointRelease`]. The first of them sends one command for all leases. A
//! lease whose joint release was not confirmed is released alone.
//!
//! Invariant: the command is sent after all of the leases have ended in this process.

use tokio::sync::{OnceCell, watch};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    Deadline,
    engine::context::Context,
    record::{BatchRequest, LeaseRefs},
};

/// Leases that end together.
#[derive(Debug)]
pub(crate) struct JointRelease {
    leases: LeaseRefs,
    /// Cancelled when all of them have ended in this process. The release is sent after that.
    pub(crate) ended: CancellationToken,
    released: OnceCell<bool>,
}

impl JointRelease {
    pub(crate) fn new(leases: LeaseRefs) -> Self {
        Self { leases, ended: CancellationToken::new(), released: OnceCell::new() }
    }

    /// Releases all of them, once. Returns whether all were held until now; if not, each lease is released alone.
    pub(crate) async fn run(&self, context: &Context, deadline: Deadline) -> bool {
        self.ended.cancelled().await;
        let release = || async {
            let released = context.store.apply_batch(&self.leases, &BatchRequest::Release, deadline).await;
            // Not in the span of the lease whose task runs this.
            debug!(parent: None, leases = self.leases.len(), ?released, "released together");
            released.unwrap_or(false)
        };
        *self.released.get_or_init(release).await
    }
}

/// The release of a group by this handle, for the leases of the group that this handle holds.
#[derive(Debug, Default)]
pub(crate) struct GroupRelease {
    released: watch::Sender<bool>,
}

/// A lease's side of the release of its group.
#[derive(Clone, Debug)]
pub(crate) struct WithGroup(watch::Receiver<bool>);

impl GroupRelease {
    /// Makes a lease wait for this release. If the release fails, the lease's task releases the lease alone.
    pub(crate) fn subscribe(&self) -> WithGroup {
        WithGroup(self.released.subscribe())
    }

    /// Notes that the group was released.
    pub(crate) fn finish(self) {
        self.released.send_replace(true);
    }
}

impl WithGroup {
    /// Waits until the group was released. Returns whether it was.
    pub(crate) async fn wait(&self, context: &Context) -> bool {
        let mut released = self.0.clone();
        tokio::select! {
            biased;
            released = released.wait_for(|released| *released) => released.is_ok(),
            () = context.closing.cancelled() => false,
            () = context.operation_deadline().passed() => false,
        }
    }
}

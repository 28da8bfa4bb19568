//! Leases that end together: one command gives all of them back.

use tokio::sync::{OnceCell, watch};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    Deadline,
    engine::context::Context,
    record::{BatchRequest, LeaseRefs},
};

/// Leases that were ended together.
#[derive(Debug)]
pub(crate) struct JointRelease {
    leases: LeaseRefs,
    /// Cancelled when all of them have ended here: none is given back before.
    pub(crate) ended: CancellationToken,
    released: OnceCell<bool>,
}

impl JointRelease {
    pub(crate) fn new(leases: LeaseRefs) -> Self {
        Self { leases, ended: CancellationToken::new(), released: OnceCell::new() }
    }

    /// Gives all of them back, once; says whether all were held to this moment. Where not, each has to see
    /// for itself.
    pub(crate) async fn released(&self, context: &Context, deadline: Deadline) -> bool {
        self.ended.cancelled().await;
        let release = || async {
            let released = context.store.apply_batch(&self.leases, &BatchRequest::Release, deadline).await;
            debug!(leases = self.leases.len(), ?released, "released together");
            released.unwrap_or(false)
        };
        *self.released.get_or_init(release).await
    }
}

/// The release of a whole group by this handle, as those of its leases see it that are held here.
#[derive(Debug, Default)]
pub(crate) struct GroupRelease {
    released: watch::Sender<bool>,
}

/// Who waits for that.
#[derive(Clone, Debug)]
pub(crate) struct WithGroup(watch::Receiver<bool>);

impl GroupRelease {
    /// That a lease waits for it. Should the release come to nothing, the task of the lease gives it back by itself.
    pub(crate) fn subscribe(&self) -> WithGroup {
        WithGroup(self.released.subscribe())
    }

    /// They are released.
    pub(crate) fn done(self) {
        self.released.send_replace(true);
    }
}

impl WithGroup {
    /// Waits until the group was released; says whether it was.
    pub(crate) async fn released(&self, context: &Context) -> bool {
        let mut released = self.0.clone();
        tokio::select! {
            biased;
            released = released.wait_for(|released| *released) => released.is_ok(),
            () = context.closing.cancelled() => false,
            () = context.operation_deadline().passed() => false,
        }
    }
}

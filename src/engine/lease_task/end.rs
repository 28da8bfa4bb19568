//! The end of a lease whose task is dropped.

use std::sync::Arc;

use crate::{LossCause, engine::lease_shared::LeaseShared};

/// Ends the lease when a runtime that shuts down drops its task.
pub(super) struct LeaseTaskEnd(pub(super) Arc<LeaseShared>);

impl Drop for LeaseTaskEnd {
    fn drop(&mut self) {
        self.0.lose(LossCause::ShutDown);
        self.0.commands.end();
    }
}

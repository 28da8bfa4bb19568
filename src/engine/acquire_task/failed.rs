//! The end of an acquire that failed: it leaves nothing held.

use std::sync::atomic::Ordering;

use tokio::sync::oneshot;
use tracing::debug;

use super::AcquireTask;
use crate::{
    engine::{context::Context, held_lease::HeldLease, retry},
    record::{self, Request},
    types::{
        error::{Error, Result},
        key::Key,
    },
};

impl AcquireTask {
    /// Replies with the error. If a request is in doubt, takes it back.
    pub(super) async fn fail(self, error: Error, reply: oneshot::Sender<Result<HeldLease>>) {
        let is_unfinished = self.is_in_doubt.load(Ordering::Relaxed) || self.is_queued.load(Ordering::Relaxed);
        drop(reply.send(Err(error)));
        if is_unfinished {
            let leave = record::Leave { lease: self.terms.lease, acquire_id: self.terms.acquire_id };
            take_back(&self.shared.context, &self.key, leave).await;
        }
    }
}

/// Takes a request in doubt back, so that it leaves nothing held. If the store cannot be reached, the ttl does so
/// later.
async fn take_back(context: &Context, key: &Key, leave: record::Leave) {
    let released = retry::until_definite(context.operation_deadline(), context.settings.attempt, |deadline| {
        context.store.apply(key, Request::Leave(leave), deadline)
    });
    match released.await {
        Ok(applied) => debug!(%key, outcome = ?applied.outcome, "took back a request in doubt"),
        Err(error) => {
            let error: &(dyn std::error::Error + 'static) = &error;
            debug!(%key, error, "could not take back a request in doubt: its ttl ends it");
        }
    }
}

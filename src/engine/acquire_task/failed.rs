//! The end of an acquire that failed: it leaves nothing held, unless its caller may repeat it.

use std::sync::atomic::Ordering;

use tokio::sync::oneshot;
use tracing::debug;

use super::AcquireTask;
use crate::{
    Error, Key, Result,
    engine::{context::Context, held_lease::HeldLease, retry},
    record::{self, Request},
};

impl AcquireTask {
    /// Replies with the error. If a request is in doubt, takes it back, or waits until the caller repeats the acquire.
    pub(super) async fn fail(self, error: Error, reply: oneshot::Sender<Result<HeldLease>>) {
        let context = &self.shared.context;
        let is_unfinished = self.is_in_doubt.load(Ordering::Relaxed) || self.is_queued.load(Ordering::Relaxed);
        let is_unavailable = matches!(error, Error::Unavailable { .. });
        let is_repeatable = self.is_id_chosen && !reply.is_closed() && is_unavailable;
        let leave = record::Leave { lease: self.terms.lease, caller: self.terms.caller };
        if !is_unfinished {
            // The caller may use the id again at once.
            drop(self.in_use);
            drop(reply.send(Err(error)));
        } else if is_repeatable {
            let failed = self.in_use.into_repeatable(self.terms.caller);
            drop(reply.send(Err(error)));
            let lapse = context.clock().now().saturating_add(self.ttl.duration());
            tokio::select! {
                biased;
                () = failed.repeated() => {}
                // After the shutdown the caller can no longer repeat it.
                () = context.closing.cancelled() => {
                    if let Some(_taken_back) = failed.into_taken_back() {
                        take_back(context, &self.key, leave).await;
                    }
                }
                () = context.clock().sleep_until(lapse) => {}
            }
        } else {
            let _taken_back = self.in_use.into_taken_back();
            drop(reply.send(Err(error)));
            take_back(context, &self.key, leave).await;
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
